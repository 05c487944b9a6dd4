"""Terminal view of a roofline analysis: the modes compared, the choice and the constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.cli.roofline_constants import is_fitted
from experiments.report.quantities import number, percent
from fedge.analysis.roofline.board_constants_fit import activation_intensity
from fedge.analysis.roofline.mode_rooflines import (
    batch_to_work,
)
from fedge.analysis.roofline.roofline_analysis import RooflineAnalysis
from fedge.analysis.roofline.roofline_model import Roofline, describe_balance_side, describe_implication

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def _print_analysis(console: Console, found: RooflineAnalysis) -> None:
    say = _make_printer(console)
    network, asked = found.network, found.options
    work = batch_to_work(found.batch)
    say(
        f"{network.name} on {found.basis.spec.name}, inference in batches of {asked.batch_size}: "
        f"{number(work.flop / 1e9)} GFLOP, {number(work.bytes / 1e6)} MB, {len(network.layers)} layers"
    )
    console.print(modes_table(found))
    shown = found.lines.mode_roofline(found.shown_row)
    say(f"{found.basis.modes[found.shown_row]}: {describe_balance_side(shown, work)}. {describe_implication(shown)}")
    say(
        f"Time-efficient implies energy-efficient in {found.implying_mode_count:,} of {len(found.basis.modes):,} modes."
    )
    say(
        f"Chosen, at most {percent(asked.max_slowdown - 1)} slower than MAXN: "
        f"{found.basis.modes[found.choice.row]}. {found.explanation}"
    )
    say(describe_constants(found))


def describe_constants(found: RooflineAnalysis) -> str:
    """Describe the constants' source, label and errors."""
    constants = found.basis.constants
    said = (
        f"Constants are {found.lines.label}, fitted to {constants.source}, within "
        f"{percent(constants.time_sd_log)} in time and {percent(constants.power_sd_log)} in power (robust spread)."
    )
    if not is_fitted(constants, activation_intensity(found.network)):
        near = " and ".join(f"{one.network} ({one.intensity:.3g})" for one in constants.networks)
        mine = activation_intensity(found.network)
        said += (
            f" This network, of {mine:.3g} FLOP per byte, was not among them; it is taken "
            f"to use the board as {near}, and how far off it is is not known."
        )
    if len(found.network.layers) == 1:
        said += " It is known as a whole, not by layer, so that launching its layers is missing from its time."
    return said


def list_shown_rows(found: RooflineAnalysis) -> list[tuple[str, int]]:
    """Return the label and row of MAXN, the chosen mode and the requested one."""
    rows = [("MAXN", found.choice.maxn_row), ("chosen", found.choice.row)]
    if found.shown_row not in {row for _, row in rows}:
        rows.append(("asked for", found.shown_row))
    return rows


MODE_HEADINGS = (
    "", "mode", "ms", "W", "J", "GFLOP/s", "GB/s", "pJ/FLOP", "pJ/B", "constant W", "balance", "energy balance",
)  # fmt: skip


def format_mode_cells(found: RooflineAnalysis, word: str, row: int) -> list[str]:
    """Format one mode's line: costs, constants and balance points.

    Args:
        found: The analysis.
        word: Label of the mode.
        row: Row of the mode.

    Returns:
        One text per entry of ``MODE_HEADINGS``.
    """
    line: Roofline = found.lines.mode_roofline(row)
    seconds, joules = float(found.batch_times.total_s[row]), float(found.joules[row])
    figures = (1e3 * seconds, joules / seconds, joules, 1e-9 / line.tau_f, 1e-9 / line.tau_m)
    more = (1e12 * line.eps_f, 1e12 * line.eps_m, line.pi_0_w, line.balance, line.energy_balance)
    return [word, str(found.basis.modes[row]), *(number(value) for value in (*figures, *more))]


def modes_table(found: RooflineAnalysis) -> Table:
    """Build a table of MAXN, the chosen mode and the requested one, one column each."""
    from rich.table import Table

    shown = [format_mode_cells(found, word, row) for word, row in list_shown_rows(found)]
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", style="dim", no_wrap=True)
    for word, *_ in shown:
        table.add_column(word, justify="right", overflow="fold")
    for head, *cells in zip(MODE_HEADINGS[1:], *(one[1:] for one in shown), strict=True):
        table.add_row(head, *cells)
    return table


def _make_printer(console: Console) -> Any:
    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return say
