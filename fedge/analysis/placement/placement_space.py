"""The space of placements: per accelerator nothing, or a number of instances of one batch size and precision.

Instances of one accelerator are equal: it serves them in turn, so that a mixture lies between its parts. Two DLAs of
the same make are interchangeable: of two placements that differ by swapping them one is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedge.analysis.placement.accelerators import Accelerator, Instance, Placement, PlacementBoard
from fedge.analysis.placement.batch_demand import (
    NO_DEMAND,
    InstanceDemand,
    can_run,
    compute_split_demand,
    split_network,
)
from fedge.analysis.placement.placement_contention import DEMAND_FIELDS, DemandArrays
from fedge.analysis.placement.placement_outcome import PlacementOutcome, evaluate_placement
from fedge.costs.layers.network_cost import NetworkCost
from fedge.types import Floats

OptionRows = NDArray[np.intp]
"""Per placement and accelerator, the index of its option; shape (n, g)."""


@dataclass(frozen=True, slots=True)
class InstanceOption:
    """``count`` equal instances on one accelerator; 0 for none, whose demand has no meaning."""

    count: int
    batch_size: int
    precision: str
    demand: InstanceDemand


@dataclass(frozen=True, slots=True, eq=False)
class PlacementSpace:
    """Options per accelerator, also as arrays of shape (fields, options)."""

    board: PlacementBoard
    options: tuple[tuple[InstanceOption, ...], ...]
    columns: tuple[Floats, ...]

    @property
    def size(self) -> int:
        """Number of placements, including interchangeable ones."""
        return int(np.prod([len(some) for some in self.options], dtype=np.float64))

    def select_demands(self, rows: OptionRows) -> DemandArrays:
        """Return the demands of the placements."""
        stacked = [self.columns[g][:, rows[:, g]] for g in range(len(self.columns))]
        return DemandArrays(
            *(np.stack([column[i] for column in stacked], axis=1) for i in range(1 + len(DEMAND_FIELDS)))
        )

    def build_placement(self, row: Sequence[int]) -> Placement:
        """Return the placement of one row."""
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


def build_placement_space(
    board: PlacementBoard, network: NetworkCost, batch_sizes: Sequence[int], most_instances: int
) -> PlacementSpace:
    """Return all options of a board for a network."""
    options = tuple(
        tuple(
            _generate_options(
                board, network=network, place=place, batch_sizes=batch_sizes, most_instances=most_instances
            )
        )
        for place in board.accelerators
    )
    return PlacementSpace(board, options, tuple(_options_to_array(some) for some in options))


def _generate_options(
    board: PlacementBoard, network: NetworkCost, place: Accelerator, batch_sizes: Sequence[int], most_instances: int
) -> Iterator[InstanceOption]:
    parts = split_network(network, place.supported)
    found = [
        InstanceOption(
            1,
            size,
            precision,
            compute_split_demand(board, parts=parts, accelerator=place, speed=place.speed(precision), batch_size=size),
        )
        for size in batch_sizes
        for precision in place.precisions
        if parts.launches
    ]
    yield InstanceOption(0, 1, "", NO_DEMAND)
    for count in range(1, most_instances + 1):
        yield from (replace(one, count=count) for one in found)


def _options_to_array(options: Sequence[InstanceOption]) -> Floats:
    rows = [[float(one.count), *(float(getattr(one.demand, name)) for name in DEMAND_FIELDS)] for one in options]
    return np.array(rows, dtype=np.float64).T


def find_twins(board: PlacementBoard) -> tuple[tuple[int, int], ...]:
    """Return pairs of accelerators, by index, that differ in their names only."""
    pairs = []
    for j, one in enumerate(board.accelerators):
        for i in range(j - 1, -1, -1):
            other = board.accelerators[i]
            alone = sum(a.engine == one.engine for a in board.accelerators) == 1
            if alone and replace(other, name=one.name, engine=one.engine) == one:
                pairs.append((i, j))
                break
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class CombinationCurve:
    """A combination's outcomes at full load, one per batch size, which all its instances share."""

    combination: str
    outcomes: tuple[PlacementOutcome, ...]

    @property
    def best_outcome(self) -> PlacementOutcome:
        """The outcome with most images per second."""
        return max(self.outcomes, key=lambda one: one.images_per_s)


def compute_combination_curves(
    board: PlacementBoard, network: NetworkCost, batch_sizes: Sequence[int], rate_hz: float | None = None
) -> tuple[CombinationCurve, ...]:
    """Return the curves of all combinations; of two equal DLAs, the second does not appear without the first."""
    found = []
    for chosen in _generate_combinations(board, network):
        placements = [
            Placement(tuple(Instance(place.name, size, place.precisions[0]) for place in chosen))
            for size in batch_sizes
        ]
        found.append(
            CombinationCurve(
                placements[0].combination, tuple(evaluate_placement(board, network, one, rate_hz) for one in placements)
            )
        )
    return tuple(found)


def _generate_combinations(board: PlacementBoard, network: NetworkCost) -> Iterator[tuple[Accelerator, ...]]:
    needs = {board.accelerators[second].name: board.accelerators[first].name for first, second in find_twins(board)}
    usable = [place for place in board.accelerators if place.precisions and can_run(place, network)]
    for count in range(1, len(usable) + 1):
        for chosen in itertools.combinations(usable, count):
            names = {place.name for place in chosen}
            if all(needs.get(name) is None or needs[name] in names for name in names):
                yield chosen
