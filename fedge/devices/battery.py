"""Batteries of emulated boards: what is left after so many joules and seconds, and when it is empty or enough; pure.

Symbols: capacity C (J), charge c (J), charging power h (W), floor f (share of C), a board's own power p (W). Over t
seconds at p the charge goes to c + (h - p) t, kept within [0, C].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedge.experiment import BatterySpec

J_PER_WH = 3600.0
FLOOR_TOLERANCE_J = 1e-6
"""Joules by which a charge may miss its floor and still count as there: what adding up floats costs; chosen by us."""


@dataclass(frozen=True, slots=True)
class BatteryCharge:
    """A battery and the joules left in it."""

    spec: BatterySpec
    left_j: float

    @property
    def capacity_j(self) -> float:
        """Joules when full."""
        return self.spec.capacity_wh * J_PER_WH

    @property
    def share(self) -> float:
        """The share of the capacity that is left, 0 to 1."""
        return self.left_j / self.capacity_j


def initial_charge(spec: BatterySpec) -> BatteryCharge:
    """The battery as the run begins."""
    return BatteryCharge(spec, spec.charge * spec.capacity_wh * J_PER_WH)


def update_charge(charge: BatteryCharge, spent_j: float, seconds: float) -> BatteryCharge:
    """The battery when its board drew ``spent_j`` in ``seconds``, charged meanwhile."""
    left_j = charge.left_j - spent_j + charge.spec.charging_w * seconds
    return BatteryCharge(charge.spec, min(charge.capacity_j, max(0.0, left_j)))


def can_take_part(charge: BatteryCharge) -> bool:
    """Whether its board may take part: not empty, and at its floor or above."""
    return charge.left_j > 0.0 and charge.left_j >= charge.spec.floor * charge.capacity_j - FLOOR_TOLERANCE_J


def recharge_time_s(charge: BatteryCharge, idle_w: float) -> float | None:
    """Seconds of rest at ``idle_w`` after which its board may take part; 0 when it may now, None when never."""
    if can_take_part(charge):
        return 0.0
    gain_w = charge.spec.charging_w - idle_w
    missing_j = max(charge.spec.floor * charge.capacity_j - charge.left_j, FLOOR_TOLERANCE_J)
    return None if gain_w <= 0 else missing_j / gain_w


def time_to_empty_s(charge: BatteryCharge, phases: Iterable[tuple[float, float]]) -> float | None:
    """Seconds until it is empty over ``phases`` of (seconds, watts) one after the other; None when it lasts."""
    past_s, left_j = 0.0, charge.left_j
    for seconds, watts in phases:
        net_w = watts - charge.spec.charging_w
        if net_w * seconds > left_j:
            return past_s + left_j / net_w
        left_j = min(charge.capacity_j, left_j - net_w * seconds)
        past_s += seconds
    return None
