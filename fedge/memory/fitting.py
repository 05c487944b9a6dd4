"""Which batch size and which width of the network fit into a board's memory; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fedge.memory import learning
from fedge.memory.learning import MemoryBelief, corrected, observed
from fedge.memory.need import StepNeed
from fedge.types import MemorySeen, Scale

Lower = Literal["batch-first", "width-first"]
"""What is lowered first."""
REMEMBERED = 30
"""So many tries of a board are remembered. Chosen by us."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A scale, what it is believed to need, and what the model alone says; ``fits`` is whether that is allowed."""

    scale: Scale
    need: StepNeed
    own_mb: float
    """The model's prediction before the board's history corrected it: what is learnt from."""
    fits: bool


def ladder(asked: Scale, min_batch: int, widths: Sequence[float], lower: Lower) -> tuple[Scale, ...]:
    """Every scale that may be tried, in the order of preference, ``asked`` first.

    Batch sizes are halved down to ``min_batch``. ``batch-first`` keeps the network as wide as any batch size allows,
    ``width-first`` the batch as large as any width allows.
    """
    batches = _halved(asked.batch_size, min_batch)
    kept = sorted({width for width in widths if width < asked.width} | {asked.width}, reverse=True)
    if lower == "batch-first":
        return tuple(Scale(batch, width) for width in kept for batch in batches)
    return tuple(Scale(batch, width) for batch in batches for width in kept)


def _halved(batch_size: int, least: int) -> tuple[int, ...]:
    sizes = [batch_size]
    while sizes[-1] > least:
        sizes.append(max(least, sizes[-1] // 2))
    return tuple(sizes)


def choose(
    scales: Iterable[Scale],
    need: Callable[[Scale], StepNeed],
    belief: MemoryBelief,
    limit_mb: float,
    margin: float,
    failed: Chosen | None = None,
) -> Chosen | None:
    """The first of ``scales`` whose corrected need plus ``margin`` is within ``limit_mb``; else the one of least need.

    With ``failed``, which has just run out of memory, only those that need less than it, or are smaller and need no
    more as far as the model can tell. None when there is none.
    """
    smallest: Chosen | None = None
    for chosen in _judged(scales, need, belief, limit_mb, margin):
        if failed is not None and not _smaller(chosen, failed):
            continue
        if chosen.fits:
            return chosen
        if smallest is None or chosen.own_mb < smallest.own_mb:
            smallest = chosen
    return smallest


def _smaller(chosen: Chosen, failed: Chosen) -> bool:
    if chosen.own_mb != failed.own_mb:
        return chosen.own_mb < failed.own_mb
    new, old = chosen.scale, failed.scale
    return new != old and new.batch_size <= old.batch_size and new.width <= old.width


def _judged(
    scales: Iterable[Scale],
    need: Callable[[Scale], StepNeed],
    belief: MemoryBelief,
    limit_mb: float,
    margin: float,
) -> Iterator[Chosen]:
    for scale in scales:
        own = need(scale)
        known = corrected(belief, own)
        yield Chosen(scale, known, own.memory_mb, known.memory_mb * (1.0 + margin) <= limit_mb)


def belief_of(seen: Iterable[MemorySeen]) -> MemoryBelief:
    """What a board's tries so far teach, oldest first."""
    belief = MemoryBelief()
    for one in seen:
        if one.peak_mb is None:
            belief = learning.failed(belief, one.predicted_mb, one.limit_mb)
        else:
            belief = observed(belief, one.predicted_mb, one.peak_mb)
    return belief


def remembered(seen: Sequence[MemorySeen], more: MemorySeen) -> tuple[MemorySeen, ...]:
    """The last tries, with one more."""
    return (*seen, more)[-REMEMBERED:]


def told(asked: Scale, used: Scale, predicted_mb: float, limit_mb: float, margin: float) -> str:
    """What was lowered and why, e.g. ``batch 16 -> 8: 1,910 MB predicted, 1,500 MB allowed``; empty for nothing."""
    spare = f" and {margin:.0%} to spare" if predicted_mb <= limit_mb else ""
    lowered = []
    if used.batch_size != asked.batch_size:
        lowered.append(f"batch {asked.batch_size} -> {used.batch_size}")
    if used.width != asked.width:
        lowered.append(f"width {asked.width:g} -> {used.width:g}")
    figures = f"{predicted_mb:,.0f} MB predicted{spare}, {limit_mb:,.0f} MB allowed"
    return f"{', '.join(lowered)}: {figures}" if lowered else ""
