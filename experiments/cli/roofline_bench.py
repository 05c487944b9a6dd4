"""``fedge roofline bench``: micro-benchmarks on this machine or an emulated board, and fitted constants."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.cli.command_output import check_output
from experiments.cli.roofline_constants import build_basis, find_mode_row
from experiments.report.quantities import number, percent
from fedge.analysis.roofline.board_constants import compute_rooflines
from fedge.analysis.roofline.pagoda_fit import RooflineSweep, fit_sweep, sweep_to_dict
from fedge.analysis.roofline.roofline_model import describe_implication
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from rich.table import Table

JSON_START = '{"device"'
REAL_DEVICES = ("cpu", "cuda")
NO_METER_NOTES = {
    "cpu": "energy is not known: this machine shows no energy counter (RAPL) that this user may read",
    "cuda": "energy is not known: no counter of the GPU's energy is read here",
}


def run_bench(device: str, seconds: float, mode: str | None, seed: int, out: Path | None) -> None:
    """Measure, print and write the constants.

    Args:
        device: ``cpu``, ``cuda`` or the name of a board to emulate.
        seconds: Approximate duration of a real measurement.
        mode: Power mode of an emulated board.
        seed: Seed of an emulated board.
        out: File for the sweep, or None.

    Raises:
        BadInput: If an option is invalid.
    """
    from rich.console import Console

    check_output("--out", out, JSON_START)
    if not 0.0 < seconds <= 3600.0:
        raise BadInput("--seconds", f"{seconds:g}", "more than 0 and at most 3600")
    if device in REAL_DEVICES and mode is not None:
        raise BadInput("--mode", mode, "an emulated board; a real machine is measured as it is set")
    sweep = _bench_real(device, seconds) if device in REAL_DEVICES else _bench_emulated(device, mode, seed)
    console = Console()
    console.print(_sweep_table(sweep))
    for line in _describe_sweep(sweep):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        run_folder.write_text(out, json.dumps(sweep_to_dict(sweep), allow_nan=False) + "\n")


def _bench_real(device: str, seconds: float) -> RooflineSweep:
    from fedge.analysis.roofline.microbenchmark import open_package_meter, run_microbenchmark

    counter = open_package_meter() if device == "cpu" else None
    points = run_microbenchmark(device, seconds, time.perf_counter, counter or (lambda: None))
    note = "energy of the processor's packages by RAPL" if counter else NO_METER_NOTES[device]
    return fit_sweep(device, mode="as it is set", points=points, label="measured", note=note)


def _bench_emulated(device: str, mode: str | None, seed: int) -> RooflineSweep:
    from fedge.analysis.roofline.microbenchmark import emulate_microbenchmark

    spec = find(device)
    basis = build_basis(spec, None)
    row = basis.maxn_row if mode is None else find_mode_row(basis, mode)
    lines = compute_rooflines(basis.constants, basis.modes)
    points = emulate_microbenchmark(lines, row, np.random.default_rng(seed))
    note = f"an emulated {spec.name}: nothing was measured; priced by {basis.constants.source}"
    return fit_sweep(spec.name, mode=str(basis.modes[row]), points=points, label=lines.label, note=note)


def _sweep_table(sweep: RooflineSweep) -> Table:
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


def _describe_sweep(sweep: RooflineSweep) -> list[str]:
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
            f"W constant power, energy within {percent(sweep.energy_mape)}. {describe_implication(line)}"
        )
    return [*said, f"{sweep.note[0].upper()}{sweep.note[1:]}."]
