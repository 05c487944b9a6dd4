"""What a board's runs teach about its memory: peaks that were seen and steps that ran out of it correct the model.

The belief is one factor between the model's own prediction and the truth, as a logarithm: a precision-weighted mean of
what was seen, with the model's own spread as its prior. A failure is no figure, only a bound: the step needed more than
there was. It counts as a figure just above the limit, and the step (and any larger one) is held above the limit until
a step as large is seen to fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedge.costs.memory.step_need import StepNeed
from fedge.errors import BadInput

PEAK_SD_LOG = 0.03
"""How far one step's peak lies off the factor of its board: batch sizes and networks differ. Chosen by us."""
FAILURE_SD_LOG = 0.06
"""A failure says less than a peak: how much was missing is unknown. Chosen by us."""
MIN_MODEL_SD_LOG = 0.01
"""No model is surer than this of a board that it has not seen. Chosen by us."""
FAILURE_MARGIN = 1.02
"""A step that failed is believed to need so many times the limit at least. Chosen by us."""


@dataclass(frozen=True, slots=True)
class MemoryBelief:
    """What was learnt: the mean log factor and its precision (0: nothing seen yet), and the smallest step that failed.

    ``failed_mb`` is that step's uncorrected prediction, ``limit_mb`` what there was; both None where no step failed.
    """

    log_factor: float = 0.0
    precision: float = 0.0
    peaks: int = 0
    failures: int = 0
    failed_mb: float | None = None
    limit_mb: float | None = None


def update_with_peak(belief: MemoryBelief, predicted_mb: float, peak_mb: float) -> MemoryBelief:
    """The belief after a step that fitted; ``predicted_mb`` is the model's own figure, before any correction.

    A step as large as one that failed, which now fits, takes that failure back. Raises ``ValueError`` for figures that
    are not above 0.
    """
    learnt = _update_mean(belief, _log_ratio(predicted_mb, peak_mb), PEAK_SD_LOG)
    if belief.failed_mb is not None and predicted_mb >= belief.failed_mb:
        learnt = replace(learnt, failed_mb=None, limit_mb=None)
    return replace(learnt, peaks=belief.peaks + 1)


def update_with_failure(belief: MemoryBelief, predicted_mb: float, limit_mb: float) -> MemoryBelief:
    """The belief after a step ran out of ``limit_mb``; ``predicted_mb`` is the model's own figure, uncorrected.

    Raises ``ValueError`` for figures that are not above 0.
    """
    at_least = _log_ratio(predicted_mb, limit_mb * FAILURE_MARGIN)
    learnt = _update_mean(belief, at_least, FAILURE_SD_LOG) if at_least > belief.log_factor else belief
    tighter = _lower_bound_mb(belief, predicted_mb) < limit_mb * FAILURE_MARGIN
    if tighter:  # a smaller or a more telling failure; the one known before says no more about this step
        learnt = replace(learnt, failed_mb=predicted_mb, limit_mb=limit_mb)
    return replace(learnt, failures=belief.failures + 1)


def correct_need(belief: MemoryBelief, need: StepNeed) -> StepNeed:
    """The need as the board's own history has it: memory and its spread; the time stays."""
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
    """The belief for a JSON file."""
    return asdict(belief)


def belief_from_dict(data: object, where: str) -> MemoryBelief:
    """What ``belief_to_dict`` wrote; raises ``BadInput`` that names ``where`` for anything else."""
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
    """What a step of this uncorrected prediction needs at least, by the failure; 0 where none speaks of it."""
    if belief.failed_mb is None or belief.limit_mb is None or predicted_mb < belief.failed_mb:
        return 0.0
    return belief.limit_mb * FAILURE_MARGIN * predicted_mb / belief.failed_mb


def _log_ratio(predicted_mb: float, seen_mb: float) -> float:
    if not (math.isfinite(predicted_mb) and math.isfinite(seen_mb) and predicted_mb > 0 and seen_mb > 0):
        raise ValueError(f"memory: got {predicted_mb} and {seen_mb} MB; two finite figures above 0")
    return math.log(seen_mb / predicted_mb)
