"""What a service's batches cost on boards of a kind, before the board at hand has measured any."""

from __future__ import annotations

import numpy as np

from fedge.concurrency.service import Inference
from fedge.costs.inference import inference_cost
from fedge.devices import catalogue
from fedge.physics import model
from fedge.types import DeviceSpec, Modes


def average_of(device: DeviceSpec, cost: str, batch_sizes: tuple[int, ...], modes: Modes) -> Inference:
    """What batches cost in ``modes``; raises ``BadInput`` for the cost or a batch size."""
    return average_and_spreads(device, cost, batch_sizes, modes)[0]


def average_and_spreads(
    device: DeviceSpec, cost: str, batch_sizes: tuple[int, ...], modes: Modes
) -> tuple[Inference, tuple[tuple[float, float], ...]]:
    """Likewise, and how far a board may lie off in seconds and in watts, log units, for every batch size."""
    specs = catalogue.load_catalogue()
    profiles = [inference_cost(device, cost, size, specs) for size in batch_sizes]
    infer_s = [model.step_s(profile.coefficients, device.maxn, modes) for profile in profiles]
    power_w = [model.power_w(profile.coefficients, device.maxn, modes) for profile in profiles]
    table = Inference(modes, batch_sizes, np.stack(infer_s, axis=1), np.stack(power_w, axis=1))
    return table, tuple((profile.residual_time_sd_log, profile.residual_power_sd_log) for profile in profiles)
