"""What a placement is chosen for: an objective, and limits of rate, power and latency; judged for many at once."""

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
"""What a user may ask for; ``power`` and ``rate`` (the highest that holds the limits) serve to say what is nearest."""
LIMIT_TOLERANCE = 1e-9
"""Relative: a limit that is met to so much counts as met, so that a figure is its own limit."""


@dataclass(frozen=True, slots=True)
class PlacementGoal:
    """Most images per second, or least latency, joules per image or watts; within the limits that are given.

    With ``rate_hz`` a placement must keep up with it, and latency, joules and watts are those at that rate; without
    one they are those at full load. The objective ``rate`` is the highest rate at which power and latency hold.
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
    """(n,): what is made small, infinite where a limit is broken; watts, and the rate that they are for."""

    cost: Floats
    power_w: Floats
    rate_hz: Floats


def score_placements(goal: PlacementGoal, idle_w: float, found: OutcomeArrays) -> PlacementScores:
    """Every placement's cost from what comes of it at full load."""
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
    """The rate that latency and power are for: the goal's, full load, or the highest within the power limit."""
    if goal.objective != "rate":
        return images if goal.rate_hz is None else np.full_like(images, goal.rate_hz)
    if goal.max_power_w is None:
        return images
    return images * np.clip((goal.max_power_w - idle_w) / np.maximum(dynamic_w, 1e-300), 0.0, 1.0)
