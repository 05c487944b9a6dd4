"""Batteries of emulated boards: charge over time, and when a battery is empty or sufficiently charged. Pure functions.

Symbols: capacity C (J), charge c (J), charging power h (W), floor f (share of C), a board's own power p (W). Over t
seconds at p the charge goes to c + (h - p) t, clipped to [0, C].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedge.experiment import BatterySpec

J_PER_WH = 3600.0
FLOOR_TOLERANCE_J = 1e-6
"""Energy in joules by which a charge may miss its floor, to allow for floating-point rounding in sums."""


@dataclass(frozen=True, slots=True)
class BatteryCharge:
    """A battery and its charge in joules."""

    spec: BatterySpec
    left_j: float

    @property
    def capacity_j(self) -> float:
        """Energy of the full battery, in joules."""
        return self.spec.capacity_wh * J_PER_WH

    @property
    def share(self) -> float:
        """Share of the capacity that is left, 0 to 1."""
        return self.left_j / self.capacity_j


def initial_charge(spec: BatterySpec) -> BatteryCharge:
    """Return the battery at the start of a run."""
    return BatteryCharge(spec, spec.charge * spec.capacity_wh * J_PER_WH)


def update_charge(charge: BatteryCharge, spent_j: float, seconds: float) -> BatteryCharge:
    """Return the battery after a period of use.

    It is charged during all ``seconds``.
    """
    left_j = charge.left_j - spent_j + charge.spec.charging_w * seconds
    return BatteryCharge(charge.spec, min(charge.capacity_j, max(0.0, left_j)))


def can_take_part(charge: BatteryCharge) -> bool:
    """Return True if the battery is not empty and its charge is not below the floor."""
    return charge.left_j > 0.0 and charge.left_j >= charge.spec.floor * charge.capacity_j - FLOOR_TOLERANCE_J


def recharge_time_s(charge: BatteryCharge, idle_w: float) -> float | None:
    """Return the seconds of idling after which a board may take part.

    Returns:
        0 if it may take part now, None if it never will.
    """
    if can_take_part(charge):
        return 0.0
    gain_w = charge.spec.charging_w - idle_w
    missing_j = max(charge.spec.floor * charge.capacity_j - charge.left_j, FLOOR_TOLERANCE_J)
    return None if gain_w <= 0 else missing_j / gain_w


def time_to_empty_s(charge: BatteryCharge, phases: Iterable[tuple[float, float]]) -> float | None:
    """Return the seconds until the battery is empty.

    ``phases`` are durations in seconds and powers in watts, one after the other.

    Returns:
        None if the battery lasts through all phases.
    """
    past_s, left_j = 0.0, charge.left_j
    for seconds, watts in phases:
        net_w = watts - charge.spec.charging_w
        if net_w * seconds > left_j:
            return past_s + left_j / net_w
        left_j = min(charge.capacity_j, left_j - net_w * seconds)
        past_s += seconds
    return None


def available_energy_j(wanted_j: float, seconds: float, charge: BatteryCharge | None) -> float:
    """Return the energy that a board can draw in ``seconds``, limited by its battery, which is charged meanwhile.

    A ``charge`` of None means mains power.
    """
    return wanted_j if charge is None else min(wanted_j, charge.left_j + charge.spec.charging_w * seconds)
