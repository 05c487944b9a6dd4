"""In which order findings are told: the strongest first, but not many of one kind in a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fedge.characterisation.findings.finding import Finding

AGAIN = 0.6
"""What every further finding of a kind counts beside the one before it; chosen by us."""


def ranked(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The one that matters most first; ``strength`` becomes the one by which they are ordered."""
    left = sorted(found, key=lambda one: -one.strength)
    told: Counter[str] = Counter()
    order: list[Finding] = []
    for one in left:
        order.append(replace(one, strength=one.strength * AGAIN ** told[one.kind]))
        told[one.kind] += 1
    return tuple(sorted(order, key=lambda one: -one.strength))
