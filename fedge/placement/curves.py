"""Every combination of accelerators over the batch size, one instance on each, as the paper's figure has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedge.layers.network import NetworkCost
from fedge.placement.accelerators import Accelerator, Board, Instance, Placement
from fedge.placement.options import twins
from fedge.placement.outcome import Outcome, outcome
from fedge.placement.support import runs


@dataclass(frozen=True, slots=True)
class Curve:
    """A combination's outcomes at full load, one per batch size, which all its instances have."""

    combination: str
    outcomes: tuple[Outcome, ...]

    @property
    def best(self) -> Outcome:
        """The one with the most images per second."""
        return max(self.outcomes, key=lambda one: one.images_per_s)


def curves(
    board: Board, network: NetworkCost, batch_sizes: Sequence[int], rate_hz: float | None = None
) -> tuple[Curve, ...]:
    """All combinations; of two DLA alike, the second is not shown without the first."""
    found = []
    for chosen in _combinations(board, network):
        placements = [
            Placement(tuple(Instance(place.name, size, place.precisions[0]) for place in chosen))
            for size in batch_sizes
        ]
        found.append(
            Curve(placements[0].combination, tuple(outcome(board, network, one, rate_hz) for one in placements))
        )
    return tuple(found)


def _combinations(board: Board, network: NetworkCost) -> Iterator[tuple[Accelerator, ...]]:
    needs = {board.accelerators[second].name: board.accelerators[first].name for first, second in twins(board)}
    usable = [place for place in board.accelerators if place.precisions and runs(place, network)]
    for count in range(1, len(usable) + 1):
        for chosen in itertools.combinations(usable, count):
            names = {place.name for place in chosen}
            if all(needs.get(name) is None or needs[name] in names for name in names):
                yield chosen
