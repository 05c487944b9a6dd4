"""Prediction of a training step's need on a board, and of the largest batches that fit into the board's memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import find_known_network
from fedge.costs.layers.network_source import load_network_cost, parse_input_shape
from fedge.costs.memory.step_need import (
    MEASURED_SETUP,
    StepNeed,
    TrainingSetup,
    find_largest_batch,
    predict_step_need,
)
from fedge.devices import catalogue
from fedge.types import DeviceSpec

LISTED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONFIDENT_SDS = 1.645
"""Standard deviations of safety: a batch surely fits if the one-sided 95 % bound of its log-normal memory need does."""


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """Predicted need of a training step.

    Attributes:
        limit_mb: Memory available to training, in MB.
        largest_batch: Largest batch that fits; 0 if not even one sample does.
        largest_sure_batch: Largest batch that fits even at the upper bound of its predicted need.
    """

    network: NetworkCost
    device: DeviceSpec
    batch_size: int
    step: StepNeed
    limit_mb: float
    largest_batch: int
    largest_sure_batch: int
    setup: TrainingSetup = MEASURED_SETUP

    @property
    def listed_batches(self) -> list[int]:
        """The batch sizes of the table, ascending: powers of two and the requested one."""
        return sorted({*LISTED_BATCHES, self.batch_size})

    @property
    def system_share(self) -> float:
        """Share of the board's memory that is not available to training."""
        return 1.0 - self.limit_mb / (1000.0 * self.device.ram_gb.value)

    def predict_need(self, batch_size: int) -> StepNeed:
        """Predict the need of another batch size."""
        return predict_step_need(self.network, self.device, batch_size, self.setup)


def predict_memory(
    model: str,
    device: str,
    batch_size: int,
    input_shape: str | None = None,
    *,
    usable_mb: Callable[[DeviceSpec], float],
    setup: TrainingSetup = MEASURED_SETUP,
) -> MemoryPrediction:
    """Predict a step's need and the batches that fit into the memory that the board leaves for training.

    ``usable_mb`` returns the memory that a board leaves for training, in MB.

    Raises:
        BadInput: If the network or board is invalid.
    """
    spec = catalogue.find(device)  # first: counting layers takes seconds
    known = find_known_network(model) if input_shape is None else None
    network = known or load_network_cost(model, parse_input_shape(input_shape))
    return predict_network_memory(network, spec, batch_size, limit_mb=usable_mb(spec), setup=setup)


def predict_network_memory(
    network: NetworkCost,
    device: DeviceSpec,
    batch_size: int,
    limit_mb: float,
    setup: TrainingSetup = MEASURED_SETUP,
) -> MemoryPrediction:
    """Predict the need of a step of a network, and the largest batches that fit."""

    def find_largest(sds: float) -> int:
        def fits(batch: int) -> bool:
            step = predict_step_need(network, device, batch, setup)
            return step.memory_mb * math.exp(sds * step.memory_sd_log) <= limit_mb

        return find_largest_batch(fits)

    return MemoryPrediction(
        network,
        device=device,
        batch_size=batch_size,
        step=predict_step_need(network, device, batch_size, setup),
        limit_mb=limit_mb,
        largest_batch=find_largest(0.0),
        largest_sure_batch=find_largest(CONFIDENT_SDS),
        setup=setup,
    )


def memory_prediction_to_dict(prediction: MemoryPrediction) -> dict[str, Any]:
    """Return the prediction for JSON: requested batch, limit, largest batches and table."""
    batches = {str(batch): asdict(prediction.predict_need(batch)) for batch in prediction.listed_batches}
    for step in batches.values():
        step.pop("source")
    return {
        "model": prediction.network.name,
        "device": prediction.device.name,
        "batch_size": prediction.batch_size,
        **asdict(prediction.step),
        "limit_mb": prediction.limit_mb,
        "fits": prediction.step.memory_mb <= prediction.limit_mb,
        "largest_batch": prediction.largest_batch,
        "surely_fits": prediction.largest_sure_batch,
        "batches": batches,
    }
