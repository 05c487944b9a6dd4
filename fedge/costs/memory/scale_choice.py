"""Choice of the batch size and network width that fit into a board's memory; pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fedge.costs.memory import memory_belief
from fedge.costs.memory.memory_belief import MemoryBelief, correct_need, update_with_peak
from fedge.costs.memory.step_need import StepNeed
from fedge.types import MemoryObservation, TrainingScale

LoweringOrder = Literal["batch-first", "width-first"]
"""Which of batch size and width is reduced first."""
MAX_HISTORY = 30
"""Number of training attempts kept per board. Default; a shorter history adapts faster after a change of software."""


@dataclass(frozen=True, slots=True)
class ScaleChoice:
    """A training scale with its predicted need.

    Attributes:
        scale: Batch size and width.
        need: The need, corrected by the board's history.
        uncorrected_mb: The model's own prediction in MB, which the history is compared with.
        fits: Whether the need plus margin is within the limit.
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
    margin: float,
    failed: ScaleChoice | None = None,
) -> ScaleChoice | None:
    """Choose the first scale whose corrected need plus margin is within the limit, otherwise the one with the least
    need.

    Args:
        scales: The scales in order of preference.
        need: The model's uncorrected need of a scale.
        belief: The board's history.
        limit_mb: Allowed memory in MB.
        margin: Safety margin relative to the need (0.1 is 10 %).
        failed: The choice that has just run out of memory; only scales with a smaller need are then considered, or
            smaller scales of the same predicted need.

    Returns:
        The choice, or None if no scale is left.
    """
    smallest: ScaleChoice | None = None
    for chosen in _evaluate_scales(scales, need=need, belief=belief, limit_mb=limit_mb, margin=margin):
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


def _evaluate_scales(
    scales: Iterable[TrainingScale],
    need: Callable[[TrainingScale], StepNeed],
    belief: MemoryBelief,
    limit_mb: float,
    margin: float,
) -> Iterator[ScaleChoice]:
    for scale in scales:
        own = need(scale)
        known = correct_need(belief, own)
        yield ScaleChoice(scale, known, own.memory_mb, known.memory_mb * (1.0 + margin) <= limit_mb)


def build_memory_belief(seen: Iterable[MemoryObservation]) -> MemoryBelief:
    """Build the belief from a board's training attempts, oldest first."""
    belief = MemoryBelief()
    for one in seen:
        if one.peak_mb is None:
            belief = memory_belief.update_with_failure(belief, one.predicted_mb, one.limit_mb)
        else:
            belief = update_with_peak(belief, one.predicted_mb, one.peak_mb)
    return belief


def extend_history(seen: Sequence[MemoryObservation], more: MemoryObservation) -> tuple[MemoryObservation, ...]:
    """Append an attempt to the history, keeping the last ``MAX_HISTORY``."""
    return (*seen, more)[-MAX_HISTORY:]


def describe_scaling(
    asked: TrainingScale, used: TrainingScale, predicted_mb: float, limit_mb: float, margin: float
) -> str:
    """Describe what was reduced and why, e.g. ``batch 16 -> 8: 1,910 MB predicted, 1,500 MB allowed``.

    Args:
        asked: The requested scale.
        used: The scale in use.
        predicted_mb: Predicted need of the requested scale in MB.
        limit_mb: Allowed memory in MB.
        margin: Safety margin relative to the need.

    Returns:
        The description; empty if nothing was reduced.
    """
    spare = f" and {margin:.0%} to spare" if predicted_mb <= limit_mb else ""
    lowered = []
    if used.batch_size != asked.batch_size:
        lowered.append(f"batch {asked.batch_size} -> {used.batch_size}")
    if used.width != asked.width:
        lowered.append(f"width {asked.width:g} -> {used.width:g}")
    figures = f"{predicted_mb:,.0f} MB predicted{spare}, {limit_mb:,.0f} MB allowed"
    return f"{', '.join(lowered)}: {figures}" if lowered else ""
