"""Terminal views of a roofline analysis (modes, choice, constants) and of a micro-benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.report.quantities import number, percent
from experiments.report.tables import Cell, Table, percent_cell, print_lines, text_cell, value_cell
from fedge.analysis.roofline.board_constants import activation_intensity
from fedge.analysis.roofline.microbenchmark import RooflineSweep
from fedge.analysis.roofline.roofline_analysis import RooflineAnalysis, is_fitted
from fedge.analysis.roofline.roofline_model import Roofline, batch_to_work, describe_balance_side, describe_implication

if TYPE_CHECKING:
    from rich.console import Console


def print_analysis(console: Console, analysis: RooflineAnalysis) -> None:
    """Print the network, the modes compared, the choice and the constants."""
    network, options = analysis.network, analysis.options
    work = batch_to_work(analysis.batch)
    counts = f"{number(work.flop / 1e9)} GFLOP, {number(work.bytes / 1e6)} MB, {len(network.layers)} layers"
    head = f"{network.name} on {analysis.basis.spec.name}, inference in batches of {options.batch_size}"
    print_lines(console, [f"{head}: {counts}"])
    modes_table(analysis).print(console)
    modes, shown = analysis.basis.modes, analysis.lines.mode_roofline(analysis.shown_row)
    limit = f"at most {percent(options.max_slowdown - 1)} slower than MAXN"
    lines = (
        f"{modes[analysis.shown_row]}: {describe_balance_side(shown, work)}. {describe_implication(shown)}",
        describe_implying_modes(analysis),
        f"Chosen, {limit}: {modes[analysis.choice.row]}. {analysis.explanation}",
        describe_constants(analysis),
    )
    print_lines(console, lines)


def describe_implying_modes(analysis: RooflineAnalysis) -> str:
    """Say in how many modes time-efficient implies energy-efficient."""
    count, total = analysis.implying_mode_count, len(analysis.basis.modes)
    return f"Time-efficient implies energy-efficient in {count:,} of {total:,} modes."


def describe_constants(analysis: RooflineAnalysis) -> str:
    """Describe the constants' source, label and errors."""
    constants = analysis.basis.constants
    text = (
        f"Constants are {analysis.lines.label}, fitted to {constants.source}, within "
        f"{percent(constants.time_sd_log)} in time and {percent(constants.power_sd_log)} in power (robust spread)."
    )
    if not is_fitted(constants, activation_intensity(analysis.network)):
        near = " and ".join(f"{one.network} ({one.intensity:.3g})" for one in constants.networks)
        mine = activation_intensity(analysis.network)
        text += (
            f" This network, of {mine:.3g} FLOP per byte, was not among them; its rooflines are drawn as if it "
            f"used the board like {near}. {analysis.caution}"
        )
    if len(analysis.network.layers) == 1:
        text += " Its layers are unknown, so its time does not include launching them."
    return text


def list_shown_rows(analysis: RooflineAnalysis) -> list[tuple[str, int]]:
    """Return the label and row of MAXN, the chosen mode and the requested one."""
    rows = [("MAXN", analysis.choice.maxn_row), ("chosen", analysis.choice.row)]
    if analysis.shown_row not in {row for _, row in rows}:
        rows.append(("requested", analysis.shown_row))
    return rows


MODE_QUANTITIES = (
    "ms", "W", "J", "GFLOP/s", "GB/s", "pJ/FLOP", "pJ/B", "constant W", "balance, FLOP/B", "energy balance, FLOP/B",
)  # fmt: skip


def list_mode_values(analysis: RooflineAnalysis, row: int) -> list[float]:
    """Return one mode's costs, constants and balance points, one value per entry of ``MODE_QUANTITIES``."""
    line: Roofline = analysis.lines.mode_roofline(row)
    seconds, joules = float(analysis.batch_times.total_s[row]), float(analysis.joules[row])
    costs = (1e3 * seconds, joules / seconds, joules)
    constants = (1e-9 / line.tau_f, 1e-9 / line.tau_m, 1e12 * line.eps_f, 1e12 * line.eps_m, line.pi_0_w)
    return [float(value) for value in (*costs, *constants, line.balance, line.energy_balance)]


def modes_table(analysis: RooflineAnalysis) -> Table:
    """Build a table of MAXN, the chosen mode and the requested one, one column each."""
    shown = list_shown_rows(analysis)
    modes = (Cell(str(analysis.basis.modes[row]).removesuffix(" MHz"), numeric=True) for _, row in shown)
    columns = [list_mode_values(analysis, row) for _, row in shown]
    rows = [(text_cell("mode, MHz"), *modes)]
    for quantity, *values in zip(MODE_QUANTITIES, *columns, strict=True):
        rows.append((text_cell(quantity), *(value_cell(value, number) for value in values)))
    return Table("roofline-constants", ("quantity", *(word for word, _ in shown)), tuple(rows))


def print_sweep(console: Console, sweep: RooflineSweep) -> None:
    """Print a micro-benchmark: its kernels, and the constants fitted to them."""
    sweep_table(sweep).print(console)
    gflops, gbps = 1e-9 / sweep.tau_f, 1e-9 / sweep.tau_m
    balance = f"balance {number(sweep.tau_m / sweep.tau_f)} FLOP per byte ({sweep.label})"
    reached = f"{percent(sweep.reached, 0)} of the roof is reached in the median"
    rates = f"{number(gflops)} GFLOP/s, {number(gbps)} GB/s"
    lines = [f"{sweep.device}, {sweep.mode}: {rates}, {balance}; {reached}."]
    line = sweep.roofline
    if line is not None:
        lines.append(
            f"{number(1e12 * line.eps_f)} pJ per FLOP, {number(1e12 * line.eps_m)} pJ per byte, {number(line.pi_0_w)} "
            f"W constant power, energy within {percent(sweep.energy_mape)}. {describe_implication(line)}"
        )
    print_lines(console, [*lines, f"{sweep.note[0].upper()}{sweep.note[1:]}."])


def sweep_table(sweep: RooflineSweep) -> Table:
    """Build a table of a micro-benchmark's kernels."""
    heads = ("kernel", "FLOP/B", "ms", "GFLOP/s", "GB/s", "of the roof", "J")
    rows = []
    for point in sweep.points:
        reached = max(point.flop * sweep.tau_f, point.bytes * sweep.tau_m) / point.seconds
        figures = (point.work.intensity, 1e3 * point.seconds)
        rates = (1e-9 * point.flop / point.seconds, 1e-9 * point.bytes / point.seconds)
        rows.append((
            text_cell(point.kernel),
            *(value_cell(value, number) for value in (*figures, *rates)),
            percent_cell(reached, 0),
            value_cell(point.joules, number, "J"),
        ))  # fmt: skip
    return Table("kernels", heads, tuple(rows))
