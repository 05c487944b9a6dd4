"""``fedge predict``: evaluate predictors, import tables, fit models, and use them."""

from __future__ import annotations

import csv
import io
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_options import AsJson, ChartPage, build_options, command_group
from experiments.cli.command_output import (
    HTML_START,
    Outputs,
    check_folder,
    check_output,
    make_console,
    print_json,
    print_line,
    show_progress,
    warn,
    write_output,
)
from experiments.report.tables import print_lines
from fedge.atomic_files import write_text
from fedge.errors import BadInput, FedgeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.report.tables import Table
    from fedge.knowledge.model_summary import ModelSummary
    from fedge.knowledge.model_training import ModelFitOptions
    from fedge.knowledge.saved_model import ModeFront, ModelChoice, ModelFront
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

    evaluate_predictors(build_options(PredictionStudyOptions, parameters), Outputs(as_json, out, html))


def evaluate_predictors(options: PredictionStudyOptions, outputs: Outputs) -> None:
    """Evaluate predictors and deliver the rows.

    Raises:
        BadInput: If the input is invalid; raised before any computation.
        FedgeError: At the end, if cells failed.
    """
    from experiments.report.predictors.evaluation_report import print_evaluation, write_evaluation_page
    from fedge.studies.prediction_study import build_prediction_study, row_to_dict, run_prediction_study

    outputs.check("[")
    study = build_prediction_study(options)
    for note in study.notes:
        warn(note)
    with show_progress(study.step_count) as report_step:
        results = run_prediction_study(study, report=report_step)
    rows = [result.row for result in results]
    page = partial(write_evaluation_page, study, results)
    outputs.deliver([row_to_dict(row) for row in rows], lambda console: print_evaluation(console, rows), page)
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
        str, typer.Option("--format", help="Format of the measurements: tegrastats, jtop, powertrain, bofl or table.")
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
        return
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
    kind: Annotated[
        Literal["train", "infer"] | None,
        typer.Option(help="Kind of step; by default that of the table's record or folder."),
    ] = None,
    seed: cli.Seed = 0,
    as_json: cli.AsJson = False,
) -> None:
    """Fit a model of a board's time and power to a table, or by profiling an emulated board.

    Example: fedge predict fit --board agx-orin --workload resnet18-imagenet --modes 10 --out orin.safetensors
    """
    parameters = dict(locals())
    from fedge.knowledge.model_training import ModelFitOptions

    fit_to_file(build_options(ModelFitOptions, parameters), out, as_json)


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
    print_summary(fitted.summary)
    print_line(f"written: {out}")


def _check_model_path(out: Path) -> None:
    """Check that an existing file is replaced only if it is a model, not e.g. the measured table."""
    from fedge.knowledge.model_file import load_model

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "the path of a file in a folder that exists")
    check_folder("--out", out.parent)
    if not out.exists():
        return
    try:
        load_model(out)
    except BadInput as error:
        raise BadInput("--out", f"{out}, a file that is no model", "a new file, or a model to replace") from error


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `fedge predict fit` wrote.")]

QUANTITIES = ("step_s", "power_w", "energy_j")
INTERVAL_ENDS = {"": "value", "_low90": "low90", "_high90": "high90"}
KNOB_COLUMNS = ("cores", "cpu_mhz", "gpu_mhz", "mem_mhz")
CSV_COLUMNS = (
    *KNOB_COLUMNS,
    *(f"{name}{end}" for name in QUANTITIES for end in INTERVAL_ENDS),
    *("measured", "knee", "maxn"),
)


@app.command()
def show(model: Model, as_json: AsJson = False) -> None:
    """Show a model's training data, prior knowledge and uncertainty.

    Example: fedge predict show orin.safetensors
    """
    from experiments.report.predictors import model_report
    from fedge.knowledge.saved_model import model_summary_to_dict, open_model

    summary = open_model(model).summarize()
    if as_json:
        print_json(model_summary_to_dict(summary))
        return
    print_summary(summary)
    model_report.measured_table(summary).print(make_console())
    if summary.meaning is not None:
        model_report.meaning_table(summary.meaning).print(make_console())


def print_summary(summary: ModelSummary) -> None:
    """Print the facts on a model in a few lines."""
    from experiments.report.predictors import model_report
    from experiments.report.tables import print_facts

    print_line(model_report.describe_model(summary.about))
    print_facts(make_console(), model_report.describe_facts(summary))


