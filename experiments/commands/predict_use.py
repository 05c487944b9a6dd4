"""``fedge predict show``, ``choose`` and ``pareto``: what a model knows, and which power mode follows from it."""

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

from experiments.commands.outputs import check_output
from experiments.report.model import terminal
from experiments.report.quantities import number
from fedge.choice import objectives
from fedge.choice.objectives import Against, Choice
from fedge.choice.picking import margin_z
from fedge.errors import BadInput, FedgeError, UnknownName
from fedge.interfaces import Predictor
from fedge.models.facts import Facts, Part, facts_of, label_of
from fedge.models.file import Model, load, predict, refit
from fedge.models.points import ModeFront, Point, front_of, point_at
from fedge.pareto import nearest_row
from fedge.telemetry import run_folder
from fedge.types import Floats, PowerMode, Predictions

if TYPE_CHECKING:
    from rich.console import Console

FAR = 30.0
"""A limit this many times beyond what is predicted is in another unit: a slip of the prefix is a factor of 1,000,
of which this is about the root. Chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A model that was read and fitted again, with its predictions for every candidate."""

    model: Model
    predictor: Predictor
    predictions: Predictions
    measured: frozenset[PowerMode]
    """The modes that it learnt from."""
    maxn: int
    """The row of the candidate nearest to the board's top mode."""

    def point(self, row: int) -> Point:
        """The candidate in this row."""
        return point_at(self.predictions, row, self.measured)


@dataclass(frozen=True, slots=True)
class Aim:
    """What the choice is for: the option that was given, and its number."""

    option: str
    value: float
    confidence: float

    @property
    def is_limit(self) -> bool:
        """Whether there is a limit to keep, and so a confidence to keep it with."""
        return self.option in ("--power-w", "--deadline-s")


def opened(path: Path) -> Opened:
    """Read, refit and predict; raises ``BadInput`` for a file that is no model."""
    model = load(path)
    predictor = refit(model)
    measured = frozenset(measurement.mode for measurement in model.measurements)
    maxn = nearest_row(model.candidates, model.knowledge.maxn)
    return Opened(model, predictor, predict(model, predictor), measured, maxn)


# show -----------------------------------------------------------------------------------------------------------------


def show(model: Path, as_json: bool) -> None:
    """Print what a model was learnt from, what it knew beforehand and how sure it is."""
    read = opened(model)
    facts = facts_of(read.model, read.predictor, read.predictions)
    if as_json:
        _print_json(as_data(facts))
        return
    console = _console()
    print_facts(facts)
    console.print(terminal.measured_table(facts))
    if facts.meaning is not None:
        console.print(terminal.meaning_table(facts.meaning))


def print_facts(facts: Facts) -> None:
    """What there is to say of a model in a few lines."""
    console = _console()
    _say(console, terminal.title(facts.about))
    console.print(terminal.facts_table(facts))


def as_data(facts: Facts) -> dict[str, Any]:
    """The facts as JSON has them."""
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
        "measured": [_pair(facts, row) for row in range(len(facts.measurements))],
        "meaning": meaning and {"time_s": _named(meaning.time_s), "power_w": _named(meaning.power_w)},
    }


def _named(parts: Sequence[Part]) -> dict[str, float]:
    return {part.name: part.value for part in parts}


def _pair(facts: Facts, row: int) -> dict[str, Any]:
    """A measurement, and what the model makes of its mode."""
    seen, known = facts.measurements[row], facts.predicted[row]
    measured = {name: getattr(seen, name) for name in ("steps", "throttled", "step_s", "power_w")}
    names = ("step_s", "power_w", "step_s_sd_log", "power_w_sd_log")
    return {**asdict(seen.mode), **measured, **{f"predicted_{name}": getattr(known, name) for name in names}}


# choose ---------------------------------------------------------------------------------------------------------------


