"""Every combination of accelerators over the batch size, one instance on each, as in the paper's figure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedge.analysis.placement.accelerators import Accelerator, Instance, Placement, PlacementBoard
from fedge.analysis.placement.dla_support import can_run
from fedge.analysis.placement.placement_outcome import PlacementOutcome, evaluate_placement
from fedge.analysis.placement.placement_space import find_twins
from fedge.costs.layers.network_cost import NetworkCost


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
    """Return the curves of all combinations; of two equal DLAs, the second does not appear without the first.

    Args:
        board: The board.
        network: Costs of the network's layers.
        batch_sizes: The batch sizes of a curve's points.
        rate_hz: Images requested per second; None for full load.
    """
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
