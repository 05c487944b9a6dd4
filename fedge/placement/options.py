"""Everything that may be placed: per accelerator nothing, or so many instances of one batch size and precision.

Instances of one accelerator are alike (chosen by us): it serves them in turn, so that a mixture lies between its parts.
Two DLA of the same make are interchangeable: of two placements that differ by swapping them one is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedge.layers.network import NetworkCost
from fedge.placement.accelerators import Accelerator, Board, Instance, Placement
from fedge.placement.contention import FIELDS, Demands
from fedge.placement.demand import NOTHING, Demand, demand_of
from fedge.placement.support import split
from fedge.types import Floats

Rows = NDArray[np.intp]
"""(n, g): per placement and accelerator, which of its options."""


@dataclass(frozen=True, slots=True)
class Option:
    """``count`` instances alike on one accelerator; 0 for none, where the demand means nothing."""

    count: int
    batch_size: int
    precision: str
    demand: Demand


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Per accelerator its options, and the same as arrays (fields, options)."""

    board: Board
    options: tuple[tuple[Option, ...], ...]
    columns: tuple[Floats, ...]

    @property
    def size(self) -> int:
        """Placements in all, before interchangeable ones are left out."""
        return int(np.prod([len(some) for some in self.options], dtype=np.float64))

    def demands(self, rows: Rows) -> Demands:
        """What the placements ask for."""
        stacked = [self.columns[g][:, rows[:, g]] for g in range(len(self.columns))]
        return Demands(*(np.stack([column[i] for column in stacked], axis=1) for i in range(1 + len(FIELDS))))

    def placement(self, row: Sequence[int]) -> Placement:
        """One of them."""
        chosen = [
            (place, self.options[g][i]) for g, (place, i) in enumerate(zip(self.board.accelerators, row, strict=True))
        ]
        return Placement(
            tuple(
                Instance(place.name, option.batch_size, option.precision)
                for place, option in chosen
                for _ in range(option.count)
            )
        )


def space_of(board: Board, network: NetworkCost, batch_sizes: Sequence[int], most_instances: int) -> Space:
    """All options of a board for a network."""
    options = tuple(tuple(_options(board, network, place, batch_sizes, most_instances)) for place in board.accelerators)
    return Space(board, options, tuple(_array(some) for some in options))


def _options(
    board: Board, network: NetworkCost, place: Accelerator, batch_sizes: Sequence[int], most_instances: int
) -> Iterator[Option]:
    parts = split(network, place.supported)
    found = [
        Option(1, size, precision, demand_of(board, parts, place, place.speed(precision), size))
        for size in batch_sizes
        for precision in place.precisions
        if parts.launches
    ]
    yield Option(0, 1, "", NOTHING)
    for count in range(1, most_instances + 1):
        yield from (replace(one, count=count) for one in found)


def _array(options: Sequence[Option]) -> Floats:
    rows = [[float(one.count), *(float(getattr(one.demand, name)) for name in FIELDS)] for one in options]
    return np.array(rows, dtype=np.float64).T


def twins(board: Board) -> tuple[tuple[int, int], ...]:
    """Pairs of accelerators, by place, that differ in their names alone."""
    pairs = []
    for j, one in enumerate(board.accelerators):
        for i in range(j - 1, -1, -1):
            other = board.accelerators[i]
            alone = sum(a.engine == one.engine for a in board.accelerators) == 1
            if alone and replace(other, name=one.name, engine=one.engine) == one:
                pairs.append((i, j))
                break
    return tuple(pairs)
