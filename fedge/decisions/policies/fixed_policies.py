"""Policies with a fixed mode: MAXN, and one of the board's presets."""

from __future__ import annotations

import numpy as np

from fedge.decisions.limits import format_figure
from fedge.errors import UnknownName
from fedge.modes import find_nearest_row
from fedge.types import Decision, DeviceSpec, Front, PowerMode, Predictions, RoundGoal

CLOCK_TOLERANCE = 0.01
"""Relative difference below which clocks are the same: a preset's cap need not be a step of the board's clock table."""


def choose_maxn(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose MAXN, every knob at its top."""
    row = find_nearest_row(predictions.modes, offer.maxn.mode)
    return Decision(predictions.modes[row], f"MAXN: {_describe_expected(predictions, goal, row)}.")


def choose_preset(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose the board's preset named in ``goal.policy`` (``preset:NAME``), or the nearest candidate as not feasible.

    Raises:
        UnknownName: If the board has no such preset; names those that it has.
    """
    name = goal.policy.removeprefix("preset:")
    if name not in spec.presets:
        raise UnknownName(f"policy: preset of {spec.name}", name, tuple(spec.presets))
    wanted = spec.presets[name]
    row = find_nearest_row(predictions.modes, wanted)
    mode, expected = predictions.modes[row], _describe_expected(predictions, goal, row)
    if _is_same_mode(mode, wanted):
        return Decision(mode, f"Preset {name}: {expected}.")
    why = (
        f"Preset {name} ({wanted}) is not among the {len(predictions.modes)} candidates; the nearest takes {expected}."
    )
    return Decision(mode, why, feasible=False)


def _describe_expected(predictions: Predictions, goal: RoundGoal, row: int) -> str:
    work_s, power_w = goal.steps * predictions.step_s[row], predictions.power_w[row]
    return f"{format_figure(work_s)} s of work at {format_figure(power_w)} W expected"


def _is_same_mode(a: PowerMode, b: PowerMode) -> bool:
    clocks = np.array([[m.cpu_mhz, m.gpu_mhz, m.mem_mhz] for m in (a, b)])
    return a.cores == b.cores and bool((np.abs(clocks[0] - clocks[1]) <= CLOCK_TOLERANCE * clocks[1]).all())
