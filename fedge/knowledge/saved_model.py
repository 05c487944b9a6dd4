"""Answers of a saved model: its summary, the mode that suits an objective, and its Pareto front.

Symbols: t, p predicted seconds and watts, s_t, s_p their standard deviations in log units; energy e = t p. Its standard
deviation is hypot(s_t, s_p), assuming independent errors; a value's 90 % interval is v exp(-+1.645 s).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedge.decisions import mode_objectives
from fedge.decisions.limits import compute_margin_z
from fedge.decisions.measured_correction import correct_relative_to_row, correct_with_measurements
from fedge.decisions.mode_objectives import FrontCost, find_front_rows, find_knee
from fedge.errors import BadInput, UnknownName
from fedge.knowledge.model_file import BoardModel, ModelInfo, fit_model_predictor, load_model, predict_candidates
from fedge.knowledge.model_summary import ModelSummary, prediction_label, summarize_model
from fedge.pareto import find_nearest_row
from fedge.predictors.table_board import Z_90
from fedge.protocols import Predictor
from fedge.types import Floats, Label, PowerMode, Predictions

UNIT_SLIP_FACTOR = 30.0
"""A limit beyond the predictions by this factor is taken for a unit error.

A wrong prefix is a factor of 1,000; this default is about its square root.
"""


@dataclass(frozen=True, slots=True, eq=False)
class SavedModel:
    """A saved model, fitted again, with predictions for every candidate mode.

    Attributes:
        predictions: One row per candidate, corrected by the measurements of measured modes.
        relative: The same for comparisons with MAXN (``correct_relative_to_row``).
        maxn_row: Row of the candidate nearest to the board's top mode.
    """

    model: BoardModel
    predictor: Predictor
    predictions: Predictions
    relative: Predictions
    measured: frozenset[PowerMode]
    maxn_row: int

    @property
    def label(self) -> Label:
        """Label of the predictions."""
        return prediction_label(self.model.about)

    def build_point(self, row: int) -> ModePoint:
        """Return the candidate in a row."""
        return build_mode_point(self.predictions, row, self.measured)

    def summarize(self) -> ModelSummary:
        """Return the model's training data, prior and uncertainty."""
        return summarize_model(self.model, self.predictor, self.predictions)


def open_model(path: Path) -> SavedModel:
    """Read a model, fit it and predict all candidates.

    Raises:
        BadInput: If the file is not a model.
    """
    return build_saved_model(load_model(path))


def build_saved_model(model: BoardModel) -> SavedModel:
    """Fit a model and predict all candidates."""
    predictor = fit_model_predictor(model)
    predicted, maxn_row = predict_candidates(model, predictor), find_nearest_row(model.candidates, model.knowledge.maxn)
    return SavedModel(
        model,
        predictor=predictor,
        predictions=correct_with_measurements(predicted, model.measurements),
        relative=correct_relative_to_row(predicted, model.measurements, maxn_row),
        measured=frozenset(measurement.mode for measurement in model.measurements),
        maxn_row=maxn_row,
    )


def model_summary_to_dict(summary: ModelSummary) -> dict[str, Any]:
    """Return a summary for JSON."""
    about, meaning = asdict(summary.about), summary.meaning
    return {
        **{name: about[name] for name in ("method", "device", "workload", "batch_size")},
        "learnt_from": {"modes": summary.modes, **about["origin"]},
        "label": summary.predictions_label,
        "held_out": about["held_out"],
        "spread": {"time": asdict(summary.time_spread), "power": asdict(summary.power_spread)},
        "prior": {"beliefs": summary.priors, "tables": about["prior_tables"], "used": meaning is not None},
        "references": [asdict(reference) for reference in summary.references],
        "idle_w": about["idle"],
        "candidates": {"modes": summary.candidates, "from": about["candidates"]},
        "measured": [_measurement_to_dict(summary, row) for row in range(len(summary.measurements))],
        "meaning": meaning and asdict(meaning),
    }


def _measurement_to_dict(summary: ModelSummary, row: int) -> dict[str, Any]:
    """Return a measurement and the model's prediction for its mode."""
    measurement, prediction = summary.measurements[row], summary.predicted[row]
    measured = {name: getattr(measurement, name) for name in ("steps", "throttled", "step_s", "power_w")}
    names = ("step_s", "power_w", "step_s_sd_log", "power_w_sd_log")
    predicted = {f"predicted_{name}": getattr(prediction, name) for name in names}
    return {**asdict(measurement.mode), **measured, **predicted}


# The mode for an objective --------------------------------------------------------------------------------------------


LIMIT_UNITS = {"--max-power-w": "watts", "--max-step-s": "seconds", "--max-slowdown": "times MAXN's time"}
"""Objectives that are limits, with their units."""


