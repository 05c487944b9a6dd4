"""``fedge roofline MODEL``: a network on a board's time and energy rooflines, and the mode that they choose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.cli.command_output import check_output
from experiments.cli.roofline_constants import RooflineBasis, build_basis, find_mode_row, is_fitted, label_for_network
from experiments.report.quantities import number, percent
from fedge.analysis.roofline.board_constants import compute_rooflines, constants_to_dict
from fedge.analysis.roofline.board_constants_fit import activation_intensity
from fedge.analysis.roofline.mode_rooflines import (
    BatchDurations,
    ModeRooflines,
    RooflineBatch,
    batch_energy_j,
    batch_to_work,
    build_roofline_batch,
    compute_batch_times,
)
from fedge.analysis.roofline.roofline_model import Roofline, describe_balance_side, describe_implication
from fedge.analysis.roofline.slowdown_choice import SlowdownChoice, choose_within_slowdown, explain_choice
from fedge.costs.layers.known_networks import find_known_network
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_source import load_network_cost
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.pareto import front_mask
from fedge.telemetry import run_folder
from fedge.types import Floats

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

ROOFLINE_FORMAT = "fedge-roofline"


@dataclass(frozen=True, slots=True)
class RooflineOptions:
    """The options as they were typed."""

    model: str
    device: str
    mode: str | None = None
    batch_size: int = 1
    max_slowdown: float = 1.05
    tables: Path | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RooflineAnalysis:
    """A network's batch on every mode's rooflines, and what follows; arrays are of shape (modes,)."""

    options: RooflineOptions
    network: NetworkCost
    basis: RooflineBasis
    lines: ModeRooflines
    batch: RooflineBatch
    batch_times: BatchDurations
    joules: Floats
    choice: SlowdownChoice
    shown_row: int
    """The mode that was asked for, else the chosen one."""

    @property
    def front(self) -> list[int]:
        """The rows from which none is both faster and cheaper, from fastest to slowest."""
        rows = np.flatnonzero(front_mask(self.batch_times.total_s, self.joules))
        return [int(row) for row in rows[np.argsort(self.batch_times.total_s[rows])]]

    @property
    def implying_mode_count(self) -> int:
        """In how many modes time-efficient implies energy-efficient."""
        return sum(self.lines.mode_roofline(row).time_implies_energy for row in range(len(self.basis.modes)))

    @property
    def explanation(self) -> str:
        """Why the chosen mode is chosen."""
        maxn = self.lines.mode_roofline(self.choice.maxn_row)
        return explain_choice(
            self.choice, modes=self.basis.modes, roofline=maxn, batch=self.batch, spent=self.batch_times
        )


def print_roofline(asked: RooflineOptions, html: Path | None, json_file: Path | None) -> None:
    """Analyse, print, and write what is asked for; raises ``BadInput``."""
    from rich.console import Console

    check_output("--html", html, "<!doctype html")
    check_output("--json", json_file, f'{{"format": "{ROOFLINE_FORMAT}"')
    found = analyse_roofline(asked)
    _print_analysis(Console(), found)
    if json_file is not None:
        run_folder.write_text(json_file, json.dumps(_analysis_data(found), allow_nan=False) + "\n")
    if html is not None:
        from experiments.report.analysis.roofline_page import write_roofline_page

        write_roofline_page(found, html)


def analyse_roofline(asked: RooflineOptions) -> RooflineAnalysis:
    """Everything that is printed and drawn; raises ``BadInput`` for what cannot be meant."""
    if asked.batch_size < 1:
        raise BadInput("--batch", str(asked.batch_size), "1 or more samples")
    spec = find(asked.device)
    network = find_known_network(asked.model) or load_network_cost(asked.model)
    basis = build_basis(spec, asked.tables)
    intensity = activation_intensity(network)
    lines = compute_rooflines(label_for_network(basis.constants, intensity), basis.modes, intensity)
    batch = build_roofline_batch(network, asked.batch_size)
    spent = compute_batch_times(lines, batch)
    joules = batch_energy_j(lines, batch, spent.total_s)
    choice = choose_within_slowdown(
        basis.modes, time_s=spent.total_s, joules=joules, maxn_row=basis.maxn_row, max_slowdown=asked.max_slowdown
    )
    row = choice.row if asked.mode is None else find_mode_row(basis, asked.mode)
    return RooflineAnalysis(
        asked,
        network=network,
        basis=basis,
        lines=lines,
        batch=batch,
        batch_times=spent,
        joules=joules,
        choice=choice,
        shown_row=row,
    )


# Terminal -------------------------------------------------------------------------------------------------------------


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
    """Where the constants come from, their label, and how far they are off."""
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
    """MAXN, the chosen mode, and the one asked for, each with its word."""
    rows = [("MAXN", found.choice.maxn_row), ("chosen", found.choice.row)]
    if found.shown_row not in {row for _, row in rows}:
        rows.append(("asked for", found.shown_row))
    return rows


MODE_HEADINGS = (
    "", "mode", "ms", "W", "J", "GFLOP/s", "GB/s", "pJ/FLOP", "pJ/B", "constant W", "balance", "energy balance",
)  # fmt: skip


def format_mode_cells(found: RooflineAnalysis, word: str, row: int) -> list[str]:
    """One mode's line: what it takes, its five constants, and its two balance points in FLOP per byte."""
    line: Roofline = found.lines.mode_roofline(row)
    seconds, joules = float(found.batch_times.total_s[row]), float(found.joules[row])
    figures = (1e3 * seconds, joules / seconds, joules, 1e-9 / line.tau_f, 1e-9 / line.tau_m)
    more = (1e12 * line.eps_f, 1e12 * line.eps_m, line.pi_0_w, line.balance, line.energy_balance)
    return [word, str(found.basis.modes[row]), *(number(value) for value in (*figures, *more))]


