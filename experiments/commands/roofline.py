"""``fedge roofline MODEL``: a network on a board's time and energy rooflines, and the mode that they choose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.commands.outputs import check_output
from experiments.commands.roofline_constants import Basis, basis_of, estimated_for, row_of, was_fitted
from experiments.report.quantities import number, percent
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.layers.known import known_network
from fedge.layers.network import NetworkCost
from fedge.layers.source import network_of
from fedge.pareto import front_mask
from fedge.roofline.board import as_data, rooflines
from fedge.roofline.choice import Choice, choose, why
from fedge.roofline.fit import intensity_of
from fedge.roofline.model import Roofline, implication, side_of
from fedge.roofline.surface import Batch, Rooflines, Times, batch_of, energy_j, times, work_of
from fedge.telemetry import run_folder
from fedge.types import Floats

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FORMAT = "fedge-roofline"


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were typed."""

    model: str
    device: str
    mode: str | None = None
    batch_size: int = 1
    max_slowdown: float = 1.05
    tables: Path | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """A network's batch on every mode's rooflines, and what follows; arrays are of shape (modes,)."""

    asked: Asked
    network: NetworkCost
    basis: Basis
    lines: Rooflines
    batch: Batch
    spent: Times
    joules: Floats
    choice: Choice
    shown_row: int
    """The mode that was asked for, else the chosen one."""

    @property
    def front(self) -> list[int]:
        """The rows from which none is both faster and cheaper, from fastest to slowest."""
        rows = np.flatnonzero(front_mask(self.spent.total_s, self.joules))
        return [int(row) for row in rows[np.argsort(self.spent.total_s[rows])]]

    @property
    def implied(self) -> int:
        """In how many modes time-efficient implies energy-efficient."""
        return sum(self.lines.at(row).time_implies_energy for row in range(len(self.basis.modes)))

    @property
    def sentence(self) -> str:
        """Why the chosen mode is chosen."""
        maxn = self.lines.at(self.choice.maxn_row)
        return why(self.choice, self.basis.modes, maxn, self.batch, self.spent)


def roofline(asked: Asked, html: Path | None, json_file: Path | None) -> None:
    """Analyse, print, and write what is asked for; raises ``BadInput``."""
    from rich.console import Console

    check_output("--html", html, "<!doctype html")
    check_output("--json", json_file, f'{{"format": "{FORMAT}"')
    found = analyse(asked)
    _show(Console(), found)
    if json_file is not None:
        run_folder.write_text(json_file, json.dumps(_data(found), allow_nan=False) + "\n")
    if html is not None:
        from experiments.report.roofline.page import write_page

        write_page(found, html)


def analyse(asked: Asked) -> Analysis:
    """Everything that is printed and drawn; raises ``BadInput`` for what cannot be meant."""
    if asked.batch_size < 1:
        raise BadInput("--batch", str(asked.batch_size), "1 or more samples")
    spec = find(asked.device)
    network = known_network(asked.model) or network_of(asked.model)
    basis = basis_of(spec, asked.tables)
    intensity = intensity_of(network)
    lines = rooflines(estimated_for(basis.constants, intensity), basis.modes, intensity)
    batch = batch_of(network, asked.batch_size)
    spent = times(lines, batch)
    joules = energy_j(lines, batch, spent.total_s)
    choice = choose(basis.modes, spent.total_s, joules, basis.maxn_row, asked.max_slowdown)
    row = choice.row if asked.mode is None else row_of(basis, asked.mode)
    return Analysis(asked, network, basis, lines, batch, spent, joules, choice, row)


# Terminal -------------------------------------------------------------------------------------------------------------


def _show(console: Console, found: Analysis) -> None:
    say = _sayer(console)
    network, asked = found.network, found.asked
    work = work_of(found.batch)
    say(
        f"{network.name} on {found.basis.spec.name}, inference in batches of {asked.batch_size}: "
        f"{number(work.flop / 1e9)} GFLOP, {number(work.bytes / 1e6)} MB, {len(network.layers)} layers"
    )
    console.print(modes_table(found))
    shown = found.lines.at(found.shown_row)
    say(f"{found.basis.modes[found.shown_row]}: {side_of(shown, work)}. {implication(shown)}")
    say(f"Time-efficient implies energy-efficient in {found.implied:,} of {len(found.basis.modes):,} modes.")
    say(
        f"Chosen, at most {percent(asked.max_slowdown - 1)} slower than MAXN: "
        f"{found.basis.modes[found.choice.row]}. {found.sentence}"
    )
    say(labels_of(found))


