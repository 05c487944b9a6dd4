"""``fedge roofline MODEL``: a network on a board's time and energy rooflines, and the mode that follows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cli.command_output import check_output
from experiments.cli.roofline_constants import build_basis, find_mode_row, label_for_network
from experiments.report.analysis.roofline_terminal import _print_analysis
from fedge.analysis.roofline.board_constants import compute_rooflines, constants_to_dict
from fedge.analysis.roofline.board_constants_fit import activation_intensity
from fedge.analysis.roofline.mode_rooflines import (
    batch_energy_j,
    batch_to_work,
    build_roofline_batch,
    compute_batch_times,
)
from fedge.analysis.roofline.roofline_analysis import RooflineAnalysis, RooflineOptions
from fedge.analysis.roofline.slowdown_choice import choose_within_slowdown
from fedge.costs.layers.known_networks import find_known_network
from fedge.costs.layers.network_source import load_network_cost
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    pass

ROOFLINE_FORMAT = "fedge-roofline"


def print_roofline(asked: RooflineOptions, html: Path | None, json_file: Path | None) -> None:
    """Analyse a network, print the result and optionally write it.

    Raises:
        BadInput: If an option, network or table is invalid.
    """
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
    """Compute everything that is printed and drawn.

    Raises:
        BadInput: If an option, network or table is invalid.
    """
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
