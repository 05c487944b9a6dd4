"""PowerTrain's predictor: networks trained on another workload's table are retrained on the measured modes.

The last layer of the reference networks is replaced by a new one, then all layers are trained on the measured modes: 80
% of the rows, the best of 100 epochs on the other 20 %. The scaler is fitted anew. Everything else is described in
``network_pair`` and ``network_training``.

References:
    PowerTrain (FGCS 2024, doi 10.1016/j.future.2024.07.001).
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
"""Share of the rows held out to select the best epoch."""
SPREAD_FACTOR = 1.5
"""Factor of the spread; see ``network_training.BoundedNetworks``."""


class PowerTrainPredictor:
    """A ``fedge.protocols.Predictor``: two networks pre-trained on another workload; it needs a reference table.

    Of several references, the one most similar to the measured modes is used (``find_most_similar``). One reference
    network serves every fit, so it has a seed of its own.

    Attributes:
        knowledge: Prior knowledge of board and workload.
        reference_seed: Seed of the reference network.
        loss: Name of the loss; None for the paper's choice (``choose_loss``).
        reference_: The reference table in use.
        learnt_: The retrained networks.
    """

    def __init__(self, knowledge: PriorKnowledge, reference_seed: int = 0, loss: LossName | None = None) -> None:
        self.knowledge = knowledge
        self.reference_seed = reference_seed
        self.loss = loss

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Retrain both networks.

        Raises:
            BadInput: There is no reference or no measurement, or safetensors is not installed.
        """
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
        """Predict step time and power of every mode; requires ``fit``."""
        return self.learnt_.predict(modes)


def choose_loss(maxn: PowerMode, reference_maxn: PowerMode) -> LossName:
    """Return the relative error for a board smaller than the reference's in every knob, otherwise the squared error.

    The paper uses the relative error for Orin Nano only, with AGX Orin as reference. This rule is our generalisation;
    it gives the paper's choice on each of its boards.

    Args:
        maxn: Top mode of the board.
        reference_maxn: Top mode of the reference's board.
    """
    top, other = ((m.cores, m.cpu_mhz, m.gpu_mhz, m.mem_mhz) for m in (maxn, reference_maxn))
    return "mape" if all(a < b for a, b in zip(top, other, strict=True)) else "mse"


def find_most_similar(references: Sequence[ProfileTable], measured: MeasurementColumns) -> ProfileTable:
    """Return the table whose time and power are closest to the measurements; the first wins a tie.

    The distance is the sum, over time and power, of the root mean square of log (measured / the table's nearest mode).
    Level counts as well as shape: targets are unscaled, so all layers but the last keep the reference's level. The
    paper has a single reference; this rule is our generalisation.

    Args:
        references: The tables, at least one.
        measured: The measurements.
    """

    def unlikeness(table: ProfileTable) -> float:
        rows = [find_nearest_row(table.modes, mode) for mode in Modes(measured.knobs)]
        ratios = np.log([measured.step_s / table.step_s[rows], measured.power_w / table.power_w[rows]])
        return float(np.sqrt(np.square(ratios).mean(axis=1)).sum())

    return min(references, key=unlikeness)
