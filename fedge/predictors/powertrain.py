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
from fedge.pareto import find_nearest_row
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.measurement_columns import MeasurementColumns, collect_columns
from fedge.predictors.network_pair import reset_output_layer
from fedge.predictors.network_training import BoundedNetworks, LossName, build_training_rows, train_pair
from fedge.predictors.powertrain_reference import cache_folder, load_reference_network
from fedge.seeds import make_generator
from fedge.types import Measurement, Modes, PowerMode, Predictions, ProfileTable

SET_ASIDE = 0.2
"""Share of the rows that tell the best epoch."""
SPREAD_FACTOR = 1.5
"""See ``network_training.Learnt``."""


class PowerTrainPredictor:
    """A ``fedge.protocols.Predictor``: two networks that learnt another workload first; needs a reference.

    Of several references it takes the one most like the measured modes (``find_most_similar``). One reference network
    serves every fit, so its seed is ``reference_seed`` and not the knowledge's. ``loss`` None is the paper's choice
    (``choose_loss``). Learnt: ``reference_``, ``learnt_``.
    """

    def __init__(self, knowledge: PriorKnowledge, reference_seed: int = 0, loss: LossName | None = None) -> None:
        self.knowledge = knowledge
        self.reference_seed = reference_seed
        self.loss = loss

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Retrain both networks; raises ``BadInput`` without a reference or a measurement."""
        references = self.knowledge.references
        if not references:
            raise BadInput("predictor powertrain", "no reference", "another workload's table, with --reference TABLE")
        measured = collect_columns("powertrain", measurements)
        self.reference_ = find_most_similar(references, measured)
        networks = load_reference_network(self.reference_, self.reference_seed, cache_folder()).trained.pair
        loss = self.loss or choose_loss(self.knowledge.maxn, self.reference_.maxn)
        rng = make_generator(self.knowledge.seed, "powertrain", "transfer")
        trained = train_pair(
            reset_output_layer(networks, rng),
            rows=build_training_rows(measured),
            set_aside=SET_ASIDE,
            loss=loss,
            rng=rng,
        )
        self.learnt_ = BoundedNetworks(trained, measured, SPREAD_FACTOR)
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode; needs ``fit`` first."""
        return self.learnt_.predict(modes)


def choose_loss(maxn: PowerMode, reference_maxn: PowerMode) -> LossName:
    """The relative error for a board that is smaller than the reference's in every knob, else the squared one.

    The paper took the relative error for Orin Nano only, from AGX Orin. The rule is ours; it gives the paper's choice
    on each of its boards.
    """
    top, other = ((m.cores, m.cpu_mhz, m.gpu_mhz, m.mem_mhz) for m in (maxn, reference_maxn))
    return "mape" if all(a < b for a, b in zip(top, other, strict=True)) else "mse"


def find_most_similar(references: Sequence[ProfileTable], measured: MeasurementColumns) -> ProfileTable:
    """The table whose time and power are closest to the measured ones; the first of equals.

    That is the least sum, over time and power, of the root mean square of log (measured / the table's nearest mode).
    The level counts as well as the shape: targets are unscaled, so all layers but the last keep the reference's level.
    The paper has one reference only; the rule is ours.
    """

    def unlikeness(table: ProfileTable) -> float:
        rows = [find_nearest_row(table.modes, mode) for mode in Modes(measured.knobs)]
        ratios = np.log([measured.step_s / table.step_s[rows], measured.power_w / table.power_w[rows]])
        return float(np.sqrt(np.square(ratios).mean(axis=1)).sum())

    return min(references, key=unlikeness)