@dataclass(frozen=True, slots=True)
class ChoiceAim:
    """The objective of a choice.

    Attributes:
        option: One of ``--max-power-w``, ``--max-step-s``, ``--max-slowdown``, ``--time-weight`` and ``--knee``.
        value: Limit in watts, in seconds per step or as a multiple of MAXN's time, or weight of time (0 to 1); 1 for
            the knee.
        confidence: Probability with which a limit must be met.
    """

    option: str
    value: float
    confidence: float

    @property
    def is_limit(self) -> bool:
        """Whether the objective is a limit, to be met with a confidence."""
        return self.option in LIMIT_UNITS


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The mode that a model chooses for an objective.

    Attributes:
        feasible: Whether the mode meets the limit; if not, it is the one that comes nearest.
    """

    about: ModelInfo
    aim: ChoiceAim
    feasible: bool
    why: str
    label: Label
    chosen: ModePoint
    maxn: ModePoint


def build_aim(
    *,
    max_power_w: float | None,
    max_step_s: float | None,
    max_slowdown: float | None,
    time_weight: float | None,
    knee: bool,
    confidence: float,
) -> ChoiceAim:
    """Return the one objective that is given.

    Raises:
        BadInput: If none or several are given, or a value is out of range.
    """
    values = {
        "--max-power-w": max_power_w,
        "--max-step-s": max_step_s,
        "--max-slowdown": max_slowdown,
        "--time-weight": time_weight,
        "--knee": knee or None,
    }
    given = [(option, float(value)) for option, value in values.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(option for option, _ in given) or "no objective"
        raise BadInput("fedge predict choose", got, f"exactly one of {', '.join(values)}")
    aim = ChoiceAim(*given[0], confidence)
    if aim.option == "--max-slowdown" and not (math.isfinite(aim.value) and aim.value >= 1.0):
        raise BadInput(aim.option, f"{aim.value:g}", "1 or more, as 1.05 for at most 5 % slower than MAXN")
    if aim.is_limit and not (math.isfinite(aim.value) and aim.value > 0):
        raise BadInput(aim.option, f"{aim.value:g}", f"{LIMIT_UNITS[aim.option]}, above 0")
    if aim.option == "--time-weight" and not 0.0 <= aim.value <= 1.0:
        raise BadInput(aim.option, f"{aim.value:g}", "a number from 0 (energy alone) to 1 (time alone)")
    if not 0.0 < confidence < 1.0:
        example = f"{confidence / 100:g}" if 50 <= confidence < 100 else "0.84"
        raise BadInput("--confidence", f"{confidence:g}", f"a share between 0 and 1, such as {example}")
    return aim


def choose_model_mode(model: Path | SavedModel, aim: ChoiceAim) -> ModelChoice:
    """Choose a mode with a saved model.

    Raises:
        BadInput: If the file is not a model, or the limit is implausible, see ``UNIT_SLIP_FACTOR``.
    """
    saved = model if isinstance(model, SavedModel) else open_model(model)
    relative = aim.option == "--max-slowdown"
    choice = choose_for_aim(saved.relative if relative else saved.predictions, aim, saved.maxn_row)
    return ModelChoice(
        saved.model.about,
        aim=aim,
        feasible=bool(choice.feasible),
        why=choice.why,
        label=saved.label,
        chosen=saved.build_point(choice.row),
        maxn=saved.build_point(saved.maxn_row),
    )


def choose_for_aim(predictions: Predictions, aim: ChoiceAim, maxn_row: int) -> mode_objectives.ModeChoice:
    """Choose a mode for an objective; ``maxn_row`` is the prediction of MAXN.

    Raises:
        BadInput: If a limit is implausible, see ``UNIT_SLIP_FACTOR``.
    """
    z = compute_margin_z(aim.confidence, "--confidence")
    if aim.option == "--max-power-w":
        _check_limit(aim, predicted=predictions.power_w, unit="W", verb="draw", smaller="milliwatts")
        return mode_objectives.find_fastest_within_power(predictions, aim.value, z)
    if aim.option == "--max-step-s":
        _check_limit(aim, predicted=predictions.step_s, unit="s", verb="take", smaller="milliseconds")
        return mode_objectives.find_least_energy_within_deadline(predictions, aim.value, z)
    if aim.option == "--max-slowdown":
        return mode_objectives.find_least_energy_within_slowdown(predictions, maxn_row, aim.value, z)
    if aim.option == "--time-weight":
        return mode_objectives.find_best_weighted(predictions, aim.value)
    return mode_objectives.find_knee(predictions, "power")


def _check_limit(aim: ChoiceAim, predicted: Floats, unit: str, verb: str, smaller: str) -> None:
    """Raise ``BadInput`` for a limit so far beyond the predictions that its unit must be wrong.

    The median represents the modes, because the slowest may take a hundred times as long as the others.
    """
    low, usual = float(predicted.min()), float(np.median(predicted))
    if aim.value > UNIT_SLIP_FACTOR * usual:
        right = f"a limit that can bind: half of the modes {verb} less than {usual:.3g} {unit}; were these {smaller}?"
        raise BadInput(aim.option, f"{aim.value:g} {unit}", right)
    if aim.value < low / UNIT_SLIP_FACTOR:
        right = f"a limit within reach: all modes {verb} at least {low:.3g} {unit}; is this another unit?"
        raise BadInput(aim.option, f"{aim.value:g} {unit}", right)


def model_choice_to_dict(choice: ModelChoice) -> dict[str, Any]:
    """Return a choice for JSON."""
    aim = choice.aim
    return {
        "aim": aim.option.removeprefix("--").replace("-", "_"),
        "value": None if aim.option == "--knee" else aim.value,
        "confidence": aim.confidence if aim.is_limit else None,
        "feasible": choice.feasible,
        "why": choice.why,
        "label": choice.label,
        "chosen": asdict(choice.chosen),
        "maxn": asdict(choice.maxn),
        "set": to_control_values(choice.chosen.mode),
    }


def to_control_values(mode: PowerMode) -> dict[str, int]:
    """Convert a mode to the units of a board's control files: kHz for the CPU, Hz for GPU and memory."""
    return {
        "cpu_online": mode.cores,
        "cpu_max_freq_khz": round(1e3 * mode.cpu_mhz),
        "gpu_max_freq_hz": round(1e6 * mode.gpu_mhz),
        "emc_max_freq_hz": round(1e6 * mode.mem_mhz),
    }


