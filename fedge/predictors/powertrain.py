"""Predicts as PowerTrain does: networks trained on another workload's table are retrained on the measured modes.

PowerTrain (FGCS 2024, doi 10.1016/j.future.2024.07.001): of the reference networks the last layer is dropped
and a fresh one added, then all layers are trained on the measured modes: 80 % of the rows, the best epoch of 100 on the
other 20 %; the scaler is fitted anew. The rest stands in ``network_pair`` and ``network_training``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from fedge.errors import BadInput
from fedge.pareto import nearest_row
from fedge.physics.knowledge import Knowledge
from fedge.predictors.baseline import Seen, seen
from fedge.predictors.network_pair import with_fresh_output
from fedge.predictors.network_training import Learnt, LossName, rows_of, train
from fedge.predictors.powertrain_reference import cache_folder, reference_of
from fedge.seeds import generator
from fedge.types import Measurement, Modes, PowerMode, Predictions, ProfileTable

SET_ASIDE = 0.2
"""Share of the rows that tell the best epoch."""
SPREAD_FACTOR = 1.5
"""See ``network_training.Learnt``."""


class PowerTrainPredictor:
    """A ``fedge.interfaces.Predictor``: two networks that learnt another workload first; needs a reference.

    Of several references it takes the one most like the measured modes (``most_alike``). One reference network serves
    every fit, so its seed is ``reference_seed`` and not the knowledge's. ``loss`` None is the paper's choice
    (``loss_for``). Learnt: ``reference_``, ``learnt_``.
    """

    def __init__(self, knowledge: Knowledge, reference_seed: int = 0, loss: LossName | None = None) -> None:
        self.knowledge = knowledge
        self.reference_seed = reference_seed
        self.loss = loss

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Retrain both networks; raises ``BadInput`` without a reference or a measurement."""
        references = self.knowledge.references
        if not references:
            raise BadInput("predictor powertrain", "no reference", "another workload's table, with --reference TABLE")
        measured = seen("powertrain", measurements)
        self.reference_ = most_alike(references, measured)
        networks = reference_of(self.reference_, self.reference_seed, cache_folder()).trained.pair
        loss = self.loss or loss_for(self.knowledge.maxn, self.reference_.maxn)
        rng = generator(self.knowledge.seed, "powertrain", "transfer")
        trained = train(with_fresh_output(networks, rng), rows_of(measured), SET_ASIDE, loss, rng)
        self.learnt_ = Learnt(trained, measured, SPREAD_FACTOR)
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode; needs ``fit`` first."""
        return self.learnt_.predict(modes)


def loss_for(maxn: PowerMode, reference_maxn: PowerMode) -> LossName:
    """The relative error for a board that is smaller than the reference's in every knob, else the squared one.

    The paper took the relative error for Orin Nano only, from AGX Orin. The rule is ours; it gives the paper's choice
    on each of its boards.
    """
    top, other = ((m.cores, m.cpu_mhz, m.gpu_mhz, m.mem_mhz) for m in (maxn, reference_maxn))
    return "mape" if all(a < b for a, b in zip(top, other, strict=True)) else "mse"


def most_alike(references: Sequence[ProfileTable], measured: Seen) -> ProfileTable:
    """The table whose time and power are closest to the measured ones; the first of equals.

    That is the least sum, over time and power, of the root mean square of log (measured / the table's nearest mode).
    The level counts as well as the shape: targets are unscaled, so all layers but the last keep the reference's level.
    The paper has one reference only; the rule is ours.
    """

    def unlikeness(table: ProfileTable) -> float:
        rows = [nearest_row(table.modes, mode) for mode in Modes(measured.knobs)]
        ratios = np.log([measured.step_s / table.step_s[rows], measured.power_w / table.power_w[rows]])
        return float(np.sqrt(np.square(ratios).mean(axis=1)).sum())

    return min(references, key=unlikeness)
