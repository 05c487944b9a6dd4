"""The command ``fedge select-board``: rank boards and modes for a workload."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer


def register_commands(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("select-board")(select_board)


def select_board(
    *,
    workload: Annotated[
        str, typer.Option(metavar="W", help="A known workload, or any network: see MODEL of `fedge layers`.")
    ],
    max_power_w: Annotated[float | None, typer.Option(help="Watts that the board may draw at work.")] = None,
    max_epoch_s: Annotated[float | None, typer.Option(help="Seconds that an epoch may take.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of an epoch.")] = 50_000,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of a minibatch; the workload's own, or 16, by default.")
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option("--input", metavar="SHAPE", help="One sample's shape, as 3x224x224.")
    ] = None,
    by: Annotated[str, typer.Option(help="What ranks: time, energy, or both (their product).")] = "time",
    board: Annotated[
        list[str] | None, typer.Option(help="Only this board; may be repeated. All of the catalogue by default.")
    ] = None,
    infer: Annotated[bool, typer.Option("--infer", help="Inference in place of training.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the ranking as JSON.")] = None,
) -> None:
    """Rank boards, each in its best mode, by time, energy and fit in memory."""
    from rich.console import Console

    from experiments.cli.command_output import check_output
    from experiments.cli.select_board import BoardSelectionOptions
    from experiments.cli.select_board import print_board_selection as command
    from fedge.analysis.board_selection import BoardLimits
    from fedge.costs.layers.network_source import parse_input_shape
    from fedge.errors import BadInput

    for option, value in (("--max-power-w", max_power_w), ("--max-epoch-s", max_epoch_s)):
        if value is not None and not 0 < value < math.inf:
            raise BadInput(option, f"{value:g}", "a finite number above 0")
    check_output("--json", json_file, "{")
    limits = BoardLimits(max_power_w, max_epoch_s)
    asked = BoardSelectionOptions(
        workload,
        batch_size=batch,
        input_shape=parse_input_shape(input_shape),
        samples=samples,
        limits=limits,
        by=by,
        boards=tuple(board or ()),
        infer=infer,
        json_file=json_file,
    )
    command(asked, Console())