def modes_table(found: RooflineAnalysis) -> Table:
    """MAXN beside the chosen mode and the one asked for."""
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


# JSON -----------------------------------------------------------------------------------------------------------------


def _analysis_data(found: RooflineAnalysis) -> dict[str, Any]:
    work = batch_to_work(found.batch)
    return {
        "format": ROOFLINE_FORMAT,
        "device": found.basis.spec.name,
        "network": found.network.name,
        "batch_size": found.options.batch_size,
        "label": found.lines.label,
        "source": found.basis.constants.source,
        "work": {**asdict(work), "intensity": work.intensity, "layers": len(found.network.layers)},
        "constants": constants_to_dict(found.basis.constants),
        "maxn": _mode_data(found, found.choice.maxn_row),
        "chosen": _mode_data(found, found.choice.row),
        "asked": _mode_data(found, found.shown_row),
        "max_slowdown": found.options.max_slowdown,
        "slowdown": found.choice.slowdown,
        "saving": found.choice.saving,
        "why": found.explanation,
        "time_implies_energy": {"modes": found.implying_mode_count, "of": len(found.basis.modes)},
        "front": _front_data(found, found.front),
    }


def _mode_data(found: RooflineAnalysis, row: int) -> dict[str, Any]:
    line = found.lines.mode_roofline(row)
    return {
        "mode": asdict(found.basis.modes[row]),
        "step_s": float(found.batch_times.total_s[row]),
        "energy_j": float(found.joules[row]),
        "gpu_s": float(found.batch_times.gpu_s[row]),
        "launch_s": float(found.batch_times.launch_s[row]),
        "roofline": asdict(line),
        "balance": line.balance,
        "energy_balance": line.energy_balance,
        "time_implies_energy": line.time_implies_energy,
    }


def _front_data(found: RooflineAnalysis, rows: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "mode": asdict(found.basis.modes[row]),
            "step_s": float(found.batch_times.total_s[row]),
            "energy_j": float(found.joules[row]),
        }
        for row in rows
    ]
