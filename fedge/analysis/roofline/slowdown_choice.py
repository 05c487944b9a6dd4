"""Choose the mode of least predicted energy whose predicted time stays within a slowdown of MAXN, and explain it.

Predictions are not exact, so a knob is lowered only where that pays: each lowered knob has to save
``MIN_KNOB_SAVING`` of the energy, or it stays at its top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedge.analysis.roofline.roofline_model import (
    BatchDurations,
    Roofline,
    RooflineBatch,
    batch_to_work,
    describe_balance_side,
)
from fedge.errors import BadInput
from fedge.types import Floats, Modes, PowerMode

MIN_KNOB_SAVING = 0.01
"""Default share of the energy that lowering one knob must save, well below the error of predicted power."""
DEFAULT_MAX_SLOWDOWN = 1.05
"""Default limit of the time relative to MAXN's."""
_KNOBS = (
    ("cores", "cores", ""),
    ("cpu_mhz", "CPU clock", " MHz"),
    ("gpu_mhz", "GPU clock", " MHz"),
    ("mem_mhz", "memory clock", " MHz"),
)


@dataclass(frozen=True, slots=True)
class SlowdownChoice:
    """The rows of the chosen mode and of MAXN, and the predicted slowdown and saving relative to MAXN."""

    row: int
    maxn_row: int
    slowdown: float
    """Predicted time divided by MAXN's."""
    saving: float
    """Predicted share of MAXN's energy that is saved."""


def choose_within_slowdown(
    modes: Modes,
    time_s: Floats,
    joules: Floats,
    maxn_row: int,
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    margin: float = 0.0,
) -> SlowdownChoice:
    """Choose the row of least energy among those within the slowdown; MAXN always is.

    Args:
        modes: The modes.
        time_s: Predicted seconds, shape (modes,).
        joules: Predicted energy in joules, shape (modes,).
        maxn_row: Row of MAXN.
        max_slowdown: Limit of the time relative to MAXN's, at least 1.
        margin: Margin on predicted times, in log units.

    Raises:
        BadInput: For a slowdown below 1.
    """
    if not (math.isfinite(max_slowdown) and max_slowdown >= 1.0):
        raise BadInput("--max-slowdown", f"{max_slowdown:g}", "1 or more, as 1.05 for at most 5 % slower than MAXN")
    slowdown = time_s / time_s[maxn_row]
    within = slowdown * math.exp(margin) <= max_slowdown
    within[maxn_row] = True
    lowered = (modes.knobs < modes.knobs[maxn_row]).sum(axis=1)
    cost = np.where(within, joules * (1.0 + MIN_KNOB_SAVING) ** lowered, np.inf)
    row = int(np.argmin(cost))
    return SlowdownChoice(row, maxn_row, float(slowdown[row]), 1.0 - float(joules[row] / joules[maxn_row]))


def find_oracle_row(step_s: Floats, joules: Floats, maxn_row: int, max_slowdown: float = DEFAULT_MAX_SLOWDOWN) -> int:
    """Return the row of least measured energy among those whose measured time is within the slowdown.

    Args:
        step_s: Measured seconds, shape (modes,).
        joules: Measured energy, shape (modes,); infinite where a mode is not allowed.
        maxn_row: Row of MAXN.
        max_slowdown: Limit of the time relative to MAXN's.
    """
    return int(np.argmin(np.where(step_s <= max_slowdown * step_s[maxn_row], joules, np.inf)))


def explain_choice(
    choice: SlowdownChoice, modes: Modes, roofline: Roofline, batch: RooflineBatch, spent: BatchDurations
) -> str:
    """Explain the choice: the bottleneck at MAXN, the knobs lowered, and their cost; ``roofline`` is MAXN's."""
    chosen, maxn = modes[choice.row], modes[choice.maxn_row]
    bound, paced_by = _describe_bound(choice.maxn_row, roofline, batch, spent)
    lowered = {
        name: f"{title} from {getattr(maxn, name):g} to {getattr(chosen, name):g}{unit}"
        for name, title, unit in _KNOBS
        if getattr(chosen, name) < getattr(maxn, name)
    }
    if not lowered:
        return f"At MAXN {bound}. Every lower mode is slower than allowed or saves too little: MAXN stays."
    reason = "as far as the slowdown allows" if paced_by & lowered.keys() else "as it does not set the pace"
    what = f"{_format_percent(choice.slowdown - 1.0)} slower, {_format_percent(choice.saving)} less energy (predicted)"
    return f"At MAXN {bound}. Lowered, {reason}: {', '.join(lowered.values())}; {what}."


def _describe_bound(row: int, roofline: Roofline, batch: RooflineBatch, spent: BatchDurations) -> tuple[str, set[str]]:
    """Return a description of the bottleneck, and the knobs that it depends on."""
    gpu_ms, launch_ms, sample_ms = (1e3 * float(part[row]) for part in (spent.gpu_s, spent.launch_s, spent.sample_s))
    if launch_ms >= max(gpu_ms, sample_ms):
        words = f"launching on the CPU sets the pace ({launch_ms:.3g} ms beside {gpu_ms:.3g} ms on the GPU)"
        return words, {"cpu_mhz"}
    if sample_ms > gpu_ms:
        words = f"preparing samples on the CPU sets the pace ({sample_ms:.3g} ms beside {gpu_ms:.3g} ms on the GPU)"
        return words, {"cores", "cpu_mhz"}
    work = batch_to_work(batch)
    words = f"the GPU sets the pace ({gpu_ms:.3g} ms beside {launch_ms:.3g} ms of launches on the CPU)"
    return f"{words}: {describe_balance_side(roofline, work)}", {
        "gpu_mhz" if work.intensity >= roofline.balance else "mem_mhz"
    }


def _format_percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"


def parse_mode(text: str, where: str = "--mode") -> PowerMode:
    """Parse ``12/2201.6/1300.5/3199`` as cores and CPU, GPU and memory clocks in MHz.

    Raises:
        BadInput: For any other form.
    """
    wanted = "cores/CPU/GPU/memory in MHz, as 12/2201.6/1300.5/3199"
    try:
        cores, cpu_mhz, gpu_mhz, mem_mhz = (float(part) for part in text.split("/"))
    except ValueError as error:
        raise BadInput(where, repr(text), wanted) from error
    if not all(math.isfinite(v) and v > 0 for v in (cores, cpu_mhz, gpu_mhz, mem_mhz)) or cores != int(cores):
        raise BadInput(where, repr(text), wanted)
    return PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)
