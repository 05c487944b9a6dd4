"""``fedge predict show``, ``choose`` and ``pareto``: a saved model's facts, and the power modes that follow from it."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.command_options import AsJson, ChartPage
from experiments.cli.command_output import check_output, make_console, print_line, write_output
from experiments.report.tables import print_lines
from fedge.atomic_files import write_text
from fedge.errors import BadInput, FedgeError

if TYPE_CHECKING:
    from fedge.knowledge.model_summary import ModelSummary
    from fedge.knowledge.saved_model import ModeFront, ModelChoice, ModelFront

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `fedge predict fit` wrote.")]

QUANTITIES = ("step_s", "power_w", "energy_j")
INTERVAL_ENDS = {"": "value", "_low90": "low90", "_high90": "high90"}
KNOB_COLUMNS = ("cores", "cpu_mhz", "gpu_mhz", "mem_mhz")
CSV_COLUMNS = (
    *KNOB_COLUMNS,
    *(f"{name}{end}" for name in QUANTITIES for end in INTERVAL_ENDS),
    *("measured", "knee", "maxn"),
)


def register_commands(app: typer.Typer) -> None:
    """Add the commands to ``fedge predict``."""
    app.command()(show)
    app.command()(choose)
    app.command()(pareto)


def show(model: Model, as_json: AsJson = False) -> None:
    """Show a model's training data, prior knowledge and uncertainty.

    Example: fedge predict show orin.safetensors
    """
    from experiments.report.predictors import model_report
    from fedge.knowledge.saved_model import model_summary_to_dict, open_model

    summary = open_model(model).summarize()
    if as_json:
        _print_json(model_summary_to_dict(summary))
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
    time_weight: Annotated[
        float | None, typer.Option(help="Mode with the least weighted sum of time and energy (0 to 1).")
    ] = None,
    knee: Annotated[bool, typer.Option("--knee", help="Mode at the knee of the front of time and power.")] = False,
    confidence: Annotated[float, typer.Option(help="Probability with which a limit is met.")] = 0.84,
    as_json: AsJson = False,
) -> None:
    """Choose a power mode by exactly one of four objectives.

    Exit code 1 if no mode meets the limit.

    Example: fedge predict choose orin.safetensors --max-power-w 30
    """
    from fedge.knowledge import saved_model

    aim = saved_model.build_aim(
        max_power_w=max_power_w,
        max_step_s=max_step_s,
        time_weight=time_weight,
        knee=knee,
        confidence=confidence,
    )
    choice = saved_model.choose_model_mode(model, aim)
    if as_json:
        _print_json(saved_model.model_choice_to_dict(choice))
    else:
        _print_choice(choice)
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
        write_output("--html", html, lambda path: _write_page(model_front, path))
    if as_json:
        _print_json(model_front_to_dict(model_front))
        return
    _print_front(model_front)
    print_lines(make_console(), [f"written: {path}" for path in (out, html) if path is not None])


def _check_outputs(model: Path, out: Path | None, html: Path | None) -> None:
    taken = {model.resolve(): "the model"}
    for option, path, starts in (("--out", out, ",".join(CSV_COLUMNS[:6])), ("--html", html, "<!doctype html")):
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
    count = f"{len(front.points)} of {summary.candidates:,} modes lie on the front of time and {front.against}"
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


def _write_page(model_front: ModelFront, path: Path) -> None:
    from experiments.report.predictors.model_report import write_front_page

    write_front_page(model_front.front, model_front.summary, model_front.predictions, path)


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
