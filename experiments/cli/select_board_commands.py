"""``fedge select-board``: rank boards and modes for a workload."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.cli.command_options import AsJson, InputShape, MaxPower, OutFile, StepKind, build_options
from experiments.cli.command_output import check_output, make_console, print_json, write_json


def select_board(
    *,
    workload: Annotated[
        str, typer.Option(metavar="NAME", help="The workload: a known one, or any NETWORK of `fedge layers`.")
    ],
    max_power_w: MaxPower = None,
    max_epoch_s: Annotated[float | None, typer.Option(help="Limit of an epoch's time, in seconds.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of an epoch.")] = 50_000,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples per step; by default the workload's own, otherwise 16.")
    ] = None,
    input_shape: InputShape = None,
    objective: Annotated[
        str, typer.Option("--objective", help="What to optimise: time, energy, or both (their product).")
    ] = "time",
    boards: Annotated[
        list[str] | None,
        typer.Option("--board", help="The board; may be repeated. By default all boards of the catalogue."),
    ] = None,
    kind: StepKind = "train",
    out: OutFile = None,
    as_json: AsJson = False,
) -> None:
    """Rank boards, each in its best mode, by time, energy and fit in memory.

    Example: fedge select-board --workload resnet50 --batch-size 64 --max-power-w 15
    """
    parameters = dict(locals())
    from experiments.report.analysis.network_terminal import print_board_selection
    from fedge.analysis import board_selection
    from fedge.client.memory_scaling import estimate_usable_mb

    check_output("--out", out, "{")
    limits = board_selection.BoardLimits(max_power_w, max_epoch_s)
    others = ("max_power_w", "max_epoch_s", "out", "as_json")
    options = build_options(board_selection.BoardSelectionOptions, parameters, others=others, limits=limits)
    selection = board_selection.select_board(options, estimate_usable_mb)
    if as_json:
        print_json(board_selection.board_selection_to_dict(selection))
    else:
        print_board_selection(make_console(), selection)
    write_json(out, board_selection.board_selection_to_dict(selection))
