"""Choice of the batch size and network width that fit into a board's memory, corrected by the board's own history.

The belief about a board is a single factor between the model's prediction and the true memory, held as a logarithm: the
precision-weighted mean of the observations, with the model's own spread as prior. A failure is only a lower bound: the
step needed more than was available. It counts as an observation just above the limit, and this step and any larger one
are predicted above the limit until a step of that size is seen to fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedge.costs.memory.step_need import StepNeed
from fedge.types import MemoryObservation, TrainingScale

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
    """Return the belief after a step that fitted, from the uncorrected prediction and the measured peak.

    The step cancels a failure of a step of the same size or smaller.

    Raises:
        ValueError: A figure is not finite or not above 0.
    """
    if belief.failed_mb is not None and predicted_mb >= belief.failed_mb:
        belief = replace(belief, failed_mb=None, limit_mb=None)
    return _update_mean(belief, _log_ratio(predicted_mb, peak_mb), PEAK_SD_LOG, peaks=belief.peaks + 1)


def update_with_failure(belief: MemoryBelief, predicted_mb: float, limit_mb: float) -> MemoryBelief:
    """Return the belief after a step of this uncorrected prediction ran out of the memory that was available.

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
    """Correct a predicted need by the board's history: memory and its spread; time is unchanged."""
    prior = 1.0 / max(need.memory_sd_log, MIN_MODEL_SD_LOG) ** 2
    total = belief.precision + prior
    factor = math.exp(belief.log_factor * belief.precision / total)
    memory_mb = max(need.memory_mb * factor, _lower_bound_mb(belief, need.memory_mb))
    if memory_mb == need.memory_mb and not belief.precision:
        return need
    sd_log = math.sqrt(1.0 / total + PEAK_SD_LOG**2) if belief.precision else need.memory_sd_log
    seen = f"{belief.peaks} peaks and {belief.failures} failures of this board"
    return replace(need, memory_mb=memory_mb, memory_sd_log=sd_log, source=f"{need.source}; corrected by {seen}")


def _update_mean(belief: MemoryBelief, log_ratio: float, sd_log: float, **counts: int) -> MemoryBelief:
    precision = 1.0 / sd_log**2
    total = belief.precision + precision
    mean = (belief.log_factor * belief.precision + log_ratio * precision) / total
    return replace(belief, log_factor=mean, precision=total, **counts)


def _lower_bound_mb(belief: MemoryBelief, predicted_mb: float) -> float:
    """Return the memory that a step needs at least by the recorded failure, in MB; 0 if the failure does not apply."""
    if belief.failed_mb is None or belief.limit_mb is None or predicted_mb < belief.failed_mb:
        return 0.0
    return belief.limit_mb * FAILURE_MARGIN * predicted_mb / belief.failed_mb


def _log_ratio(predicted_mb: float, seen_mb: float) -> float:
    if not (math.isfinite(predicted_mb) and math.isfinite(seen_mb) and predicted_mb > 0 and seen_mb > 0):
        raise ValueError(f"memory: got {predicted_mb} and {seen_mb} MB; two finite figures above 0")
    return math.log(seen_mb / predicted_mb)


LoweringOrder = Literal["batch-first", "width-first"]
"""Which of batch size and width is reduced first."""
MAX_HISTORY = 30
"""Number of training attempts kept per board. Default; a shorter history adapts faster after a change of software."""


@dataclass(frozen=True, slots=True)
class ScaleChoice:
    """A training scale with its predicted need.

    Attributes:
        uncorrected_mb: The model's own prediction in MB, which the history is compared with.
        fits: Whether the need plus margin, or its bound, is within the limit.
    """

    scale: TrainingScale
    need: StepNeed
    uncorrected_mb: float
    fits: bool


def list_scales(
    asked: TrainingScale, min_batch: int, widths: Sequence[float], lower: LoweringOrder
) -> tuple[TrainingScale, ...]:
    """List the scales that may be tried, in order of preference.

    Args:
        asked: The requested scale, which comes first.
        min_batch: Smallest batch size; batch sizes are halved down to it.
        widths: Allowed widths, above 0 to 1; those above the requested one are ignored.
        lower: ``batch-first`` keeps the network as wide as any batch size allows, ``width-first`` the batch as large as
            any width allows.
    """
    batches = _halving_sizes(asked.batch_size, min_batch)
    kept = sorted({width for width in widths if width < asked.width} | {asked.width}, reverse=True)
    if lower == "batch-first":
        return tuple(TrainingScale(batch, width) for width in kept for batch in batches)
    return tuple(TrainingScale(batch, width) for batch in batches for width in kept)


