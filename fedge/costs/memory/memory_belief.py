"""Correction of the memory model by a board's own history of measured peaks and out-of-memory failures.

The belief is a single factor between the model's prediction and the true memory, held as a logarithm: the
precision-weighted mean of the observations, with the model's own spread as prior. A failure is only a lower bound: the
step needed more than was available. It counts as an observation just above the limit, and this step and any larger one
are predicted above the limit until a step of that size is seen to fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedge.costs.memory.step_need import StepNeed
from fedge.errors import BadInput

PEAK_SD_LOG = 0.03
"""Spread of one step's peak about its board's factor, log units: batch sizes and networks differ. Default; a smaller
value trusts measured peaks more and the model less."""
FAILURE_SD_LOG = 0.06
"""The same for a failure, which says less than a peak because the missing amount is unknown. Default; a smaller value
reacts more strongly to failures."""
MIN_MODEL_SD_LOG = 0.01
"""Smallest prior spread of the model on a board without history. Default; it bounds how strongly the model resists the
board's own measurements."""
FAILURE_MARGIN = 1.02
"""Factor on the limit that a failed step is predicted to need at least. Default; a larger value requires more
additional memory before a failed size is tried again."""


@dataclass(frozen=True, slots=True)
class MemoryBelief:
    """Correction of the memory model by a board's history.

    Attributes:
        log_factor: Mean log ratio of true to predicted memory.
        precision: Its precision; 0 without observations.
        peaks: Number of measured peaks.
        failures: Number of out-of-memory failures.
        failed_mb: Uncorrected prediction for the smallest failed step, in MB; None if no step failed.
        limit_mb: Memory that was available to it, in MB; None if no step failed.
    """

    log_factor: float = 0.0
    precision: float = 0.0
    peaks: int = 0
    failures: int = 0
    failed_mb: float | None = None
    limit_mb: float | None = None


def update_with_peak(belief: MemoryBelief, predicted_mb: float, peak_mb: float) -> MemoryBelief:
    """Return the belief after a step that fitted; it cancels a failure of a step of the same size or smaller.

    Args:
        belief: The belief before.
        predicted_mb: The model's uncorrected prediction in MB.
        peak_mb: The measured peak in MB.

    Raises:
        ValueError: A figure is not finite or not above 0.
    """
    learnt = _update_mean(belief, _log_ratio(predicted_mb, peak_mb), PEAK_SD_LOG)
    if belief.failed_mb is not None and predicted_mb >= belief.failed_mb:
        learnt = replace(learnt, failed_mb=None, limit_mb=None)
    return replace(learnt, peaks=belief.peaks + 1)


def update_with_failure(belief: MemoryBelief, predicted_mb: float, limit_mb: float) -> MemoryBelief:
    """Return the belief after a step that ran out of memory.

    Args:
        belief: The belief before.
        predicted_mb: The model's uncorrected prediction in MB.
        limit_mb: The memory that was available, in MB.

    Raises:
        ValueError: A figure is not finite or not above 0.
    """
    at_least = _log_ratio(predicted_mb, limit_mb * FAILURE_MARGIN)
    learnt = _update_mean(belief, at_least, FAILURE_SD_LOG) if at_least > belief.log_factor else belief
    tighter = _lower_bound_mb(belief, predicted_mb) < limit_mb * FAILURE_MARGIN
    if tighter:  # this failure gives a tighter bound for such steps than the recorded one
        learnt = replace(learnt, failed_mb=predicted_mb, limit_mb=limit_mb)
    return replace(learnt, failures=belief.failures + 1)


def correct_need(belief: MemoryBelief, need: StepNeed) -> StepNeed:
    """Correct a predicted need by the board's history: memory and its spread; time is unchanged.

    Args:
        belief: The board's history.
        need: The model's uncorrected prediction.
    """
    prior = 1.0 / max(need.memory_sd_log, MIN_MODEL_SD_LOG) ** 2
    total = belief.precision + prior
    factor = math.exp(belief.log_factor * belief.precision / total)
    memory_mb = max(need.memory_mb * factor, _lower_bound_mb(belief, need.memory_mb))
    if memory_mb == need.memory_mb and not belief.precision:
        return need
    sd_log = math.sqrt(1.0 / total + PEAK_SD_LOG**2) if belief.precision else need.memory_sd_log
    seen = f"{belief.peaks} peaks and {belief.failures} failures of this board"
    return replace(need, memory_mb=memory_mb, memory_sd_log=sd_log, source=f"{need.source}; corrected by {seen}")


def belief_to_dict(belief: MemoryBelief) -> dict[str, float | int | None]:
    """Convert a belief to plain data for a JSON file."""
    return asdict(belief)


def belief_from_dict(data: object, where: str) -> MemoryBelief:
    """Convert the data of ``belief_to_dict`` back to a belief.

    Args:
        data: The data read from a file.
        where: The file or field to name in the error.

    Raises:
        BadInput: The data have other fields or invalid values.
    """
    right = "a memory belief as fedge wrote it"
    if not isinstance(data, Mapping) or set(data) != set(asdict(MemoryBelief())):
        raise BadInput(where, type(data).__name__ if not isinstance(data, Mapping) else "other fields", right)
    _check_fields(data, where, right)
    return MemoryBelief(**data)


def _check_fields(data: Mapping[str, Any], where: str, right: str) -> None:
    for name in ("peaks", "failures"):
        if type(data[name]) is not int or data[name] < 0:
            raise BadInput(f"{where}: {name}", repr(data[name]), right)
    missing_allowed = {"failed_mb", "limit_mb"}
    for name in ("log_factor", "precision", *sorted(missing_allowed)):
        value = data[name]
        if value is None and name in missing_allowed:
            continue
        lowest = -math.inf if name == "log_factor" else 0.0
        if type(value) not in (int, float) or not math.isfinite(value) or value < lowest:
            raise BadInput(f"{where}: {name}", repr(value), right)
    if (data["failed_mb"] is None) != (data["limit_mb"] is None):
        raise BadInput(f"{where}: failed_mb", "one of failed_mb and limit_mb", "both or neither")


def _update_mean(belief: MemoryBelief, log_ratio: float, sd_log: float) -> MemoryBelief:
    precision = 1.0 / sd_log**2
    total = belief.precision + precision
    mean = (belief.log_factor * belief.precision + log_ratio * precision) / total
    return replace(belief, log_factor=mean, precision=total)


def _lower_bound_mb(belief: MemoryBelief, predicted_mb: float) -> float:
    """Return the memory that a step needs at least by the recorded failure, in MB; 0 if the failure does not apply."""
    if belief.failed_mb is None or belief.limit_mb is None or predicted_mb < belief.failed_mb:
        return 0.0
    return belief.limit_mb * FAILURE_MARGIN * predicted_mb / belief.failed_mb


def _log_ratio(predicted_mb: float, seen_mb: float) -> float:
    if not (math.isfinite(predicted_mb) and math.isfinite(seen_mb) and predicted_mb > 0 and seen_mb > 0):
        raise ValueError(f"memory: got {predicted_mb} and {seen_mb} MB; two finite figures above 0")
    return math.log(seen_mb / predicted_mb)
