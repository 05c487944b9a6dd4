"""A finding: one plain sentence with its figure, the evidence for it, and how much it matters."""

from __future__ import annotations

from dataclasses import dataclass

from fedge.types import Label

KINDS = (
    *("workers", "prefetch", "batch_size", "pinned", "storage", "cache", "runtime", "dvfs", "inference"),
    *("cores", "cpu", "gpu", "memory"),
    *("bound", "energy", "plane", "pipelining"),
    *("varies-within", "varies-between", "throttled", "unsettled", "disturbed"),
)
"""What a finding can be about: a knob, a clock of the power mode, a sweep as a whole, how far it may be trusted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a sweep shows, in words."""

    title: str
    """One plain sentence with its figure."""
    evidence: tuple[str, ...]
    """Sentences with figures, intervals, and the keys of points."""
    strength: float
    """How much it matters, for the order: about the share of an epoch's time or energy that it is about."""
    kind: str
    """One of ``KINDS``."""
    points: tuple[str, ...]
    """Keys."""
    board: str = ""
    workload: str = ""
    """Empty where it is about all of them."""
    label: Label = "estimated"
