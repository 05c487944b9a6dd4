"""Batteries of emulated boards: charge over time, and when a battery is empty or sufficiently charged. Pure functions.

Symbols: capacity C (J), charge c (J), charging power h (W), floor f (J), a board's own power p (W). Over t seconds at p
the charge goes to c + (h - p) t, clipped to [0, C]. The rules are those of ``Batteries``, also for a single board.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.experiment import BatterySpec
from fedge.types import Floats

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


@dataclass(frozen=True, slots=True, eq=False)
class Batteries:
    """The batteries of n boards, shape (n,) each; a board on mains has infinite charge and capacity."""

    left_j: Floats
    capacity_j: Floats
    floor_j: Floats
    charging_w: Floats

    def update(self, spent_j: Floats | float, seconds: Floats | float) -> Batteries:
        """Return the batteries after a period of use, in which they are charged during all ``seconds``."""
        left_j = np.clip(self.left_j - spent_j + self.charging_w * seconds, 0.0, self.capacity_j)
        return dataclasses.replace(self, left_j=left_j)

    def without_surplus(self, phases: Iterable[tuple[Floats, Floats]]) -> Batteries:
        """Return the batteries without the charge that they will be too full to take in phases of use.

        After it the phases may be booked as one period. ``phases`` are as in ``time_to_empty_s``.
        """
        if not self.charging_w.any():
            return self
        left_j, surplus_j = self.left_j, np.zeros(len(self.left_j))
        for seconds, watts in phases:
            left_j = left_j + (self.charging_w - watts) * seconds
            with np.errstate(invalid="ignore"):  # of boards on mains
                over_j = np.where(left_j > self.capacity_j, left_j - self.capacity_j, 0.0)
            left_j, surplus_j = left_j - over_j, surplus_j + over_j
        return dataclasses.replace(self, left_j=self.left_j - surplus_j)

    def limit_energy_j(self, wanted_j: Floats | float, seconds: Floats | float) -> Floats:
        """Return the energy that boards can draw in ``seconds``, while their batteries are charged."""
        limited: Floats = np.minimum(wanted_j, self.left_j + self.charging_w * seconds)
        return limited

    def draw_idle(self, idle_w: Floats | float, seconds: Floats | float) -> tuple[Floats, Batteries]:
        """Return the energy that idle boards draw in ``seconds``, at most what there is, and the batteries after it."""
        drawn_j = self.limit_energy_j(idle_w * seconds, seconds)
        return drawn_j, self.update(drawn_j, seconds)

    def mask_sufficient(self) -> NDArray[np.bool_]:
        """Mask the batteries that are not empty and whose charge is not below the floor."""
        sufficient: NDArray[np.bool_] = (self.left_j > 0.0) & (self.left_j >= self.floor_j - FLOOR_TOLERANCE_J)
        return sufficient

    def recharge_time_s(self, idle_w: Floats | float) -> Floats:
        """Return the seconds of idling after which boards may take part: 0 for now, infinity for never."""
        gain_w = self.charging_w - idle_w
        missing_j = np.maximum(self.floor_j - self.left_j, FLOOR_TOLERANCE_J)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            wait_s = np.where(gain_w > 0, missing_j / gain_w, np.inf)
        return np.where(self.mask_sufficient(), 0.0, wait_s)

    def time_to_empty_s(self, phases: Iterable[tuple[Floats, Floats]]) -> Floats:
        """Return the seconds until each battery is empty; infinity if it lasts through all phases.

        ``phases`` are durations in seconds and powers in watts, one after the other.
        """
        past_s, left_j, empty_s = np.zeros(len(self.left_j)), self.left_j, np.full(len(self.left_j), np.inf)
        for seconds, watts in phases:
            net_w = watts - self.charging_w
            ends = (net_w * seconds > left_j) & np.isinf(empty_s)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                empty_s = np.where(ends, past_s + left_j / net_w, empty_s)
            left_j = np.minimum(self.capacity_j, left_j - net_w * seconds)
            past_s = past_s + seconds
        return empty_s


def stack_batteries(charges: Iterable[BatteryCharge | None]) -> Batteries:
    """Stack charges to columns; None stands for mains power."""
    mains = (math.inf, math.inf, 0.0, 0.0)
    rows = [
        mains if c is None else (c.left_j, c.capacity_j, c.spec.floor * c.capacity_j, c.spec.charging_w)
        for c in charges
    ]
    left_j, capacity_j, floor_j, charging_w = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    return Batteries(left_j, capacity_j, floor_j=floor_j, charging_w=charging_w)


def initial_charge(spec: BatterySpec) -> BatteryCharge:
    """Return the battery at the start of a run."""
    return BatteryCharge(spec, spec.charge * spec.capacity_wh * J_PER_WH)


def draw_idle(charge: BatteryCharge | None, idle_w: float, seconds: float) -> tuple[float, BatteryCharge | None]:
    """Return the energy in joules that an idle board draws in ``seconds``, and its battery after it; None on mains."""
    drawn_j, left = stack_batteries([charge]).draw_idle(idle_w, seconds)
    return float(drawn_j[0]), None if charge is None else BatteryCharge(charge.spec, float(left.left_j[0]))
