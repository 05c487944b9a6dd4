"""Summary of a model: its source, its uncertainty, and its measurements beside its own predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedge.knowledge.model_file import BoardModel, ModelInfo
from fedge.modes import stack_modes
from fedge.physics.time_power_model import (
    POWER_NAMES,
    TIME_NAMES,
    Coefficients,
    compute_power_terms,
    compute_time_parts,
    knob_shares,
)
from fedge.predictors.blended_predictor import BlendedPredictor
from fedge.predictors.candidate_blend import PooledFit
from fedge.predictors.physical_predictor import PhysicalPredictor
from fedge.protocols import Predictor
from fedge.types import Floats, Label, Measurement, Prediction, Predictions, fitted_label


@dataclass(frozen=True, slots=True)
class PredictionSpread:
    """Quantiles of the standard deviation of the logarithm over the candidates; 0.05 is about 5 %."""

    median: float
    p95: float


@dataclass(frozen=True, slots=True)
class PhysicalBreakdown:
    """A step's time and power at MAXN by the terms of the physical model inside the predictor, by name.

    The terms of time overlap: their sum exceeds the step's time.
    """

    time_s: Mapping[str, float]
    power_w: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A table of another workload that the model uses as a reference."""

    device: str
    workload: str
    batch_size: int
    rows: int
    name: str
    sha256: str
    label: Label


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """All facts of a model that do not depend on a choice of mode.

    Attributes:
        meaning: Terms of the physical model; None for methods without one.
    """

    about: ModelInfo
    predictions_label: Label
    """``calibrated`` if fitted to measured modes, ``estimated`` if those were emulated, else ``unknown``."""
    modes: int
    candidates: int
    priors: int
    references: tuple[ModelReference, ...]
    time_spread: PredictionSpread
    power_spread: PredictionSpread
    measurements: tuple[Measurement, ...]
    predicted: tuple[Prediction, ...]
    """Prediction for each measurement's mode, in the same order."""
    meaning: PhysicalBreakdown | None


def summarize_model(model: BoardModel, predictor: Predictor, predictions: Predictions) -> ModelSummary:
    """Summarise a model."""
    known = model.knowledge
    seen = predictor.predict(stack_modes(measurement.mode for measurement in model.measurements))
    return ModelSummary(
        about=model.about,
        predictions_label=prediction_label(model.about),
        modes=len({measurement.mode for measurement in model.measurements}),
        candidates=len(model.candidates),
        priors=len(known.priors),
        references=tuple(
            ModelReference(
                r.device,
                workload=r.workload,
                batch_size=r.batch_size,
                rows=len(r.modes),
                name=Path(r.path).name,
                sha256=r.sha256,
                label=r.label,
            )
            for r in known.references
        ),
        time_spread=_summarize_spread(predictions.step_s_sd_log),
        power_spread=_summarize_spread(predictions.power_w_sd_log),
        measurements=model.measurements,
        predicted=_list_predictions(seen),
        meaning=explain_model(model, predictor),
    )


def prediction_label(about: ModelInfo) -> Label:
    """Return the label of a model's predictions, by whether it was fitted to measured or emulated modes."""
    return fitted_label(about.origin.label)


def explain_model(model: BoardModel, predictor: Predictor) -> PhysicalBreakdown | None:
    """Return the terms of the physical model at MAXN, or None for a method without one."""
    coefficients = _find_coefficients(predictor)
    if coefficients is None:
        return None
    x = knob_shares(model.knowledge.maxn, stack_modes([model.knowledge.maxn]))
    parts = compute_time_parts(coefficients.time, x)
    seconds = {
        "GPU arithmetic": parts.math_s,
        "GPU memory traffic": parts.mem_s,
        "loading and preprocessing": parts.prep_s,
        "kernel launches": parts.launch_s,
        "host work nothing hides": parts.host_s,
        "fixed": parts.total_s - parts.overlapped_s - parts.host_s,
        "together": parts.total_s,
    }
    watts = dict(zip(_POWER_TERM_NAMES, compute_power_terms(coefficients.power, parts), strict=True))
    watts["together"] = sum(watts.values(), np.zeros(1))
    return PhysicalBreakdown(*({name: float(one[0]) for name, one in terms.items()} for terms in (seconds, watts)))


_POWER_TERM_NAMES = (
    "always on",
    "CPU cores on",
    "GPU on",
    "memory on",
    "CPU cores loading and preprocessing",
    "CPU core driving the GPU",
    "GPU busy",
    "GPU arithmetic",
    "memory traffic",
)
"""Names of the terms of ``compute_power_terms`` in the same order."""


def _find_coefficients(predictor: Predictor) -> Coefficients | None:
    """Return the coefficients of the most probable physical model in the predictor, or None."""
    if isinstance(predictor, PhysicalPredictor):
        return predictor.posteriors_[int(np.argmax(predictor.weights_))].coefficients
    if isinstance(predictor, BlendedPredictor) and isinstance(predictor.fit_, PooledFit):
        # For a candidate with a reference, the reference's weight follows the physical parameters.
        time, power = predictor.fit_.time.best, predictor.fit_.power.best
        return Coefficients(time[: len(TIME_NAMES)], power[: len(POWER_NAMES)])
    return None


def _summarize_spread(sd_log: Floats) -> PredictionSpread:
    median, p95 = np.percentile(sd_log, [50, 95])
    return PredictionSpread(float(median), float(p95))


def _list_predictions(predictions: Predictions) -> tuple[Prediction, ...]:
    columns: Sequence[Floats] = (
        predictions.step_s,
        predictions.power_w,
        predictions.step_s_sd_log,
        predictions.power_w_sd_log,
    )
    return tuple(
        Prediction(mode, *row) for mode, row in zip(predictions.modes, np.stack(columns, 1).tolist(), strict=True)
    )
