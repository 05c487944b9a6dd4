"""``fedge study`` and ``reproduce``: the value of mode choice against an oracle, and papers' figures beside ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_options import AsJson, OutFile, build_options, command_group
from experiments.cli.command_output import Outputs, print_plan, show_progress, warn
from experiments.report.tables import Column, Table, build_table, print_lines, text_cell, value_cell

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.backends.study_backend import FleetStudyOptions
    from fedge.studies.mode_choice_study import ModeChoiceOptions
    from fedge.studies.reproductions import ReproducedFigure, Reproduction


app = command_group("Evaluate the choice of modes against an oracle that knows the true times and powers.")

Rounds = Annotated[int, typer.Option(min=1, help="Rounds of every run.")]
DocumentPage = Annotated[
    Path | None, typer.Option("--docs", metavar="PAGE", help="Markdown page whose block of figures is rewritten.")
]


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
        str, typer.Option("--policies", help="Policies, separated by commas: fedge, bofl, maxn, oracle, neighbours.")
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

    study_mode_choice(build_options(ModeChoiceOptions, parameters), Outputs(as_json, out, html))


def study_mode_choice(options: ModeChoiceOptions, outputs: Outputs) -> None:
    """Run the study and deliver its rows."""
    from experiments.report.predictors.mode_choice_report import print_mode_choice, write_mode_choice_page
    from fedge.studies.mode_choice_study import build_mode_choice_study

    outputs.check("[")
    study = build_mode_choice_study(options)
    with show_progress(len(study.jobs)) as report_run:
        results = study.run(report_run)
    for note in study.notes:
        warn(f"note: {note}")
    outputs.deliver(
        [result.row for result in results],
        lambda console: print_mode_choice(console, study.table, study.steps, results),
        partial(write_mode_choice_page, study.table, study.steps, results),
    )


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
            "learn, for fleets of up to a million. By default columns from 1,000 boards on."
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

    options = build_options(FleetStudyOptions, parameters, others=("dry_run",))
    study_fleet(options, Outputs(as_json, out, html), dry_run=dry_run)


def study_fleet(options: FleetStudyOptions, outputs: Outputs, *, dry_run: bool = False) -> None:
    """Run the study and deliver its rows, or with ``dry_run`` only list the runs."""
    from experiments.backends.study_backend import build_fleet_study
    from experiments.report.predictors.fleet_study_report import print_fleet_study, write_fleet_page

    outputs.check("[")
    study = build_fleet_study(options, warn)
    if dry_run:
        listed = {f"run {i}": str(job) for i, job in enumerate(study.jobs, 1)}
        print_plan({"runs": len(study.jobs), **listed}, outputs.as_json)
        return
    with show_progress(len(study.jobs)) as report_run:
        runs = study.run(report_run)
    page = partial(write_fleet_page, study.jobs[0].experiment, runs)
    outputs.deliver([run.row for run in runs], lambda console: print_fleet_study(console, runs), page)


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
            help="Accuracy (0 to 1), or metric of your own, to reach; by default the least of any run's last three.",
        ),
    ] = None,
    within_s: Annotated[
        float | None,
        typer.Option("--max-s", min=0.0, help="Limit of a run's time, in seconds; by default that of the shortest."),
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
    from experiments.report.tables import print_tables
    from experiments.sweeps.arena import judge_variants, read_courses
    from experiments.sweeps.sweep_summary import read_summary

    outputs = Outputs(as_json, out)
    outputs.check("{")
    _check_block(docs, f"arena {folder.name}")
    courses, metric = read_courses(folder), read_summary(folder).metric
    result = judge_variants(
        courses,
        target=accuracy,
        budget_s=within_s,
        budget_j=within_j,
        disturbed=None if disturbed is None else read_courses(disturbed),
        metric=metric,
    )
    shown = list_arena_tables(result, folder.name)
    outputs.deliver(result, lambda console: print_tables(console, shown))
    if docs is not None:
        limits = {"--max-s": within_s, "--max-j": within_j, "--disturbed": disturbed}
        given = "".join(f" {option} {value}" for option, value in limits.items() if value is not None)
        _document(docs, shown[0], f"arena {folder} --target-accuracy {result.target:g}{given}")


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

    outputs = Outputs(as_json, out, html)
    outputs.check("[")
    study = build_transfer_study(build_options(TransferOptions, parameters, others=("jobs", "docs")))
    _check_block(docs, report.FIGURES_KEY)
    with show_progress(len(study.cells)) as report_cell:
        rows = study.run(report_cell, jobs)
    page = partial(report.write_transfer_page, rows, tables)
    outputs.deliver(rows, lambda console: report.print_transfer(console, rows), page)
    if docs is not None:
        options = (*(f"--part {part}" for part in parts or ()), f"--modes {modes} --seeds {seeds}")
        _document(docs, report.build_transfer_table(rows), f"transfer TABLES {' '.join(options)}")


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of a reproduction; without it, list all of them.")
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Argument(
            metavar="TABLES",
            envvar="FEDGE_PROFILES",
            help="Folder of measured tables: <board>/train and <board>/infer.",
        ),
    ] = None,
    *,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Number of repetitions; by default the reproduction's own.")
    ] = None,
    out: OutFile = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce a paper's method: the published figures beside ours, and what differs.

    Example: fedge reproduce accelerators
    """
    from fedge.studies.reproductions import REPRODUCTIONS
    from fedge.studies.reproductions import reproduce as run

    outputs = Outputs(as_json, out)
    outputs.check("[")
    figures = [] if name is None else run(name, show_progress, tables, seeds)
    results = [asdict(one) for one in figures] or [_reproduction_to_dict(*item) for item in REPRODUCTIONS.items()]

    def view(console: Console) -> None:
        if name is None:
            _build_names_table(REPRODUCTIONS.items()).print(console)
        else:
            _print_figures(console, REPRODUCTIONS[name], figures)

    outputs.deliver(results, view)


