"""``fedge replay``: predicts what a finished run would have cost under other conditions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.command_options import AsJson, Jobs, Overrides, Run
from experiments.cli.command_output import make_console, print_json, print_line, show_job_progress, warn
from experiments.cli.run_experiment import interrupt_on_sigterm
from fedge.errors import BadInput

if TYPE_CHECKING:
    from experiments.backends.run_replay import ReplayResult
    from experiments.report.tables import Table


def replay(
    folder: Run,
    policy: Annotated[str | None, typer.Option(help="Name of another policy.")] = None,
    override: Overrides = None,
    draws: Annotated[int, typer.Option(min=1, max=1000, help="Number of draws of the boards' time and power.")] = 8,
    jobs: Jobs = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Predict what a run would have cost with another policy, limit, deadline or fleet, from what it measured.

    Example: fedge replay runs/balanced --policy maxn
    """
    from experiments.backends.run_replay import replay_run

    changes = [*([] if policy is None else [f"policy={policy}"]), *(override or [])]
    if not changes:
        raise BadInput("fedge replay", "nothing that changes", "--policy NAME, or --set KEY=VALUE")
    with interrupt_on_sigterm(), show_job_progress(draws) as report:
        result = replay_run(folder, changes, draws, workers=jobs, report=report, note=warn)
    if as_json:
        print_json(result)
        return
    build_replay_table(result).print(make_console())
    for note in _list_notes(result):
        print_line(note)


def build_replay_table(result: ReplayResult) -> Table:
    """Build a table with one row per figure: of the run, predicted for the replay, and the change."""
    from experiments.report import quantities
    from experiments.report.run.seed_comparison import describe_summary_figure
    from experiments.report.tables import Table, number_cell, text_cell

    rows = []
    for figure in result.figures:
        shown = describe_summary_figure(figure.name)
        actual, predicted = (shown.format(value)[0] for value in (figure.actual, figure.predicted))
        interval = (
            "" if figure.low is None or figure.high is None else " to ".join(shown.format(figure.low, figure.high))
        )
        if shown.unit == "%":
            change = quantities.percent(figure.predicted - figure.actual).replace("%", "points")
        else:
            change = quantities.percent(figure.predicted / figure.actual - 1)
        rows.append(
            (
                text_cell(shown.heading),
                number_cell(actual, figure.actual),
                number_cell(predicted, figure.predicted),
                number_cell(interval),
                number_cell(change),
            )
        )
    heads = ("figure", "run", "replay", "90 % interval", "change")
    return Table("replay", heads, tuple(rows), title=f"{Path(result.run).name} with {', '.join(result.changes)}")


def _list_notes(result: ReplayResult) -> list[str]:
    notes = [f"{result.measured} boards from their own measurements in {result.rounds} rounds, {result.draws} draws"]
    if result.siblings:
        notes.append(f"{result.siblings} boards from measurements of another board of their kind")
    if result.modelled:
        notes.append(
            f"{result.modelled} boards of kinds that the run had not: by their cost profile, without its errors"
        )
    if result.warning:
        notes.append(f"warning: {result.warning}")
    return [*notes, "the replay's figures are estimated; `fedge run` measures them"]
