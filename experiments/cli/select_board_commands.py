"""``fedge select-board``: rank boards and modes for a workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.command_options import InputShape, build_options
from experiments.cli.command_output import check_output, make_console


def register_commands(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("select-board")(select_board)


def select_board(
    *,
    workload: Annotated[
        str, typer.Option(metavar="W", help="A known workload, or any network: see MODEL of `fedge layers`.")
    ],
    max_power_w: Annotated[
        float | None, typer.Option(help="Limit of the board's power while it works, in watts.")
    ] = None,
    max_epoch_s: Annotated[float | None, typer.Option(help="Limit of an epoch's time, in seconds.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of an epoch.")] = 50_000,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Samples per step; by default the workload's own, otherwise 16."),
    ] = None,
    input_shape: InputShape = None,
    by: Annotated[str, typer.Option(help="Objective: time, energy, or both (their product).")] = "time",
    boards: Annotated[
        list[str] | None,
        typer.Option("--board", help="Only this board; may be repeated. By default all boards of the catalogue."),
    ] = None,
    infer: Annotated[bool, typer.Option("--infer", help="Rank for inference instead of training.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the ranking as JSON.")] = None,
) -> None:
    """Rank boards, each in its best mode, by time, energy and fit in memory."""
    parameters = dict(locals())
    from experiments.report.analysis.board_selection_terminal import print_board_selection
    from fedge.analysis import board_selection
    from fedge.client.memory_scaling import estimate_usable_mb

    check_output("--json", json_file, "{")
    limits, others = board_selection.BoardLimits(max_power_w, max_epoch_s), ("max_power_w", "max_epoch_s", "json_file")
    options = build_options(board_selection.BoardSelectionOptions, parameters, others=others, limits=limits)
    selection = board_selection.select_board(options, estimate_usable_mb)
    print_board_selection(make_console(), selection)
    if json_file is not None:
        text = json.dumps(board_selection.board_selection_to_dict(selection), indent=1) + "\n"
        json_file.write_text(text, encoding="utf-8")
