"""``fedge roofline bench``: micro-benchmarks here, or on an emulated board, and the roofline constants they give."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.commands.outputs import check_output
from experiments.commands.roofline_constants import basis_of, row_of
from experiments.report.quantities import number, percent
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.roofline.board import rooflines
from fedge.roofline.model import implication
from fedge.roofline.sweep import Sweep, as_data, fit_sweep
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from rich.table import Table

STARTS = '{"device"'
REAL = ("cpu", "cuda")
NO_METER = {
    "cpu": "energy is not known: this machine shows no energy counter (RAPL) that this user may read",
    "cuda": "energy is not known: no counter of the GPU's energy is read here",
}


def bench(device: str, seconds: float, mode: str | None, seed: int, out: Path | None) -> None:
    """Measure, print, and write what was found; raises ``BadInput``."""
    from rich.console import Console

    check_output("--out", out, STARTS)
    if not 0.0 < seconds <= 3600.0:
        raise BadInput("--seconds", f"{seconds:g}", "more than 0 and at most 3600")
    if device in REAL and mode is not None:
        raise BadInput("--mode", mode, "an emulated board; a real machine is measured as it is set")
    sweep = _real(device, seconds) if device in REAL else _emulated(device, mode, seed)
    console = Console()
    console.print(_table(sweep))
    for line in _lines(sweep):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        run_folder.write_text(out, json.dumps(as_data(sweep), allow_nan=False) + "\n")


def _real(device: str, seconds: float) -> Sweep:
    from fedge.roofline.bench import measure
    from fedge.roofline.rapl import rapl

    counter = rapl() if device == "cpu" else None
    points = measure(device, seconds, time.perf_counter, counter or (lambda: None))
    note = "energy of the processor's packages by RAPL" if counter else NO_METER[device]
    return fit_sweep(device, "as it is set", points, "measured", note)


def _emulated(device: str, mode: str | None, seed: int) -> Sweep:
    from fedge.roofline.emulated import emulate

    spec = find(device)
    basis = basis_of(spec, None)
    row = basis.maxn_row if mode is None else row_of(basis, mode)
    lines = rooflines(basis.constants, basis.modes)
    points = emulate(lines, row, np.random.default_rng(seed))
    note = f"an emulated {spec.name}: nothing was measured; priced by {basis.constants.source}"
    return fit_sweep(spec.name, str(basis.modes[row]), points, lines.label, note)


def _table(sweep: Sweep) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for place, head in enumerate(("kernel", "FLOP/B", "ms", "GFLOP/s", "GB/s", "of the roof", "J")):
        table.add_column(head, justify="left" if place == 0 else "right")
    for point in sweep.points:
        roof_s = max(point.flop * sweep.tau_f, point.bytes * sweep.tau_m)
        figures = (point.work.intensity, 1e3 * point.seconds)
        rates = (1e-9 * point.flop / point.seconds, 1e-9 * point.bytes / point.seconds)
        cells = [number(value) for value in (*figures, *rates)]
        table.add_row(point.kernel, *cells, percent(roof_s / point.seconds, 0), number(point.joules))
    return table


def _lines(sweep: Sweep) -> list[str]:
    gflops, gbps = 1e-9 / sweep.tau_f, 1e-9 / sweep.tau_m
    paces = (
        f"{sweep.device}, {sweep.mode}: {number(gflops)} GFLOP/s, {number(gbps)} GB/s, balance "
        f"{number(sweep.tau_m / sweep.tau_f)} FLOP per byte ({sweep.label}); {percent(sweep.reached, 0)} of the roof "
        "is reached in the median."
    )
    said = [paces]
    line = sweep.roofline
    if line is not None:
        said.append(
            f"{number(1e12 * line.eps_f)} pJ per FLOP, {number(1e12 * line.eps_m)} pJ per byte, {number(line.pi_0_w)} "
            f"W constant power, energy within {percent(sweep.energy_mape)}. {implication(line)}"
        )
    return [*said, f"{sweep.note[0].upper()}{sweep.note[1:]}."]
