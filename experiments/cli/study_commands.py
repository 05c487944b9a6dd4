"""``fedge study``: the value of mode choice, on one board under deadlines and on a whole fleet, against an oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_options import build_options, command_group
from experiments.cli.command_output import (
    check_output,
    make_console,
    print_json,
    print_plan,
    show_progress,
    warn,
    write_json,
    write_output,
)
from fedge.errors import BadInput

if TYPE_CHECKING:
    from experiments.backends.study_backend import FleetStudyOptions
    from experiments.report.tables import Table
    from fedge.studies.mode_choice_study import ModeChoiceOptions

app = command_group("Evaluate the choice of modes against an oracle that knows the true times and powers.")

R = TypeVar("R")

Rounds = Annotated[int, typer.Option(min=1, help="Rounds of every run.")]
DocumentPage = Annotated[
    Path | None, typer.Option("--docs", metavar="PAGE", help="Markdown page whose block of figures is rewritten.")
]


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
    deadline_ratios: Annotated[
        list[float] | None,
        typer.Option(
            "--deadline-ratio",
            help="Deadlines are drawn from 1 to this multiple of the fastest round; may be repeated.",
        ),
    ] = None,
    rounds: Rounds = 100,
    policies: Annotated[
        str, typer.Option("--policies", help="Policies, separated by commas: fedge, bofl, maxn, oracle.")
    ] = "fedge",
    seeds: cli.Seeds = 10,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps per round; by default the published number of the board.")
    ] = None,
    board: cli.TableBoard = None,
    workload: cli.TableWorkload = None,
    batch_size: cli.TableBatchSize = None,
    out: cli.OutFile = None,
    html: cli.ChartPage = None,
    as_json: cli.AsJson = False,
) -> None:
    """Study one board with a new deadline in every round: energy against an oracle and MAXN while modes are learnt.

    Example: fedge study mode-choice --table agx-orin/train/resnet18-imagenet.csv --policies fedge,maxn --seeds 3
    """
    parameters = dict(locals())
    from fedge.studies.mode_choice_study import ModeChoiceOptions

    options = build_options(ModeChoiceOptions, parameters, others=("out", "html", "as_json"))
    study_mode_choice(options, out, html, as_json=as_json)


def study_mode_choice(
    options: ModeChoiceOptions, out: Path | None, html: Path | None, *, as_json: bool = False
) -> None:
    """Run the study, print a table, and optionally write JSON and a page.

    Raises:
        BadInput: If the input is invalid; raised before any run.
    """
    from experiments.report.predictors.mode_choice_report import print_mode_choice
    from fedge.studies.mode_choice_study import build_mode_choice_study

    _check_outputs(out, html)
    study = build_mode_choice_study(options)
    results = _run_study(study)
    rows = [result.row for result in results]
    if as_json:
        print_json(rows)
    else:
        print_mode_choice(make_console(), study.table, study.steps, results)
    for note in study.notes:
        warn(f"note: {note}")
    write_json(out, rows)
    if html is not None:
        from experiments.report.predictors.mode_choice_report import write_mode_choice_page

        write_output("--html", html, lambda path: write_mode_choice_page(study.table, study.steps, results, path))


@app.command("fleet")
def fleet(
    config: cli.Experiment,
    *,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help="Policies, separated by commas; by default the file's own. Known: balanced, least-energy, "
            "energy-budget, fastest, fastest-within-power, least-energy-within-deadline, maxn, "
            "preset:NAME, or your own module:function.",
        ),
    ] = None,
    rounds: Rounds = 20,
    seeds: cli.Seeds = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps per round, of every board. By default about 30 s at MAXN.")
    ] = None,
    overrides: cli.Overrides = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="coordinator: every board plans and learns by itself. columns: boards of a kind share what they "
            "learn, for fleets of up to a million. By default columns from 2,000 boards on."
        ),
    ] = None,
    out: cli.OutFile = None,
    html: cli.ChartPage = None,
    dry_run: cli.DryRun = False,
    as_json: cli.AsJson = False,
) -> None:
    """Study a fleet without training: rounds and energy against an oracle, all boards at MAXN, and the best presets.

    Example: fedge study fleet experiments/configs/fleet40.yaml --policies balanced,least-energy --rounds 12
    """
    parameters = dict(locals())
    from experiments.backends.study_backend import FleetStudyOptions

    options = build_options(FleetStudyOptions, parameters, others=("out", "html", "dry_run", "as_json"))
    study_fleet(options, out, html, dry_run=dry_run, as_json=as_json)


def study_fleet(
    options: FleetStudyOptions, out: Path | None, html: Path | None, *, dry_run: bool = False, as_json: bool = False
) -> None:
    """Run the study, print a table, and optionally write JSON and a page.

    Raises:
        BadInput: If the input is invalid; raised before any run.
    """
    from experiments.backends.study_backend import build_fleet_study
    from experiments.report.predictors.fleet_study_report import print_fleet_study

    _check_outputs(out, html)
    study = build_fleet_study(options, warn)
    if dry_run:
        print_plan({"runs": len(study.jobs), **{f"run {i}": str(job) for i, job in enumerate(study.jobs, 1)}}, as_json)
        return
    runs = _run_study(study)
    rows = [run.row for run in runs]
    if as_json:
        print_json(rows)
    else:
        print_fleet_study(make_console(), runs)
    write_json(out, rows)
    if html is not None:
        from experiments.report.predictors.fleet_study_report import write_fleet_page

        write_output("--html", html, lambda path: write_fleet_page(study.jobs[0].experiment, runs, path))


@app.command("arena")
def arena(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a finished sweep.", show_default=False)],
    *,
    disturbed: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of a sweep of the same variants on a disturbed fleet (robustness)."),
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option(
            "--target-accuracy",
            min=0.0,
            max=1.0,
            help="Accuracy to reach; by default the least of the last three of any run.",
        ),
    ] = None,
    within_s: Annotated[
        float | None,
        typer.Option(
            "--max-s", min=0.0, help="Limit of a run's time, in seconds; by default that of the shortest run."
        ),
    ] = None,
    within_j: Annotated[
        float | None,
        typer.Option("--max-j", min=0.0, help="Limit of a run's energy, in joules; by default the least of any run."),
    ] = None,
    out: cli.OutFile = None,
    docs: DocumentPage = None,
    as_json: cli.AsJson = False,
) -> None:
    """Judge a sweep's variants: quality under a budget, cost to a target, robustness; paired with the first variant.

    Example: fedge study arena runs/arena --target-accuracy 0.97
    """
    from experiments.report.run.sweep_report import list_arena_tables
    from experiments.sweeps.arena import judge_variants, read_courses

    check_output("--out", out, "{")
    _check_block(docs, "arena")
    result = judge_variants(
        read_courses(folder),
        target=accuracy,
        budget_s=within_s,
        budget_j=within_j,
        disturbed=None if disturbed is None else read_courses(disturbed),
    )
    shown = list_arena_tables(result)
    if as_json:
        print_json(result)
    for table in () if as_json else shown:
        table.print(make_console())
    write_json(out, result)
    if docs is not None:
        _document(docs, shown[0], f"arena {folder.name} --target-accuracy {result.target:g}")


def _check_block(page: Path | None, key: str) -> None:
    """Check that a page of ``--docs`` has the block of a table, before anything is computed."""
    from experiments.report.predictors.transfer_report import find_block

    if page is not None:
        find_block(page, key)


def _document(page: Path, table: Table, command: str) -> None:
    """Write a table into its block of a page, with the command of the group that computed it today."""
    from experiments.report.predictors.transfer_report import write_figures

    write_figures(page, table, command=f"fedge study {command}", date=f"{datetime.now(UTC):%Y-%m-%d}")


@app.command("transfer")
def transfer(
    tables: Annotated[
        Path, typer.Argument(metavar="TABLES", help="Folder of measured tables: <board>/train and <board>/infer.")
    ],
    *,
    parts: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="A model: predictor, layers, roofline, pagoda, memory, online, serving; repeatable. All by default.",
        ),
    ] = None,
    modes: Annotated[
        str, typer.Option("--modes", metavar="N,...", help="Number of modes to profile; several, separated by commas.")
    ] = "0,3,5,10,50",
    seeds: cli.Seeds = 3,
    jobs: cli.Jobs = None,
    out: cli.OutFile = None,
    html: cli.ChartPage = None,
    docs: DocumentPage = None,
    as_json: cli.AsJson = False,
) -> None:
    """Study what every model predicts and decides for what it has not seen, by leaving it out in turn.

    Workloads, boards, families of networks and batch sizes are left out.

    Example: fedge study transfer tables --part memory
    """
    parameters = dict(locals())
    from experiments.report.predictors import transfer_report as report
    from fedge.studies.transfer_study import TransferOptions, build_transfer_study

    _check_outputs(out, html)
    study = build_transfer_study(
        build_options(TransferOptions, parameters, others=("jobs", "out", "html", "docs", "as_json"))
    )
    _check_block(docs, report.FIGURES_KEY)
    with show_progress(len(study.cells)) as report_cell:
        rows = study.run(report_cell, jobs)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        report.print_transfer(make_console(), rows)
    write_json(out, [asdict(row) for row in rows])
    if html is not None:
        write_output("--html", html, lambda path: report.write_transfer_page(rows, tables, path))
    if docs is not None:
        options = (*(f"--part {part}" for part in parts or ()), f"--modes {modes} --seeds {seeds}")
        _document(docs, report.build_transfer_table(rows), f"transfer TABLES {' '.join(options)}")


def _check_outputs(out: Path | None, html: Path | None) -> None:
    """Check the output files before anything is computed."""
    check_output("--out", out, "[")
    check_output("--html", html, "<!doctype html")
    if out is not None and html is not None and out.absolute() == html.absolute():
        raise BadInput("--html", str(html), "another file than --out")


def _run_study(study: _Study[R]) -> list[R]:
    with show_progress(len(study.jobs)) as report_run:
        return study.run(report_run)
