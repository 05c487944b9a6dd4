"""A made-up board for tests of the physical model: coefficients, a grid of modes, and a workload much like another."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from fedge.devices.tables.mode_table import LABEL_COLUMN, TABLE_COLUMNS
from fedge.modes import stack_modes
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES, Coefficients, compute_power_w, compute_step_s
from fedge.types import Label, Modes, PowerMode, ProfileTable

MAXN = PowerMode(8, 2000.0, 1200.0, 3000.0)

TIME = {
    "gpu_s": 0.05,
    "mem_s": 0.03,
    "gpu_mem_overlap": 1.5,
    "prep_s": 0.012,
    "prep_core_exponent": 0.9,
    "prep_mem_share": 0.3,
    "prep_crowding": 0.05,
    "launch_s": 0.02,
    "stage_overlap": 4.0,
    "host_s": 0.004,
    "fixed_s": 0.003,
}
POWER = {
    "static_w": 8.0,
    "cores_idle_w": 1.5,
    "cores_busy_w": 5.0,
    "host_busy_w": 3.0,
    "cpu_exponent": 1.5,
    "gpu_idle_w": 1.0,
    "gpu_busy_w": 6.0,
    "gpu_math_w": 4.0,
    "gpu_use_exponent": 1.0,
    "gpu_exponent": 1.2,
    "mem_idle_w": 1.5,
    "mem_busy_w": 6.0,
    "mem_exponent": 0.6,
}


def coefficients() -> Coefficients:
    return Coefficients(
        np.log(np.array([TIME[name] for name in TIME_NAMES])), np.log(np.array([POWER[name] for name in POWER_NAMES]))
    )


def another_workload(rng: np.random.Generator, time_sd: float = 0.4, power_sd: float = 0.15) -> Coefficients:
    base = coefficients()
    return Coefficients(
        base.time + time_sd * rng.standard_normal(len(base.time)),
        base.power + power_sd * rng.standard_normal(len(base.power)),
    )


def at_maxn(cost: Coefficients, maxn: PowerMode) -> tuple[float, float]:
    """Seconds per step and watts in the top mode."""
    top = stack_modes([maxn])
    return float(compute_step_s(cost, maxn, top)[0]), float(compute_power_w(cost, maxn, top)[0])


def grid() -> Modes:
    """7 x 5 x 6 x 3 modes, MAXN last."""
    knobs = itertools.product(
        (2, 3, 4, 5, 6, 7, 8),
        (500.0, 900.0, 1300.0, 1700.0, 2000.0),
        (200.0, 400.0, 600.0, 800.0, 1000.0, 1200.0),
        (700.0, 1800.0, 3000.0),
    )
    return Modes(np.array(list(knobs), dtype=np.float64))


def made_up_table(
    truth: Coefficients | None = None, every: int = 1, modes: Modes | None = None, **named: Any
) -> ProfileTable:
    """Seconds and watts of a workload at every so many modes of the grid, or at ``modes``; ``named`` says whose."""
    at = Modes(grid().knobs[::every]) if modes is None else modes
    cost = truth or coefficients()
    names = {
        "device": "board",
        "workload": "net",
        "batch_size": 16,
        "sha256": "0" * 64,
        "path": "folder/net.csv",
        "label": "measured",
    }
    return ProfileTable(
        modes=at, step_s=compute_step_s(cost, MAXN, at), power_w=compute_power_w(cost, MAXN, at), **{**names, **named}
    )


def write_table(
    path: Path,
    seed: int = 1,
    rows: slice = slice(None, None, 5),
    batches: tuple[int, ...] = (16,),
    label: Label = "measured",
) -> Path:
    """Write the table of some modes of the board with a workload of its own, alike at every batch size."""
    truth, modes = another_workload(np.random.default_rng(seed)), grid()
    seconds, watts = compute_step_s(truth, MAXN, modes), compute_power_w(truth, MAXN, modes)
    measured = list(zip(modes.knobs, seconds, watts, strict=True))[rows]
    lines = [
        f"{c:g},{f * 1e3:g},{g * 1e6:.0f},{m * 1e6:.0f},{batch},{t * 1e3},{w},{label}"
        for batch in batches
        for (c, f, g, m), t, w in measured
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join([*TABLE_COLUMNS, LABEL_COLUMN]), *lines]), encoding="utf-8")
    return path
