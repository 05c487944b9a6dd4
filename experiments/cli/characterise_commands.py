"""``fedge characterise``, ``characterise-report``, ``characterise-predict``: time and energy of training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="What `fedge characterise` wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("characterise")(characterise)
    app.command("characterise-report")(characterise_report)
    app.command("characterise-predict")(characterise_predict)


def characterise(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a YAML file.")],
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of this sweep (characterised/NAME); the same one goes on."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the points, measure nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Try points once more that failed twice.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure where the time and the energy of training go, over everything that the plan turns; write a report."""
    from experiments.cli.characterise_sweep import characterise as measure
    from experiments.cli.characterise_sweep import list_points

    if listed:
        list_points(plan, out, as_json)
    else:
        measure(plan, out, as_json, again)


def characterise_report(folder: Folder) -> None:
    """Write the report and the findings of a sweep anew, finished or not."""
    from experiments.cli.characterise_report import rewrite_report as command

    command(folder)


def characterise_predict(
    folder: Folder,
    *,
    mode: Annotated[
        list[str] | None,
        typer.Option(metavar="CORES/CPU/GPU/MEMORY", help="A power mode, in MHz, or maxn; more than one is fine."),
    ] = None,
    board: Annotated[str | None, typer.Option(help="Of a sweep over several boards the one.")] = None,
    workload: Annotated[str | None, typer.Option(help="One workload; all of them by default.")] = None,
    kind: Annotated[str, typer.Option(help="train or infer.")] = "train",
    batch_size: Annotated[int | None, typer.Option(help="Samples in a minibatch.")] = None,
    workers: Annotated[int | None, typer.Option(help="Loader workers.")] = None,
    prefetch: Annotated[int | None, typer.Option(help="Batches that each worker makes ahead.")] = None,
    storage: Annotated[str | None, typer.Option(help="A storage of the plan, or an emulated one.")] = None,
    cache: Annotated[str | None, typer.Option(help="The page cache: warm, or dropped (a first epoch).")] = None,
    method: Annotated[str, typer.Option(help="epochs (stalls included), or simple (the paper's).")] = "epochs",
    best: Annotated[str | None, typer.Option(help="The board's best mode by time, energy or balanced.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict an epoch's time, stall and energy at settings that were not tried; without options at those that were."""
    from experiments.cli.characterise_predict import EpochPredictionOptions
    from experiments.cli.characterise_predict import predict as command

    modes = tuple(mode or ())
    loader = (batch_size, workers, prefetch, storage, cache)
    command(EpochPredictionOptions(folder, modes, board, workload, kind, *loader, method, best, as_json))
