"""How much the same setting varies: on one board from repeat to repeat, and between boards of a kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedge.characterisation.judging.effects import label_of, worst
from fedge.characterisation.judging.setting import in_words, kind_of_board
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.point import Point
from fedge.types import Label

QUANTITIES = ("e2e_s", "energy_j")


@dataclass(frozen=True, slots=True)
class Variability:
    """How far the figures of one setting lie apart."""

    scope: Literal["within", "between"]
    """Within a board over repeats, or between boards of a kind (each board's mean over its repeats)."""
    board: str
    """The board; of ``between`` its kind."""
    workload: str
    setting: str
    """In words."""
    quantity: str
    """``e2e_s`` or ``energy_j``."""
    values: tuple[float, ...]
    names: tuple[str, ...]
    """Of each value: the repeat, from 1 on, or the board."""
    cv: float
    """Standard deviation by mean (coefficient of variation)."""
    spread: float
    """(max - min) / min."""
    label: Label
    points: tuple[str, ...]


def variability(stats: Sequence[PointStats]) -> tuple[Variability, ...]:
    """Of every setting that was repeated, and of every one that several boards of a kind have measured."""
    found: list[Variability] = []
    settings: dict[Point, dict[str, list[PointStats]]] = defaultdict(lambda: defaultdict(list))
    for one in sorted(stats, key=lambda s: (s.point.board, s.point.repeat)):
        point = replace(one.point, board=kind_of_board(one.point.board), repeat=0)
        settings[point][one.point.board].append(one)
    for point, boards in settings.items():
        for quantity in QUANTITIES:
            for board, own in boards.items():
                found += _spread("within", board, point, quantity, {str(one.point.repeat + 1): [one] for one in own})
            found += _spread("between", point.board, point, quantity, boards)
    return tuple(found)


def _spread(
    scope: Literal["within", "between"], board: str, point: Point, quantity: str, groups: Mapping[str, list[PointStats]]
) -> list[Variability]:
    """None or one: of at least two groups in which the quantity is known and above 0, each by its mean."""
    means: dict[str, float] = {}
    for name, group in groups.items():
        known = [found.value for one in group if (found := getattr(one, quantity)) is not None]
        if known:
            means[name] = sum(known) / len(known)
    values = np.array(list(means.values()))
    if len(values) < 2 or values.min() <= 0:
        return []
    return [
        Variability(
            scope=scope,
            board=board,
            workload=point.workload,
            setting=in_words(point),
            quantity=quantity,
            values=tuple(means.values()),
            names=tuple(means),
            cv=float(values.std(ddof=1) / values.mean()),
            spread=float(values.max() / values.min() - 1.0),
            label=worst([label_of(one, quantity) for group in groups.values() for one in group]),
            points=tuple(one.key for group in groups.values() for one in group),
        )
    ]
