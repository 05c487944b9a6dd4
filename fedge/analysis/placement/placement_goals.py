"""The goal of a placement: an objective, and limits of rate, power and latency; evaluated for many at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedge.analysis.placement.placement_outcome import OutcomeArrays
from fedge.errors import BadInput
from fedge.types import Floats

PlacementObjective = Literal["throughput", "latency", "energy", "power", "rate"]
USER_OBJECTIVES: tuple[PlacementObjective, ...] = ("throughput", "latency", "energy")
"""Objectives for users; ``power`` and ``rate`` (the highest within the limits) serve to find the nearest limits."""
LIMIT_TOLERANCE = 1e-9
"""Relative excess up to which a limit counts as met, so that a figure can be its own limit."""


@dataclass(frozen=True, slots=True)
class PlacementGoal:
    """An objective (most images per second, or least latency, energy or power) within the given limits.

    With ``rate_hz`` a placement must keep up with it, and latency, energy and power are those at that rate; without one
    they are those at full load. The objective ``rate`` is the highest rate at which power and latency hold.

    Attributes:
        objective: The figure to optimise.
        rate_hz: Images requested per second.
        max_power_w: Limit of the board's power in watts.
        max_latency_s: Limit of the latency in seconds.
    """

    objective: PlacementObjective = "throughput"
    rate_hz: float | None = None
    max_power_w: float | None = None
    max_latency_s: float | None = None

    def __post_init__(self) -> None:
        limits = (
            ("--rate", self.rate_hz),
            ("--max-power-w", self.max_power_w),
            ("--max-latency-s", self.max_latency_s),
        )
        for option, limit in limits:
            if limit is not None and not (math.isfinite(limit) and limit > 0):
                raise BadInput(option, f"{limit:g}", "a number above 0")


@dataclass(frozen=True, slots=True, eq=False)
class PlacementScores:
    """Scores of n placements, each of shape (n,).

    Attributes:
        cost: The value to minimise, infinite where a limit is broken.
        power_w: Power in watts at ``rate_hz``.
        rate_hz: Images per second.
    """

    cost: Floats
    power_w: Floats
    rate_hz: Floats


def score_placements(goal: PlacementGoal, idle_w: float, found: OutcomeArrays) -> PlacementScores:
    """Return every placement's cost.

    Args:
        goal: The objective and limits.
        idle_w: Idle power of the board in watts.
        found: Outcomes of the placements at full load.
    """
    images, slowest_s, dynamic_w = found.images_per_s, found.slowest_s, found.dynamic_w
    rate = _resolve_rate_hz(goal, idle_w, images, dynamic_w)
    if goal.rate_hz is None and goal.objective != "rate":
        latency, power_w = slowest_s, idle_w + dynamic_w
    else:
        latency = slowest_s * (1.0 + images / np.maximum(rate, 1e-300))
        power_w = idle_w + rate / images * dynamic_w
    cost = {
        "throughput": -images,
        "latency": latency,
        "energy": power_w / np.maximum(rate, 1e-300),
        "power": power_w,
        "rate": -rate,
    }[goal.objective]
    broken: NDArray[np.bool_] = (rate <= 0) | (images < rate * (1 - LIMIT_TOLERANCE))
    if goal.max_power_w is not None:
        broken |= power_w > goal.max_power_w * (1 + LIMIT_TOLERANCE)
    if goal.max_latency_s is not None:
        broken |= latency > goal.max_latency_s * (1 + LIMIT_TOLERANCE)
    return PlacementScores(np.where(broken, np.inf, cost), power_w, rate)


def _resolve_rate_hz(goal: PlacementGoal, idle_w: float, images: Floats, dynamic_w: Floats) -> Floats:
    """Return the rate of latency and power: the goal's, full load, or the highest within the power limit."""
    if goal.objective != "rate":
        return images if goal.rate_hz is None else np.full_like(images, goal.rate_hz)
    if goal.max_power_w is None:
        return images
    return images * np.clip((goal.max_power_w - idle_w) / np.maximum(dynamic_w, 1e-300), 0.0, 1.0)
