"""From knobs' values to points: every sweep's cross product over the base, united, in an order that the seed sets.

The order within a repeat is that of a hash of the seed and the point: it does not depend on how the plan was written
down, and points that a plan gains later leave the others' order as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from fedge.characterisation.point import PREFETCH, Point

Sweep = Mapping[str, Sequence[Any]]
"""Knob -> the values that it takes, crossed with those of the sweep's other knobs."""


def crossed(board: str, base: Mapping[str, Any], sweeps: Iterable[Sweep]) -> tuple[Point, ...]:
    """The points of one board, each once, in the order of the sweeps.

    ``base`` holds a value per knob that is not a ``Point``'s own default. A sweep of nothing is the base itself.
    Settings of a loader without workers do not differ in their prefetch.
    """
    found: dict[Point, None] = {}
    for sweep in sweeps:
        for values in product(*sweep.values()):
            turned = dict(zip(sweep, values, strict=True))
            found[_once(Point(**{"board": board, **base, **turned}))] = None
    return tuple(found)


def _once(point: Point) -> Point:
    """Without workers nothing is fetched ahead: such settings are one point, whatever their prefetch."""
    return point if point.workers else replace(point, prefetch=PREFETCH)


def ordered(points: Iterable[Point], repeats: int, seed: int) -> tuple[Point, ...]:
    """Every point once in every repeat; repeats follow each other, so that they spread over time."""
    once = tuple(dict.fromkeys(points))
    return tuple(
        point
        for repeat in range(repeats)
        for point in sorted((replace(point, repeat=repeat) for point in once), key=lambda point: _rank(point, seed))
    )


def _rank(point: Point, seed: int) -> bytes:
    return hashlib.sha256(f"{seed} {point.key}".encode()).digest()
