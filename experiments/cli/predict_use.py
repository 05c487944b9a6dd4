"""``fedge predict show``, ``choose`` and ``pareto``: a saved model's facts, and the power modes that follow from it."""

from __future__ import annotations

import csv as csvlib
import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from experiments.cli.command_output import check_output
from experiments.report.predictors import model_terminal
from experiments.report.quantities import number
from fedge.decisions import mode_objectives
from fedge.decisions.limits import compute_margin_z
from fedge.decisions.mode_objectives import FrontCost, ModeChoice
from fedge.errors import BadInput, FedgeError, UnknownName
from fedge.knowledge.mode_points import ModeFront, ModePoint, build_mode_front, build_mode_point
from fedge.knowledge.model_file import BoardModel, fit_model_predictor, load_model, predict_candidates
from fedge.knowledge.model_summary import ModelSummary, ModelTerm, prediction_label, summarize_model
from fedge.pareto import find_nearest_row
from fedge.protocols import Predictor
from fedge.telemetry import run_folder
from fedge.types import Floats, PowerMode, Predictions

if TYPE_CHECKING:
    from rich.console import Console

UNIT_SLIP_FACTOR = 30.0
"""A limit beyond the predictions by this factor is taken for a unit error.

A wrong prefix is a factor of 1,000; this default is about its square root.
"""


@dataclass(frozen=True, slots=True, eq=False)
class OpenedModel:
    """A saved model, fitted again, with predictions for every candidate mode.

    Attributes:
        model: The saved model.
        predictor: The fitted predictor.
        predictions: Predictions of all candidates.
    """

    model: BoardModel
    predictor: Predictor
    predictions: Predictions
    measured: frozenset[PowerMode]
    """Modes with measurements."""
    maxn_row: int
    """Row of the candidate nearest to the board's top mode."""

    def build_point(self, row: int) -> ModePoint:
        """Return the candidate in a row."""
        return build_mode_point(self.predictions, row, self.measured)


@dataclass(frozen=True, slots=True)
class ChoiceAim:
    """The objective of a choice.

    Attributes:
        option: The command's option.
        value: Its number.
        confidence: Probability with which a limit must be met.
    """

    option: str
    value: float
    confidence: float

    @property
    def is_limit(self) -> bool:
        """Whether the objective is a limit, to be met with a confidence."""
        return self.option in ("--power-w", "--deadline-s")


def open_model(path: Path) -> OpenedModel:
    """Read a model, fit it and predict all candidates.

    Raises:
        BadInput: If the file is not a model.
    """
    model = load_model(path)
    predictor = fit_model_predictor(model)
    measured = frozenset(measurement.mode for measurement in model.measurements)
    maxn = find_nearest_row(model.candidates, model.knowledge.maxn)
    return OpenedModel(
        model, predictor=predictor, predictions=predict_candidates(model, predictor), measured=measured, maxn_row=maxn
    )


# show -----------------------------------------------------------------------------------------------------------------


def print_model(model: Path, as_json: bool) -> None:
    """Print a model's training data, prior and uncertainty."""
    read = open_model(model)
    facts = summarize_model(read.model, read.predictor, read.predictions)
    if as_json:
        _print_json(as_data(facts))
        return
    console = _make_console()
    print_facts(facts)
    console.print(model_terminal.measured_table(facts))
    if facts.meaning is not None:
        console.print(model_terminal.meaning_table(facts.meaning))


def print_facts(facts: ModelSummary) -> None:
    """Print the facts on a model in a few lines."""
    console = _make_console()
    _say(console, model_terminal.describe_model(facts.about))
    console.print(model_terminal.facts_table(facts))


def as_data(facts: ModelSummary) -> dict[str, Any]:
    """Return the facts for JSON."""
    about, meaning = asdict(facts.about), facts.meaning
    return {
        **{name: about[name] for name in ("method", "device", "workload", "batch_size")},
        "learnt_from": {"modes": facts.modes, **about["origin"]},
        "label": facts.predictions_label,
        "held_out": about["held_out"],
        "spread": {"time": asdict(facts.time_spread), "power": asdict(facts.power_spread)},
        "prior": {"beliefs": facts.priors, "tables": about["prior_tables"], "used": meaning is not None},
        "references": [asdict(reference) for reference in facts.references],
        "idle_w": about["idle"],
        "candidates": {"modes": facts.candidates, "from": about["candidates"]},
        "measured": [_measurement_data(facts, row) for row in range(len(facts.measurements))],
        "meaning": meaning and {"time_s": _parts_data(meaning.time_s), "power_w": _parts_data(meaning.power_w)},
    }


def _parts_data(parts: Sequence[ModelTerm]) -> dict[str, float]:
    return {part.name: part.value for part in parts}


def _measurement_data(facts: ModelSummary, row: int) -> dict[str, Any]:
    """Return a measurement and the model's prediction for its mode."""
    seen, known = facts.measurements[row], facts.predicted[row]
    measured = {name: getattr(seen, name) for name in ("steps", "throttled", "step_s", "power_w")}
    names = ("step_s", "power_w", "step_s_sd_log", "power_w_sd_log")
    return {**asdict(seen.mode), **measured, **{f"predicted_{name}": getattr(known, name) for name in names}}