def _halving_sizes(batch_size: int, least: int) -> tuple[int, ...]:
    sizes = [batch_size]
    while sizes[-1] > least:
        sizes.append(max(least, sizes[-1] // 2))
    return tuple(sizes)


def choose_scale(
    scales: Iterable[TrainingScale],
    need: Callable[[TrainingScale], StepNeed],
    belief: MemoryBelief,
    limit_mb: float,
    margin: float | None,
    failed: ScaleChoice | None = None,
) -> ScaleChoice | None:
    """Choose the first scale whose corrected need plus margin is within the limit, otherwise the one with the least
    need.

    Args:
        scales: The scales in order of preference.
        need: The model's uncorrected need of a scale.
        belief: The board's history.
        limit_mb: Allowed memory in MB.
        margin: Safety margin relative to the need (0.1 is 10 %); None for the need's 99 % bound, which a board's peaks
            bring closer.
        failed: The choice that has just run out of memory; only scales with a smaller need are then considered, or
            smaller scales of the same predicted need.

    Returns:
        The choice, or None if no scale is left.
    """
    smallest: ScaleChoice | None = None
    for scale in scales:
        own = need(scale)
        known = correct_need(belief, own)
        chosen = ScaleChoice(scale, known, own.memory_mb, compute_safe_mb(known, margin) <= limit_mb)
        if failed is not None and not _is_smaller(chosen, failed):
            continue
        if chosen.fits:
            return chosen
        if smallest is None or chosen.uncorrected_mb < smallest.uncorrected_mb:
            smallest = chosen
    return smallest


def _is_smaller(chosen: ScaleChoice, failed: ScaleChoice) -> bool:
    if chosen.uncorrected_mb != failed.uncorrected_mb:
        return chosen.uncorrected_mb < failed.uncorrected_mb
    new, old = chosen.scale, failed.scale
    return new != old and new.batch_size <= old.batch_size and new.width <= old.width


def compute_safe_mb(need: StepNeed, margin: float | None) -> float:
    """Return the memory that a step must find, in MB: with a margin, or without one the bound of 99 %."""
    return need.upper_mb if margin is None else need.memory_mb * (1.0 + margin)


def describe_safety(margin: float | None) -> str:
    """Describe what ``compute_safe_mb`` adds to the predicted memory."""
    return "99 % confidence" if margin is None else f"{100 * margin:.3g} % to spare"


def build_memory_belief(seen: Iterable[MemoryObservation]) -> MemoryBelief:
    """Build the belief from a board's training attempts, oldest first."""
    belief = MemoryBelief()
    for one in seen:
        if one.peak_mb is None:
            belief = update_with_failure(belief, one.predicted_mb, one.limit_mb)
        else:
            belief = update_with_peak(belief, one.predicted_mb, one.peak_mb)
    return belief


def extend_history(seen: Sequence[MemoryObservation], more: MemoryObservation) -> tuple[MemoryObservation, ...]:
    """Append an attempt to the history, keeping the last ``MAX_HISTORY``."""
    return (*seen, more)[-MAX_HISTORY:]


def describe_scaling(
    asked: TrainingScale, used: TrainingScale, need: StepNeed, limit_mb: float, margin: float | None
) -> str:
    """Describe what was reduced and why, e.g. ``batch 16 -> 8: 1,910 MB predicted, 1,500 MB allowed``; empty if nothing
    was.

    Args:
        need: The predicted need at the scale that is asked for.
    """
    is_close = need.memory_mb <= limit_mb
    safe = f", {compute_safe_mb(need, margin):,.0f} MB with {describe_safety(margin)}" if is_close else ""
    lowered = []
    if used.batch_size != asked.batch_size:
        lowered.append(f"batch {asked.batch_size} -> {used.batch_size}")
    if used.width != asked.width:
        lowered.append(f"width {asked.width:g} -> {used.width:g}")
    figures = f"{need.memory_mb:,.0f} MB predicted{safe}, {limit_mb:,.0f} MB allowed"
    return f"{', '.join(lowered)}: {figures}" if lowered else ""
