"""A policy: it chooses the power mode of a client for a round.

An experiment uses it with ``policy: {name: "own_policy:choose_mode", deadline_s: 120}`` and
``plugins: [own_policy.py]``. With a deadline for its round, a board probes modes within it; without one, it chooses
from predictions that were never tested.
"""

from __future__ import annotations

import numpy as np

from fedge.types import Decision, DeviceSpec, Front, Predictions, RoundGoal

MAX_SLOWDOWN = 1.2
"""Longest step as a multiple of the fastest mode's."""


def choose_mode(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose the mode of least energy among those that are fast enough.

    Args:
        predictions: One row per candidate mode: seconds per step, watts, and their spreads.
        offer: The client's Pareto front, from which the server planned the round.
        goal: The server's request: steps, deadline (None without a plan), rounds left after this one, and the policy's
            numbers in ``limits``, such as ``goal.limits["deadline_s"]``; ``policy: {options: {...}}`` adds your own.
        spec: The board: its knobs, presets and data-sheet figures, such as ``spec.max_w.value``.
    """
    energy_j = predictions.step_s * predictions.power_w
    fast = predictions.step_s <= MAX_SLOWDOWN * predictions.step_s.min()
    row = int(np.where(fast, energy_j, np.inf).argmin())
    return Decision(predictions.modes[row], f"{energy_j[row]:.2f} J per step expected.")
