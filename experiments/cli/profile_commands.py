"""``fedge profile``: measure the power modes of a board."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_options import build_options
from experiments.cli.command_output import make_progress_console, print_json, print_line, warn
from fedge.phases import begin_phase

if TYPE_CHECKING:
    from fedge.characterisation.board_profile import ProfileOutcome, ProfilingCampaign
    from fedge.characterisation.profiling_journal import ProfilingHistory


def profile(
    *,
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The workload, such as resnet18-imagenet. Here: also a task file (.py). Emulated: also any NETWORK of "
            "`fedge layers`.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="TABLE", help="File to write: the table (CSV). An unfinished one is continued.")
    ],
    board: Annotated[
        str, typer.Option(help="The board: here, or one of the catalogue, which is emulated: emulated:agx-orin.")
    ] = "here",
    modes: cli.ProfiledModes = "50",
    explorer: cli.ModeExplorer = "active",
    batch_size: cli.BatchSize = None,
    input_shape: cli.InputShape = None,
    kind: cli.StepKind = "train",
    max_mode_s: cli.MaxModeTime = None,
    budget_s: cli.ProfilingBudget = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait, within the budget, while a run works with this board.")
    ] = False,
    seed: cli.Seed = 0,
    settings: cli.Settings = None,
    as_json: cli.AsJson = False,
) -> None:
    """Measure a board's time and power in many modes, each until it has settled.

    It can be stopped: the same command goes on.

    Example: fedge profile --board emulated:nano --workload resnet18-imagenet --modes 20 --out nano.csv
    """
    parameters = dict(locals())
    from fedge.characterisation.board_profile import ProfileOptions, profile_board

    options = build_options(ProfileOptions, parameters, others=("as_json",))
    outcome = profile_board(options, note=warn, show_progress=show_progress)
    print_json(outcome) if as_json else print_line(describe_profile(outcome))


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

    console = make_progress_console()
    columns = (BarColumn(), TextColumn("{task.fields[place]}"), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=campaign.total, place="")

        def report(text: str) -> None:
            past = campaign.journal.past
            tried = len(past.done) + len(past.failed)
            place = _describe_progress(past, tried, campaign.total)
            progress.update(task, completed=tried, description=text, place=place)
            begin_phase(f"{place}: {text}")

        yield report


def _describe_progress(past: ProfilingHistory, tried: int, total: int) -> str:
    """Describe the position and the remaining minutes of board time at the pace so far."""
    place = f"mode {min(tried + 1, total)} of {total}"
    if not past.done:
        return place
    per_mode_s = sum(mode.seconds for mode in past.done) / len(past.done)
    return f"{place}, {(total - tried) * per_mode_s / 60:.0f} min left"