@app.command()
def choose(
    model: Model,
    *,
    max_power_w: Annotated[
        float | None,
        typer.Option("--max-power-w", help="Limit of the board's power, in watts: the fastest mode within it."),
    ] = None,
    max_step_s: Annotated[
        float | None,
        typer.Option("--max-step-s", help="Limit of a step's time, in seconds: the mode of least energy within it."),
    ] = None,
    max_slowdown: Annotated[
        float | None,
        typer.Option(help="Largest time of the chosen mode, as a multiple of MAXN's: that of least energy within it."),
    ] = None,
    time_weight: Annotated[
        float | None, typer.Option(help="Mode with the least weighted sum of time and energy (0 to 1).")
    ] = None,
    knee: Annotated[bool, typer.Option("--knee", help="Mode at the knee of the front of time and power.")] = False,
    confidence: Annotated[float, typer.Option(help="Probability with which a limit is met.")] = 0.84,
    as_json: AsJson = False,
) -> None:
    """Choose a power mode by exactly one of five objectives.

    Exit code 1 if no mode meets the limit.

    Example: fedge predict choose orin.safetensors --max-power-w 30
    """
    from fedge.knowledge import saved_model

    aim = saved_model.build_aim(
        max_power_w=max_power_w,
        max_step_s=max_step_s,
        max_slowdown=max_slowdown,
        time_weight=time_weight,
        knee=knee,
        confidence=confidence,
    )
    choice = saved_model.choose_model_mode(model, aim)
    Outputs(as_json).deliver(saved_model.model_choice_to_dict(choice), lambda _: _print_choice(choice))
    if not choice.feasible:
        raise FedgeError(_describe_infeasible(choice))


def _describe_infeasible(choice: ModelChoice) -> str:
    from experiments.report.quantities import number

    aim, nearest = choice.aim, choice.chosen
    unit, least = ("W", nearest.power_w) if aim.option == "--max-power-w" else ("s", nearest.step_s)
    limit = f"{aim.value:g} {unit} with {100 * aim.confidence:g} % confidence"
    interval = f"90 % interval {number(least.low90)} to {number(least.high90)}"
    return f"no mode keeps {limit}; the nearest is {nearest.mode}: {number(least.value)} {unit}, {interval}"


def _print_choice(choice: ModelChoice) -> None:
    from experiments.report.predictors import model_report
    from fedge.knowledge.saved_model import to_control_values

    print_line(model_report.describe_model(choice.about))
    print_line(f"{choice.why} Confidence: {100 * choice.aim.confidence:g} %." if choice.aim.is_limit else choice.why)
    word = "chosen" if choice.feasible else "nearest"
    model_report.choice_table(word, choice.chosen, choice.maxn).print(make_console())
    print_line(_describe_intervals(choice.label))
    if not choice.feasible:
        return
    print_line("To set it, with the names in the board's /etc/nvpmodel.conf:")
    for line in model_report.nvpmodel_lines(to_control_values(choice.chosen.mode)):
        print_line(f"  {line}")


def _describe_intervals(label: str) -> str:
    origin = "of unknown origin" if label == "unknown" else label
    return f"Per step; predictions are {origin}, brackets are 90 % intervals."


@app.command()
def pareto(
    model: Model,
    *,
    against: Annotated[str, typer.Option(help="Cost to trade against time: power or energy.")] = "power",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write: the front (CSV).")] = None,
    html: ChartPage = None,
    as_json: AsJson = False,
) -> None:
    """Show the Pareto front: the modes that no other mode beats in both time and cost.

    Example: fedge predict pareto orin.safetensors --html front.html
    """
    from fedge.knowledge.saved_model import build_model_front, model_front_to_dict

    _check_outputs(model, out, html)
    model_front = build_model_front(model, against)
    if out is not None:
        write_output("--out", out, lambda path: write_text(path, _front_csv(model_front.front)))
    if html is not None:
        from experiments.report.predictors.model_report import write_front_page

        page = partial(write_front_page, model_front.front, model_front.summary, model_front.predictions)
        write_output("--html", html, page)
    if as_json:
        print_json(model_front_to_dict(model_front))
        return
    _print_front(model_front)
    print_lines(make_console(), [f"written: {path}" for path in (out, html) if path is not None])


def _check_outputs(model: Path, out: Path | None, html: Path | None) -> None:
    taken = {model.resolve(): "the model"}
    for option, path, starts in (("--out", out, ",".join(CSV_COLUMNS[:6])), ("--html", html, HTML_START)):
        if path is None:
            continue
        if path.resolve() in taken:
            raise BadInput(option, str(path), f"another file than {taken[path.resolve()]}")
        check_output(option, path, starts)
        taken[path.resolve()] = option


def _print_front(model_front: ModelFront) -> None:
    from experiments.report.predictors import model_report

    front, summary = model_front.front, model_front.summary
    shown = model_report.thin_front(front)
    some = f"; {len(shown)} of them here, all with --out" if len(shown) < len(front.points) else ""
    count = f"{len(front.points):,} of {summary.candidates:,} modes lie on the front of time and {front.against}"
    print_line(model_report.describe_model(summary.about))
    print_line(count + some)
    model_report.front_table(front, shown).print(make_console())
    print_line(_describe_intervals(summary.predictions_label))


def _front_csv(front: ModeFront) -> str:
    """Format the front as CSV: knobs, quantities with 90 % intervals, and whether the mode was measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for point in front.points:
        row = {knob: getattr(point.mode, knob) for knob in KNOB_COLUMNS}
        for name in QUANTITIES:
            row |= {name + end: getattr(getattr(point, name), field) for end, field in INTERVAL_ENDS.items()}
        flags = {"measured": point.measured, "knee": point == front.knee, "maxn": point == front.maxn}
        writer.writerow({**row, **{name: int(flag) for name, flag in flags.items()}})
    return text.getvalue()
