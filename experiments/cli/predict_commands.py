"""``fedge predict``: evaluate predictors, import tables, fit models, and use them (``predict_use``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import command_options as cli
from experiments.cli import predict_use
from experiments.cli.command_options import build_options, command_group
from experiments.cli.command_output import (
    check_output,
    make_console,
    print_json,
    print_line,
    show_progress,
    warn,
    write_json,
    write_output,
)
from fedge.errors import BadInput, FedgeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.report.tables import Table
    from fedge.devices.tables.table_import import TableImport
    from fedge.knowledge.model_training import ModelFitOptions
    from fedge.knowledge.table_background import ReferenceNetworks
    from fedge.studies.prediction_study import PredictionStudyOptions

app = command_group("Predict time and power of every power mode from few measured ones.")

References = Annotated[
    list[Path] | None,
    typer.Option("--reference", metavar="TABLE", help="Table of another workload on a similar board; may be repeated."),
]
PriorWithout = Annotated[
    list[str] | None,
    typer.Option(
        "--prior-without", metavar="NAME", help="Leave this workload or board out of the prior; may be repeated."
    ),
]


@app.command("eval")
def evaluate(
    *,
    targets: Annotated[
        list[Path], typer.Option("--target", metavar="TABLE", help="Table to predict; may be repeated.")
    ],
    references: References = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods", help="Methods, separated by commas; by default fedge, and powertrain with a reference."
        ),
    ] = None,
    modes: Annotated[
        str, typer.Option(metavar="N,...", help="Number of modes to profile; several, separated by commas.")
    ] = "10,20,50",
    seeds: cli.Seeds = 5,
    budgets: Annotated[str | None, typer.Option(metavar="LOW:HIGH:STEP", help="Power limits in watts.")] = None,
    explorer: Annotated[
        str | None, typer.Option(help="Explorer that picks the modes; by default each method's own.")
    ] = None,
    choice: Annotated[
        str | None, typer.Option(help="Choice rule: plain, margin or verified; by default each method's own.")
    ] = None,
    prior_without: PriorWithout = None,
    board: cli.TableBoard = None,
    workload: cli.TableWorkload = None,
    batch_size: cli.TableBatchSize = None,
    out: cli.OutFile = None,
    html: cli.ChartPage = None,
    as_json: cli.AsJson = False,
) -> None:
    """Evaluate predictors on measured tables: errors on modes not profiled, and the cost of choosing with them.

    Example: fedge predict eval --target agx-orin/train/resnet18-imagenet.csv --modes 10,50
    """
    parameters = dict(locals())
    from fedge.studies.prediction_study import PredictionStudyOptions

    options = build_options(PredictionStudyOptions, parameters, others=("out", "html", "as_json"))
    evaluate_predictors(options, out, html, as_json=as_json)


def evaluate_predictors(
    options: PredictionStudyOptions, out: Path | None, html: Path | None, *, as_json: bool = False
) -> None:
    """Evaluate predictors, print a table, and optionally write JSON and a page.

    Raises:
        BadInput: If the input is invalid; raised before any computation.
        FedgeError: At the end, if cells failed.
    """
    from experiments.report.predictors.evaluation_report import print_evaluation
    from fedge.studies.prediction_study import build_prediction_study, row_to_dict, run_prediction_study

    check_output("--out", out, "[")
    check_output("--html", html, "<!doctype html")
    study = build_prediction_study(options)
    for note in study.notes:
        warn(note)
    with show_progress(study.step_count) as report_step:
        results = run_prediction_study(study, report=report_step)
    rows = [result.row for result in results]
    if as_json:
        print_json([row_to_dict(row) for row in rows])
    else:
        print_evaluation(make_console(), rows)
    write_json(out, [row_to_dict(row) for row in rows])
    if html is not None:
        from experiments.report.predictors.evaluation_report import write_evaluation_page

        write_output("--html", html, lambda path: write_evaluation_page(study, results, path))
    errors = [f"{row.method} on {row.target}: {row.error}" for row in rows if row.error is not None]
    if errors:
        raise FedgeError(f"{len(errors)} of {len(rows)} cells failed; {'; '.join(dict.fromkeys(errors))}")


@app.command("train-reference")
def train_reference(
    tables: Annotated[list[Path], typer.Argument(metavar="TABLE...", help="Measured tables in the normal form (CSV).")],
    batch_size: cli.TableBatchSize = None,
    as_json: cli.AsJson = False,
) -> None:
    """Train and cache the reference networks of the predictor `powertrain`, which otherwise trains them when needed.

    Example: fedge predict train-reference agx-orin/train/resnet18-imagenet.csv
    """
    from fedge.knowledge.table_background import train_reference_networks

    results = train_reference_networks(tables, batch_size)
    if as_json:
        print_json(results)
        return
    _build_reference_table(results).print(make_console())
    for result in results:
        print_line(f"kept: {result.file}")


def _build_reference_table(results: Sequence[ReferenceNetworks]) -> Table:
    from experiments.report.tables import Column, build_table, text_cell, value_cell

    columns: tuple[Column[ReferenceNetworks], ...] = (
        ("board", lambda one: text_cell(one.device)),
        ("workload", lambda one: text_cell(one.workload)),
        ("rows", lambda one: value_cell(one.rows)),
        ("time MAPE", lambda one: value_cell(100 * one.time_mape, ".1f", "%")),
        ("power MAPE", lambda one: value_cell(100 * one.power_mape, ".1f", "%")),
        ("seconds", lambda one: value_cell(one.train_s, ".1f", "s")),
        ("network", lambda one: text_cell("cached" if one.cached else "trained")),
    )
    return build_table("reference-networks", columns, results, "Reference networks; error on held-out modes, percent")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A log, a file or a folder.")],
    layout: Annotated[
        str, typer.Option("--format", help="Format of the measurements: tegrastats, jtop, powertrain or bofl.")
    ],
    out: Annotated[Path, typer.Option(metavar="TABLE", help="File to write: the table (CSV).")],
    steps: Annotated[
        Path | None,
        typer.Option("--step-times", metavar="FILE", help="For logs: a CSV file with the times of each mode's steps."),
    ] = None,
    batch_size: cli.TableBatchSize = None,
    as_json: cli.AsJson = False,
) -> None:
    """Convert measurements of other tools to the normal form.

    Example: fedge predict import tegrastats.log --format tegrastats --step-times steps.csv --out nano/train/net.csv
    """
    from fedge.devices.tables.table_import import import_table

    outcome = import_table(source, layout, out, steps=steps, batch_size=batch_size)
    if as_json:
        print_json(outcome)
    else:
        _print_import(outcome)


def _print_import(outcome: TableImport) -> None:
    print_line(
        f"{outcome.table}: rows {outcome.rows}, power modes {outcome.modes}, "
        f"batch size{'s' if len(outcome.batch_sizes) > 1 else ''} {', '.join(map(str, outcome.batch_sizes))} "
        f"(board {outcome.device}, workload {outcome.workload}, {outcome.label})"
    )
    for note in outcome.notes:
        print_line(f"note: {note}")


@app.command()
def fit(
    *,
    table: Annotated[
        Path | None, typer.Argument(metavar="TABLE", help="A table; without it, an emulated --board is profiled.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="MODEL", help="File to write: the model.")] = Path("model.safetensors"),
    method: Annotated[str, typer.Option(help="Name of the predictor.")] = "fedge",
    modes: Annotated[
        str | None,
        typer.Option(metavar="N|all", help="Number of modes to profile; the explorer picks them."),
    ] = None,
    explorer: Annotated[
        str | None, typer.Option(help="Explorer that picks the modes; by default the method's own.")
    ] = None,
    budget_s: Annotated[
        float | None, typer.Option("--budget-s", help="Limit of the profiling time, in seconds.")
    ] = None,
    budget_j: Annotated[
        float | None, typer.Option("--budget-j", help="Limit of the profiling energy, in joules.")
    ] = None,
    references: References = None,
    prior_without: PriorWithout = None,
    board: cli.TableBoard = None,
    workload: cli.TableWorkload = None,
    batch_size: cli.TableBatchSize = None,
    seed: cli.Seed = 0,
    as_json: cli.AsJson = False,
) -> None:
    """Fit a model of a board's time and power to a table, or by profiling an emulated board.

    Example: fedge predict fit --board agx-orin --workload resnet18-imagenet --modes 10 --out orin.safetensors
    """
    parameters = dict(locals())
    from fedge.knowledge.model_training import ModelFitOptions

    options = build_options(ModelFitOptions, parameters, others=("out", "as_json"))
    fit_to_file(options, out, as_json)


def fit_to_file(options: ModelFitOptions, out: Path, as_json: bool) -> None:
    """Fit a model, save it and print its quality."""
    from fedge.knowledge.model_file import save_model
    from fedge.knowledge.model_training import fit_model
    from fedge.knowledge.saved_model import model_summary_to_dict

    _check_model_path(out)
    fitted = fit_model(options, warn)
    save_model(out, fitted.model)
    if as_json:
        print_json({**model_summary_to_dict(fitted.summary), "file": str(out)})
        return
    predict_use.print_summary(fitted.summary)
    print_line(f"written: {out}")


def _check_model_path(out: Path) -> None:
    """Check that an existing file is replaced only if it is a model, not e.g. the measured table."""
    from fedge.knowledge.model_file import load_model

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "the path of a file in a folder that exists")
    if not out.exists():
        return
    try:
        load_model(out)
    except BadInput as error:
        raise BadInput("--out", f"{out}, a file that is no model", "a new file, or a model to replace") from error


predict_use.register_commands(app)
