"""The command ``fedge profile``: measure the power modes of a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def profile(
    *,
    workload: Annotated[str, typer.Option(metavar="NAME", help="What a minibatch is, e.g. resnet18-imagenet.")],
    out: Annotated[Path, typer.Option(metavar="TABLE", help="The table to write (CSV); the same again goes on.")],
    board: Annotated[
        str, typer.Option(help="here, or a board of the catalogue, which is emulated: emulated:agx-orin.")
    ] = "here",
    modes: Annotated[str, typer.Option(metavar="N|all", help="How many modes.")] = "50",
    explorer: Annotated[str, typer.Option(help="What picks them.")] = "active",
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per minibatch; the workload's own by default.")
    ] = None,
    limit_s: Annotated[
        float | None, typer.Option(min=1.0, help="Seconds after which a mode is left, settled or not.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes everything random.")] = 0,
    settings: Annotated[
        Path | None, typer.Option(help="The settings of the board at hand; /etc/fedge/node.yaml by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a board's time and power in many modes, each until it has settled; may be stopped and resumed."""
    from experiments.cli.profile_modes import ProfileOptions
    from experiments.cli.profile_modes import profile_board as command

    command(
        ProfileOptions(
            board,
            workload=workload,
            out=out,
            modes=modes,
            explorer=explorer,
            batch_size=batch_size,
            seed=seed,
            settings=settings,
            limit_s=limit_s,
        ),
        as_json,
    )


def register_commands(app: typer.Typer) -> None:
    """Add the commands to ``fedge`` itself."""
    app.command()(profile)
