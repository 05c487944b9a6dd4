"""Default predictor: every prior and reference is fitted to the measurements and weighted by its evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import tabulate_modes
from fedge.predictors.candidate_blend import BoardFit, PriorGroups, group_priors
from fedge.predictors.kind_fit import fit_boards
from fedge.types import Measurement, Modes, Predictions


class BlendedPredictor:
    """A ``fedge.protocols.Predictor`` that blends all priors and references; it needs at least one of either.

    Attributes:
        knowledge: Prior knowledge of board and workload.
        fit_: The fit to all measurements.
    """

    fit_: BoardFit

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge
        self._priors: PriorGroups | None = None

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Fit to all measurements, also of other boards of the same kind; with none, the priors remain.

        Raises:
            BadInput: There is no prior or reference, they predict nothing finite, or a measurement is not a finite
                number above 0.
        """
        self.fit_together([self], [measurements])
        return self

    @staticmethod
    def fit_together(predictors: Sequence[BlendedPredictor], measurements: Sequence[Sequence[Measurement]]) -> None:
        """Fit several boards' predictors at once: the same results as one after the other, in less time.

        Args:
            predictors: One predictor per board.
            measurements: The measurements of each board.

        Raises:
            BadInput: As ``fit``.
        """
        knowledge = [predictor.knowledge for predictor in predictors]
        fits = fit_boards(knowledge, [predictor.list_priors for predictor in predictors], measurements)
        for predictor, fit in zip(predictors, fits, strict=True):
            predictor.fit_ = fit

    def list_priors(self) -> PriorGroups:
        """Return the candidates for log time and log power.

        Raises:
            BadInput: There is no prior or reference.
        """
        if self._priors is None:
            self._priors = group_priors(self.knowledge)
        return self._priors

    def predict(self, modes: Modes) -> Predictions:
        """Predict step time and power of every mode; requires ``fit``."""
        return self.predict_chosen(modes, lambda _: None)

    def predict_chosen(
        self, modes: Modes, choose_rows: Callable[[Predictions], NDArray[np.intp] | None]
    ) -> Predictions:
        """Predict every mode, but spreads, which take most of the time, only where they are needed.

        Args:
            modes: The n modes.
            choose_rows: Returns the rows whose spreads are needed, from predictions whose spreads are not numbers; None
                for all rows.

        Returns:
            Predictions whose spreads are numbers in the chosen rows only.
        """
        x = tabulate_modes(self.knowledge.maxn, modes)
        time, power = self.fit_.predict(x)
        unknown = np.full(len(modes), np.nan)
        means = Predictions(
            modes,
            step_s=np.exp(time.mean),
            power_w=np.exp(power.mean),
            step_s_sd_log=unknown,
            power_w_sd_log=unknown,
        )
        rows = choose_rows(means)
        sds = [unknown.copy(), unknown.copy()]
        for sd, predicted in zip(sds, (time, power), strict=True):
            sd[slice(None) if rows is None else rows] = predicted.predict_sd(rows)
        return dataclasses.replace(means, step_s_sd_log=sds[0], power_w_sd_log=sds[1])
