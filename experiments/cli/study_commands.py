"""``fedge study``: the value of mode choice, on one board under deadlines and on a whole fleet, against an oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

from experiments.cli.command_options import (
    ChartPage,
    Overrides,
    RowsFile,
    TableBatchSize,
    TableDevice,
    TableWorkload,
    build_options,
)
from experiments.cli.command_output import check_output, make_console, show_progress, write_json, write_output
from fedge.errors import BadInput

if TYPE_CHECKING:
    from experiments.backends.study_backend import FleetStudyOptions
    from fedge.studies.mode_choice_options import ModeChoiceOptions

app = typer.Typer(
    help="Evaluate the choice of modes against an oracle that knows the true times and powers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

R = TypeVar("R")

Rounds = Annotated[int, typer.Option(min=1, help="Rounds of every run.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of repetitions, with seeds from 1.")]


class _Study(Protocol[R]):
    """A grid of runs."""

    @property
    def jobs(self) -> Sequence[object]: ...

    def run(self, report: Callable[[str], None]) -> list[R]: ...


@app.command("mode-choice")
def mode_choice(
    *,
    table: Annotated[
        Path, typer.Option(metavar="TABLE", help="Measured table that serves as the board's truth (CSV).")
    ],
    ratios: Annotated[
        list[float] | None,
        typer.Option(
            "--deadline-ratio",
            help="Deadlines are drawn from 1 to this multiple of the fastest round; may be repeated.",
        ),
    ] = None,
    rounds: Rounds = 100,
    policies: Annotated[
        str, typer.Option("--policy", help="Policies, separated by commas: fedge, bofl, maxn, oracle.")
    ] = "fedge",
    seeds: Seeds = 10,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps per round; by default the published number of the board.")
    ] = None,
    device: TableDevice = None,
    workload: TableWorkload = None,
    batch_size: TableBatchSize = None,
    json_file: RowsFile = None,
    html: ChartPage = None,
) -> None:
    """Study one board with a new deadline in every round: energy against an oracle and MAXN while modes are learnt."""
    parameters = dict(locals())
    from fedge.studies.mode_choice_options import ModeChoiceOptions

    options = build_options(ModeChoiceOptions, parameters, others=("json_file", "html"))
    study_mode_choice(options, json_file, html)


def study_mode_choice(options: ModeChoiceOptions, json_file: Path | None, html: Path | None) -> None:
    """Run the study, print a table, and optionally write JSON and a page.

    Raises:
        BadInput: If the input is invalid; raised before any run.
    """
    from experiments.report.predictors.choice_terminal import print_mode_choice
    from fedge.studies.mode_choice_options import build_mode_choice_study

    _check_outputs(json_file, html)
    study = build_mode_choice_study(options)
    results = _run_study(study)
    print_mode_choice(make_console(), study.table, study.steps, results)
    for note in study.notes:
        make_console().print(f"note: {note}", soft_wrap=True, highlight=False, markup=False)
    write_json(json_file, [result.row for result in results])
    if html is not None:
        from experiments.report.predictors.mode_choice_page import write_mode_choice_page

        write_output("--html", html, lambda path: write_mode_choice_page(study.table, study.steps, results, path))


@app.command("fleet")
def fleet(
    config: Annotated[Path, typer.Argument(metavar="FLEET", help="YAML file of an experiment; nothing is trained.")],
    *,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Policies, separated by commas; by default the file's own. Known: balanced, least-energy, "
            "energy-budget, fastest, fastest-within-power, least-energy-within-deadline, maxn, preset:NAME, or your "
            "own module:function.",
        ),
    ] = None,
    rounds: Rounds = 20,
    seeds: Seeds = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of every board per round; by default about 30 s at MAXN.")
    ] = None,
    overrides: Overrides = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="coordinator: every board plans and learns by itself. columns: boards of a kind share what they "
            "learn, for fleets of up to a million. By default columns from 2,000 boards on."
        ),
    ] = None,
    json_file: RowsFile = None,
    html: ChartPage = None,
) -> None:
    """Study a fleet without training: rounds and energy against an oracle, all boards at MAXN, and the best presets."""
    parameters = dict(locals())
    from experiments.backends.study_backend import FleetStudyOptions

    options = build_options(FleetStudyOptions, parameters, others=("json_file", "html"))
    study_fleet(options, json_file, html)


def study_fleet(options: FleetStudyOptions, json_file: Path | None, html: Path | None) -> None:
    """Run the study, print a table, and optionally write JSON and a page.

    Raises:
        BadInput: If the input is invalid; raised before any run.
    """
    from experiments.backends.study_backend import build_fleet_study
    from experiments.report.predictors.choice_terminal import print_fleet_study

    _check_outputs(json_file, html)
    study = build_fleet_study(options)
    runs = _run_study(study)
    print_fleet_study(make_console(), runs)
    write_json(json_file, [run.row for run in runs])
    if html is not None:
        from experiments.report.predictors.fleet_study_page import write_fleet_page

        write_output("--html", html, lambda path: write_fleet_page(study.jobs[0].experiment, runs, path))


def _check_outputs(json_file: Path | None, html: Path | None) -> None:
    """Check the output files before anything is computed."""
    check_output("--json", json_file, "[")
    check_output("--html", html, "<!doctype html")
    if json_file is not None and html is not None and json_file.absolute() == html.absolute():
        raise BadInput("--html", str(html), "another file than --json")


def _run_study(study: _Study[R]) -> list[R]:
    with show_progress(len(study.jobs)) as report_run:
        return study.run(report_run)