def labels_of(found: Analysis) -> str:
    """Where the constants come from, their label, and how far they are off."""
    constants = found.basis.constants
    said = (
        f"Constants are {found.lines.label}, fitted to {constants.source}, within "
        f"{percent(constants.time_sd_log)} in time and {percent(constants.power_sd_log)} in power (robust spread)."
    )
    if not was_fitted(constants, intensity_of(found.network)):
        near = " and ".join(f"{one.network} ({one.intensity:.3g})" for one in constants.networks)
        mine = intensity_of(found.network)
        said += (
            f" This network, of {mine:.3g} FLOP per byte, was not among them; it is taken "
            f"to use the board as {near}, and how far off it is is not known."
        )
    if len(found.network.layers) == 1:
        said += " It is known as a whole, not by layer, so that launching its layers is missing from its time."
    return said


def rows_shown(found: Analysis) -> list[tuple[str, int]]:
    """MAXN, the chosen mode, and the one asked for, each with its word."""
    rows = [("MAXN", found.choice.maxn_row), ("chosen", found.choice.row)]
    if found.shown_row not in {row for _, row in rows}:
        rows.append(("asked for", found.shown_row))
    return rows


HEADS = (
    "", "mode", "ms", "W", "J", "GFLOP/s", "GB/s", "pJ/FLOP", "pJ/B", "constant W", "balance", "energy balance",
)  # fmt: skip


def cells_of(found: Analysis, word: str, row: int) -> list[str]:
    """One mode's line: what it takes, its five constants, and its two balance points in FLOP per byte."""
    line: Roofline = found.lines.at(row)
    seconds, joules = float(found.spent.total_s[row]), float(found.joules[row])
    figures = (1e3 * seconds, joules / seconds, joules, 1e-9 / line.tau_f, 1e-9 / line.tau_m)
    more = (1e12 * line.eps_f, 1e12 * line.eps_m, line.pi_0_w, line.balance, line.energy_balance)
    return [word, str(found.basis.modes[row]), *(number(value) for value in (*figures, *more))]


def modes_table(found: Analysis) -> Table:
    """MAXN beside the chosen mode and the one asked for."""
    from rich.table import Table

    shown = [cells_of(found, word, row) for word, row in rows_shown(found)]
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", style="dim", no_wrap=True)
    for word, *_ in shown:
        table.add_column(word, justify="right", overflow="fold")
    for head, *cells in zip(HEADS[1:], *(one[1:] for one in shown), strict=True):
        table.add_row(head, *cells)
    return table


def _sayer(console: Console) -> Any:
    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return say


# JSON -----------------------------------------------------------------------------------------------------------------


def _data(found: Analysis) -> dict[str, Any]:
    work = work_of(found.batch)
    return {
        "format": FORMAT,
        "device": found.basis.spec.name,
        "network": found.network.name,
        "batch_size": found.asked.batch_size,
        "label": found.lines.label,
        "source": found.basis.constants.source,
        "work": {**asdict(work), "intensity": work.intensity, "layers": len(found.network.layers)},
        "constants": as_data(found.basis.constants),
        "maxn": _mode_data(found, found.choice.maxn_row),
        "chosen": _mode_data(found, found.choice.row),
        "asked": _mode_data(found, found.shown_row),
        "max_slowdown": found.asked.max_slowdown,
        "slowdown": found.choice.slowdown,
        "saving": found.choice.saving,
        "why": found.sentence,
        "time_implies_energy": {"modes": found.implied, "of": len(found.basis.modes)},
        "front": _front_data(found, found.front),
    }


def _mode_data(found: Analysis, row: int) -> dict[str, Any]:
    line = found.lines.at(row)
    return {
        "mode": asdict(found.basis.modes[row]),
        "step_s": float(found.spent.total_s[row]),
        "energy_j": float(found.joules[row]),
        "gpu_s": float(found.spent.gpu_s[row]),
        "launch_s": float(found.spent.launch_s[row]),
        "roofline": asdict(line),
        "balance": line.balance,
        "energy_balance": line.energy_balance,
        "time_implies_energy": line.time_implies_energy,
    }


def _front_data(found: Analysis, rows: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "mode": asdict(found.basis.modes[row]),
            "step_s": float(found.spent.total_s[row]),
            "energy_j": float(found.joules[row]),
        }
        for row in rows
    ]
