"""``fedge profile``: measure the power modes of a board."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.command_options import AsJson, InputShape, Seed, build_options
from experiments.cli.command_output import make_console, warn

if TYPE_CHECKING:
    from fedge.characterisation.board_profile import ProfileOutcome, ProfilingCampaign
    from fedge.characterisation.profiling_journal import ProfilingHistory


def register_commands(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(profile)


def profile(
    *,
    workload: Annotated[
        str,
        typer.Option(metavar="NAME", help="A workload, e.g. resnet18-imagenet; emulated: any MODEL of `fedge layers`."),
    ],
    out: Annotated[Path, typer.Option(metavar="TABLE", help="Table to write (CSV); an unfinished one is continued.")],
    board: Annotated[
        str, typer.Option(help="here, or a board of the catalogue, which is emulated: emulated:agx-orin.")
    ] = "here",
    modes: Annotated[str, typer.Option(metavar="N|all", help="Number of modes.")] = "50",
    explorer: Annotated[str, typer.Option(help="Explorer that picks the modes.")] = "active",
    batch_size: Annotated[int | None, typer.Option(help="Samples per step; by default the workload's own.")] = None,
    input_shape: InputShape = None,
    infer: Annotated[bool, typer.Option("--infer", help="Profile inference instead of training (emulated).")] = False,
    limit_s: Annotated[
        float | None, typer.Option(min=1.0, help="Seconds after which a mode is abandoned, settled or not.")
    ] = None,
    budget_s: Annotated[
        float | None, typer.Option(min=1.0, help="Seconds of this start; the next start goes on.")
    ] = None,
    seed: Seed = 0,
    settings: Annotated[
        Path | None, typer.Option(help="Settings of the local board; by default /etc/fedge/node.yaml.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a board's time and power in many modes, each until it has settled; can be stopped and resumed."""
    parameters = dict(locals())
    from fedge.characterisation.board_profile import ProfileOptions, profile_board

    options = build_options(ProfileOptions, parameters, others=("as_json",))
    outcome = profile_board(options, note=warn, show_progress=show_progress)
    typer.echo(json.dumps(asdict(outcome)) if as_json else describe_profile(outcome))


def describe_profile(outcome: ProfileOutcome) -> str:
    """Describe the table and its cost in one line."""
    cost = f"{outcome.board_s / 60:.1f} min of board time, {outcome.board_j / 1e3:.2f} kJ"
    if outcome.file is None:
        return f"nothing written: all {outcome.failed} modes failed; {cost}"
    counts = {"not settled": outcome.not_settled, "failed": outcome.failed}
    odd = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"written: {outcome.file}, {outcome.modes} modes{f' ({odd})' if odd else ''}; {cost}"


@contextmanager
def show_progress(campaign: ProfilingCampaign) -> Iterator[Callable[[str], None]]:
    """Show a progress line: mode i of n, minutes left, the mode; silent without a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn

    console = make_console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.fields[place]}"), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=campaign.total, place="")

        def report(text: str) -> None:
            past = campaign.journal.past
            tried = len(past.done) + len(past.failed)
            place = _describe_progress(past, tried, campaign.total)
            progress.update(task, completed=tried, description=text, place=place)

        yield report


def _describe_progress(past: ProfilingHistory, tried: int, total: int) -> str:
    """Describe the position and the remaining minutes of board time at the pace so far."""
    place = f"mode {min(tried + 1, total)} of {total}"
    if not past.done:
        return place
    per_mode_s = sum(mode.seconds for mode in past.done) / len(past.done)
    return f"{place}, {(total - tried) * per_mode_s / 60:.0f} min left"