# The front ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ModelFront:
    """The Pareto front of a saved model."""

    front: ModeFront
    summary: ModelSummary
    predictions: Predictions


def build_model_front(model: Path | SavedModel, against: str) -> ModelFront:
    """Return the modes of a saved model that no other mode beats in both time and cost.

    Raises:
        BadInput: If the cost is unknown or the file is not a model.
    """
    cost = _parse_front_cost(against)
    saved = model if isinstance(model, SavedModel) else open_model(model)
    front = build_mode_front(saved.predictions, cost, saved.maxn_row, saved.measured)
    return ModelFront(front, saved.summarize(), saved.predictions)


def _parse_front_cost(against: str) -> FrontCost:
    known: tuple[FrontCost, ...] = get_args(FrontCost)
    for cost in known:
        if cost == against:
            return cost
    raise UnknownName("--against", against, known)


def model_front_to_dict(model_front: ModelFront) -> dict[str, Any]:
    """Return a front for JSON."""
    front = model_front.front
    return {
        "against": front.against,
        "label": model_front.summary.predictions_label,
        "front": [asdict(point) for point in front.points],
        "knee": asdict(front.knee),
        "maxn": asdict(front.maxn),
    }


@dataclass(frozen=True, slots=True)
class PredictionInterval:
    """A prediction with its 90 % interval."""

    value: float
    low90: float
    high90: float


@dataclass(frozen=True, slots=True)
class ModePoint:
    """The time, power and energy of a step in one mode.

    Attributes:
        measured: Whether the model learnt from this mode.
    """

    mode: PowerMode
    step_s: PredictionInterval
    power_w: PredictionInterval
    energy_j: PredictionInterval
    measured: bool


@dataclass(frozen=True, slots=True)
class ModeFront:
    """The Pareto-optimal modes from fastest to cheapest.

    Attributes:
        against: Cost that is traded against time.
        maxn: The board's top mode, whether on the front or not.
    """

    against: FrontCost
    points: tuple[ModePoint, ...]
    knee: ModePoint
    maxn: ModePoint


def build_mode_point(predictions: Predictions, row: int, measured: Collection[PowerMode] = ()) -> ModePoint:
    """Return the mode in this row."""
    mode = predictions.modes[row]
    time_sd, power_sd = float(predictions.step_s_sd_log[row]), float(predictions.power_w_sd_log[row])
    step_s, power_w = float(predictions.step_s[row]), float(predictions.power_w[row])
    return ModePoint(
        mode,
        step_s=_prediction_interval(step_s, time_sd),
        power_w=_prediction_interval(power_w, power_sd),
        energy_j=_prediction_interval(step_s * power_w, float(np.hypot(time_sd, power_sd))),
        measured=mode in measured,
    )


def build_mode_front(
    predictions: Predictions, against: FrontCost, maxn: int, measured: Collection[PowerMode] = ()
) -> ModeFront:
    """Return the front of all rows; ``maxn`` is the row of the board's top mode.

    Raises:
        FedgeError: If no row is finite.
    """
    points = tuple(build_mode_point(predictions, int(row), measured) for row in find_front_rows(predictions, against))
    bend = build_mode_point(predictions, find_knee(predictions, against).row, measured)
    return ModeFront(against, points, bend, build_mode_point(predictions, maxn, measured))


def _prediction_interval(value: float, sd_log: float) -> PredictionInterval:
    factor = float(np.exp(Z_90 * sd_log))
    return PredictionInterval(value, value / factor, value * factor)