# choose ---------------------------------------------------------------------------------------------------------------


def choose_mode(  # noqa: PLR0917 - the command's own options
    model: Path,
    power_w: float | None,
    deadline_s: float | None,
    time_weight: float | None,
    knee: bool,
    confidence: float,
    as_json: bool,
) -> None:
    """Print the chosen mode.

    Raises:
        FedgeError: If no mode meets the limit, after printing the one that comes nearest.
    """
    values = {"--power-w": power_w, "--deadline-s": deadline_s, "--time-weight": time_weight, "--knee": knee or None}
    given = [(option, float(value)) for option, value in values.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(option for option, _ in given) or "no objective"
        raise BadInput("fedge predict choose", got, f"exactly one of {', '.join(values)}")
    aim = ChoiceAim(*given[0], confidence)
    _check_aim(aim)
    read = open_model(model)
    choice = choose_for_aim(read.predictions, aim)
    if as_json:
        _print_json(_choice_data(read, choice, aim))
    else:
        _print_choice(read, choice, aim)
    if not choice.feasible:
        raise FedgeError(_describe_infeasible(aim, read.build_point(choice.row)))


def choose_for_aim(predictions: Predictions, aim: ChoiceAim) -> ModeChoice:
    """Choose a mode for an objective.

    Raises:
        BadInput: If a limit is implausible, see ``UNIT_SLIP_FACTOR``.
    """
    z = compute_margin_z(aim.confidence, "--confidence")
    if aim.option == "--power-w":
        _check_limit(aim, predicted=predictions.power_w, unit="W", verb="draw", smaller="milliwatts")
        return mode_objectives.find_fastest_within_power(predictions, aim.value, z)
    if aim.option == "--deadline-s":
        _check_limit(aim, predicted=predictions.step_s, unit="s", verb="take", smaller="milliseconds")
        return mode_objectives.find_least_energy_within_deadline(predictions, aim.value, z)
    if aim.option == "--time-weight":
        return mode_objectives.find_best_weighted(predictions, aim.value)
    return mode_objectives.find_knee(predictions, "power")


def _check_aim(aim: ChoiceAim) -> None:
    if aim.is_limit and not (math.isfinite(aim.value) and aim.value > 0):
        raise BadInput(aim.option, f"{aim.value:g}", f"{'watts' if aim.option == '--power-w' else 'seconds'}, above 0")
    if aim.option == "--time-weight" and not 0.0 <= aim.value <= 1.0:
        raise BadInput(aim.option, f"{aim.value:g}", "a number from 0 (energy alone) to 1 (time alone)")
    if not 0.0 < aim.confidence < 1.0:
        example = f"{aim.confidence / 100:g}" if 1 < aim.confidence < 100 else "0.84"
        raise BadInput("--confidence", f"{aim.confidence:g}", f"a share between 0 and 1, such as {example}")


def _check_limit(aim: ChoiceAim, predicted: Floats, unit: str, verb: str, smaller: str) -> None:
    """Raise ``BadInput`` for a limit so far beyond the predictions that its unit must be wrong.

    The median represents the modes, because the slowest may take a hundred times as long as the others.
    """
    low, usual = float(predicted.min()), float(np.median(predicted))
    if aim.value > UNIT_SLIP_FACTOR * usual:
        right = (
            f"a limit that can bind: half of the modes {verb} less than {number(usual)} {unit}; were these {smaller}?"
        )
        raise BadInput(aim.option, f"{aim.value:g} {unit}", right)
    if aim.value < low / UNIT_SLIP_FACTOR:
        right = f"a limit within reach: all modes {verb} at least {number(low)} {unit}; is this another unit?"
        raise BadInput(aim.option, f"{aim.value:g} {unit}", right)


def _describe_infeasible(aim: ChoiceAim, nearest: ModePoint) -> str:
    unit, least = ("W", nearest.power_w) if aim.option == "--power-w" else ("s", nearest.step_s)
    wish = f"{aim.value:g} {unit} with {100 * aim.confidence:g} % confidence"
    ends = f"{number(least.low90)} to {number(least.high90)} with 90 %"
    return f"no mode keeps {wish}; the nearest is {nearest.mode}: {number(least.value)} {unit}, {ends}"


def _print_choice(read: OpenedModel, choice: ModeChoice, aim: ChoiceAim) -> None:
    console, chosen, maxn = _make_console(), read.build_point(choice.row), read.build_point(read.maxn_row)
    _say(console, model_terminal.describe_model(read.model.about))
    _say(console, f"{choice.why} Confidence: {100 * aim.confidence:g} %." if aim.is_limit else choice.why)
    console.print(model_terminal.choice_table("chosen" if choice.feasible else "nearest", chosen, maxn))
    _say(console, f"Per minibatch; predictions are {prediction_label(read.model.about)}, brackets hold them with 90 %.")
    if not choice.feasible:
        return
    _say(console, "To set it, with the names of the board's own /etc/nvpmodel.conf:")
    for line in model_terminal.nvpmodel_lines(model_terminal.knob_values(chosen.mode)):
        _say(console, f"  {line}")


def _choice_data(read: OpenedModel, choice: ModeChoice, aim: ChoiceAim) -> dict[str, Any]:
    chosen, maxn = read.build_point(choice.row), read.build_point(read.maxn_row)
    return {
        "aim": aim.option.removeprefix("--").replace("-", "_"),
        "value": None if aim.option == "--knee" else aim.value,
        "confidence": aim.confidence if aim.is_limit else None,
        "feasible": bool(choice.feasible),
        "why": choice.why,
        "label": prediction_label(read.model.about),
        "chosen": asdict(chosen),
        "maxn": asdict(maxn),
        "set": model_terminal.knob_values(chosen.mode),
    }


# pareto ---------------------------------------------------------------------------------------------------------------


def print_pareto_front(model: Path, against: str, csv: Path | None, html: Path | None, as_json: bool) -> None:
    """Print the front, and optionally write it as a table and as a page."""
    _check_outputs(model, csv, html)
    cost = _parse_cost(against)
    read = open_model(model)
    front = build_mode_front(read.predictions, cost, read.maxn_row, read.measured)
    if csv is not None:
        _write_output("--csv", csv, lambda path: run_folder.write_text(path, _front_csv(front)))
    if html is not None:
        _write_output("--html", html, lambda path: _write_page(read, front, path))
    if as_json:
        _print_json(_front_data(read, front))
    else:
        _print_front(read, front)
        sys.stdout.writelines(f"written: {path}\n" for path in (csv, html) if path is not None)


def _front_data(read: OpenedModel, front: ModeFront) -> dict[str, Any]:
    return {
        "against": front.against,
        "label": prediction_label(read.model.about),
        "front": [asdict(point) for point in front.points],
        "knee": asdict(front.knee),
        "maxn": asdict(front.maxn),
    }


def _parse_cost(against: str) -> FrontCost:
    known: tuple[FrontCost, ...] = get_args(FrontCost)
    for one in known:
        if one == against:
            return one
    raise UnknownName("--against", against, known)


def _check_outputs(model: Path, csv: Path | None, html: Path | None) -> None:
    taken = {model.resolve(): "the model"}
    for option, path, starts in (("--csv", csv, ",".join(_CSV_COLUMNS[:6])), ("--html", html, "<!doctype html")):
        if path is None:
            continue
        if path.resolve() in taken:
            raise BadInput(option, str(path), f"another file than {taken[path.resolve()]}")
        check_output(option, path, starts)
        taken[path.resolve()] = option


def _print_front(read: OpenedModel, front: ModeFront) -> None:
    console = _make_console()
    shown = model_terminal.thin_front(front)
    some = f"; {len(shown)} of them here, all with --csv" if len(shown) < len(front.points) else ""
    count = f"{len(front.points)} of {len(read.model.candidates):,} modes lie on the front of time and {front.against}"
    _say(console, model_terminal.describe_model(read.model.about))
    _say(console, count + some)
    console.print(model_terminal.front_table(front, shown))
    _say(console, f"Per minibatch; predictions are {prediction_label(read.model.about)}, brackets hold them with 90 %.")


def _front_csv(front: ModeFront) -> str:
    """Format the front as CSV: knobs, quantities with 90 % intervals, and whether the mode was measured."""
    text = io.StringIO()
    writer = csvlib.DictWriter(text, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for point in front.points:
        quantities = {name: getattr(point, name) for name in _CSV_QUANTITIES}
        intervals = {name + end: getattr(q, field) for name, q in quantities.items() for end, field in _INTERVAL_ENDS}
        flags = {"measured": point.measured, "knee": point == front.knee, "maxn": point == front.maxn}
        writer.writerow({**asdict(point.mode), **intervals, **{name: int(flag) for name, flag in flags.items()}})
    return text.getvalue()


_CSV_QUANTITIES = ("step_s", "power_w", "energy_j")
_INTERVAL_ENDS = (("", "value"), ("_low90", "low90"), ("_high90", "high90"))
_CSV_COLUMNS = (
    *(field.name for field in fields(PowerMode)),
    *(f"{name}{end}" for name in _CSV_QUANTITIES for end, _ in _INTERVAL_ENDS),
    *("measured", "knee", "maxn"),
)


def _write_page(read: OpenedModel, front: ModeFront, path: Path) -> None:
    from experiments.report.predictors.model_page import write_front_page

    write_front_page(front, summarize_model(read.model, read.predictor, read.predictions), read.predictions, path)


# Terminal and files ---------------------------------------------------------------------------------------------------


def _write_output(option: str, path: Path, write: Callable[[Path], None]) -> None:
    try:
        write(path)
    except OSError as error:
        raise BadInput(option, str(path), f"a file that can be written ({error.strerror})") from error


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def _make_console() -> Console:
    from rich.console import Console

    return Console()


def _say(console: Console, text: str) -> None:
    """Print a line literally: file names are not markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