def choose(  # noqa: PLR0917 - the command's own options
    model: Path,
    power_w: float | None,
    deadline_s: float | None,
    time_weight: float | None,
    knee: bool,
    confidence: float,
    as_json: bool,
) -> None:
    """Print the chosen mode; raises ``FedgeError`` when no mode keeps the limit, after saying which comes nearest."""
    values = {"--power-w": power_w, "--deadline-s": deadline_s, "--time-weight": time_weight, "--knee": knee or None}
    given = [(option, float(value)) for option, value in values.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(option for option, _ in given) or "no aim"
        raise BadInput("fedge predict choose", got, f"exactly one of {', '.join(values)}")
    aim = Aim(*given[0], confidence)
    _check_aim(aim)
    read = opened(model)
    choice = pick(read.predictions, aim)
    if as_json:
        _print_json(_choice_data(read, choice, aim))
    else:
        _print_choice(read, choice, aim)
    if not choice.feasible:
        raise FedgeError(_out_of_reach(aim, read.point(choice.row)))


def pick(predictions: Predictions, aim: Aim) -> Choice:
    """The choice for an aim; raises ``BadInput`` for a limit that cannot be meant."""
    z = margin_z(aim.confidence, "--confidence")
    if aim.option == "--power-w":
        _check_limit(aim, predictions.power_w, "W", "draw", "milliwatts")
        return objectives.fastest_within_power(predictions, aim.value, z)
    if aim.option == "--deadline-s":
        _check_limit(aim, predictions.step_s, "s", "take", "milliseconds")
        return objectives.least_energy_within_deadline(predictions, aim.value, z)
    if aim.option == "--time-weight":
        return objectives.weighted(predictions, aim.value)
    return objectives.knee(predictions, "power")


def _check_aim(aim: Aim) -> None:
    if aim.is_limit and not (math.isfinite(aim.value) and aim.value > 0):
        raise BadInput(aim.option, f"{aim.value:g}", f"{'watts' if aim.option == '--power-w' else 'seconds'}, above 0")
    if aim.option == "--time-weight" and not 0.0 <= aim.value <= 1.0:
        raise BadInput(aim.option, f"{aim.value:g}", "a number from 0 (energy alone) to 1 (time alone)")
    if not 0.0 < aim.confidence < 1.0:
        example = f"{aim.confidence / 100:g}" if 1 < aim.confidence < 100 else "0.84"
        raise BadInput("--confidence", f"{aim.confidence:g}", f"a share between 0 and 1, such as {example}")


def _check_limit(aim: Aim, predicted: Floats, unit: str, verb: str, smaller: str) -> None:
    """A limit far beyond the modes is a slip of the unit, not a wish.

    The slowest modes may take a hundred times as long as the others, so that the median stands for what is usual.
    """
    low, usual = float(predicted.min()), float(np.median(predicted))
    if aim.value > FAR * usual:
        right = (
            f"a limit that can bind: half of the modes {verb} less than {number(usual)} {unit}; were these {smaller}?"
        )
        raise BadInput(aim.option, f"{aim.value:g} {unit}", right)
    if aim.value < low / FAR:
        right = f"a limit within reach: all modes {verb} at least {number(low)} {unit}; is this another unit?"
        raise BadInput(aim.option, f"{aim.value:g} {unit}", right)


def _out_of_reach(aim: Aim, nearest: Point) -> str:
    unit, least = ("W", nearest.power_w) if aim.option == "--power-w" else ("s", nearest.step_s)
    wish = f"{aim.value:g} {unit} with {100 * aim.confidence:g} % confidence"
    ends = f"{number(least.low90)} to {number(least.high90)} with 90 %"
    return f"no mode keeps {wish}; the nearest is {nearest.mode}: {number(least.value)} {unit}, {ends}"


def _print_choice(read: Opened, choice: Choice, aim: Aim) -> None:
    console, chosen, maxn = _console(), read.point(choice.row), read.point(read.maxn)
    _say(console, terminal.title(read.model.about))
    _say(console, f"{choice.why} Confidence: {100 * aim.confidence:g} %." if aim.is_limit else choice.why)
    console.print(terminal.choice_table("chosen" if choice.feasible else "nearest", chosen, maxn))
    _say(console, f"Per minibatch; predictions are {label_of(read.model.about)}, brackets hold them with 90 %.")
    if not choice.feasible:
        return
    _say(console, "To set it, with the names of the board's own /etc/nvpmodel.conf:")
    for line in terminal.settings(terminal.knob_values(chosen.mode)):
        _say(console, f"  {line}")


def _choice_data(read: Opened, choice: Choice, aim: Aim) -> dict[str, Any]:
    chosen, maxn = read.point(choice.row), read.point(read.maxn)
    return {
        "aim": aim.option.removeprefix("--").replace("-", "_"),
        "value": None if aim.option == "--knee" else aim.value,
        "confidence": aim.confidence if aim.is_limit else None,
        "feasible": bool(choice.feasible),
        "why": choice.why,
        "label": label_of(read.model.about),
        "chosen": asdict(chosen),
        "maxn": asdict(maxn),
        "set": terminal.knob_values(chosen.mode),
    }


# pareto ---------------------------------------------------------------------------------------------------------------


def pareto(model: Path, against: str, csv: Path | None, html: Path | None, as_json: bool) -> None:
    """Print the front, and write it as a table and as a page where asked."""
    _check_outputs(model, csv, html)
    cost = _cost(against)
    read = opened(model)
    front = front_of(read.predictions, cost, read.maxn, read.measured)
    if csv is not None:
        _write("--csv", csv, lambda path: run_folder.write_text(path, _csv(front)))
    if html is not None:
        _write("--html", html, lambda path: _draw(read, front, path))
    if as_json:
        _print_json(_front_data(read, front))
    else:
        _print_front(read, front)
        sys.stdout.writelines(f"written: {path}\n" for path in (csv, html) if path is not None)


def _front_data(read: Opened, front: ModeFront) -> dict[str, Any]:
    return {
        "against": front.against,
        "label": label_of(read.model.about),
        "front": [asdict(point) for point in front.points],
        "knee": asdict(front.knee),
        "maxn": asdict(front.maxn),
    }


def _cost(against: str) -> Against:
    known: tuple[Against, ...] = get_args(Against)
    for one in known:
        if one == against:
            return one
    raise UnknownName("--against", against, known)


def _check_outputs(model: Path, csv: Path | None, html: Path | None) -> None:
    taken = {model.resolve(): "the model"}
    for option, path, starts in (("--csv", csv, ",".join(_CSV[:6])), ("--html", html, "<!doctype html")):
        if path is None:
            continue
        if path.resolve() in taken:
            raise BadInput(option, str(path), f"another file than {taken[path.resolve()]}")
        check_output(option, path, starts)
        taken[path.resolve()] = option


def _print_front(read: Opened, front: ModeFront) -> None:
    console = _console()
    shown = terminal.thinned(front)
    some = f"; {len(shown)} of them here, all with --csv" if len(shown) < len(front.points) else ""
    count = f"{len(front.points)} of {len(read.model.candidates):,} modes lie on the front of time and {front.against}"
    _say(console, terminal.title(read.model.about))
    _say(console, count + some)
    console.print(terminal.front_table(front, shown))
    _say(console, f"Per minibatch; predictions are {label_of(read.model.about)}, brackets hold them with 90 %.")


def _csv(front: ModeFront) -> str:
    """The front as a table: knobs, every quantity with its 90 % interval, and what is known of the mode."""
    text = io.StringIO()
    writer = csvlib.DictWriter(text, _CSV, lineterminator="\n")
    writer.writeheader()
    for point in front.points:
        quantities = {name: getattr(point, name) for name in _QUANTITIES}
        intervals = {name + end: getattr(q, field) for name, q in quantities.items() for end, field in _ENDS}
        flags = {"measured": point.measured, "knee": point == front.knee, "maxn": point == front.maxn}
        writer.writerow({**asdict(point.mode), **intervals, **{name: int(flag) for name, flag in flags.items()}})
    return text.getvalue()


_QUANTITIES = ("step_s", "power_w", "energy_j")
_ENDS = (("", "value"), ("_low90", "low90"), ("_high90", "high90"))
_CSV = (
    *(field.name for field in fields(PowerMode)),
    *(f"{name}{end}" for name in _QUANTITIES for end, _ in _ENDS),
    *("measured", "knee", "maxn"),
)


def _draw(read: Opened, front: ModeFront, path: Path) -> None:
    from experiments.report.model.page import write_front

    write_front(front, facts_of(read.model, read.predictor, read.predictions), read.predictions, path)


# Terminal and files ---------------------------------------------------------------------------------------------------


def _write(option: str, path: Path, write: Callable[[Path], None]) -> None:
    try:
        write(path)
    except OSError as error:
        raise BadInput(option, str(path), f"a file that can be written ({error.strerror})") from error


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def _console() -> Console:
    from rich.console import Console

    return Console()


def _say(console: Console, text: str) -> None:
    """A line as it is: file names are no markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