def _reproduction_to_dict(name: str, one: Reproduction) -> dict[str, str | bool | int | None]:
    fields = ("title", "reference", "compares", "needs_tables", "seeds")
    return {"name": name} | {field: getattr(one, field) for field in fields}


def _build_names_table(items: Iterable[tuple[str, Reproduction]]) -> Table:
    columns: tuple[Column[tuple[str, Reproduction]], ...] = (
        ("name", lambda item: text_cell(item[0])),
        ("compared", lambda item: text_cell(item[1].compares)),
        ("measured tables", lambda item: text_cell("needed" if item[1].needs_tables else "not needed")),
        ("paper", lambda item: text_cell(item[1].reference)),
    )
    return build_table("reproductions", columns, items)


def _print_figures(console: Console, paper: Reproduction, figures: Sequence[ReproducedFigure]) -> None:
    """Print the figures, and below them once each what differs."""
    differences = list(dict.fromkeys(figure.differs for figure in figures))
    columns: tuple[Column[ReproducedFigure], ...] = (
        ("figure", lambda one: text_cell(one.what)),
        ("published", lambda one: text_cell(one.published)),
        ("ours", lambda one: value_cell(one.ours, f".{_count_decimals(one)}f", one.unit)),
        ("unit", lambda one: text_cell(one.unit)),
        ("label", lambda one: text_cell(one.label)),
        ("source", lambda one: text_cell(one.source)),
        ("note", lambda one: text_cell(differences.index(one.differs) + 1)),
    )
    build_table("figures", columns, figures, f"{paper.title} ({paper.reference})").print(console)
    print_lines(console, (f"{place}: {text}." for place, text in enumerate(differences, 1)))


def _count_decimals(figure: ReproducedFigure) -> int:
    """Return the decimals to show: those of the published figure, but one at least unless ours is a count."""
    decimals = re.search(r"\.(\d+)", figure.published)
    return 0 if isinstance(figure.ours, int) else len(decimals[1]) if decimals else 1
