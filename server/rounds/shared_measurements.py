"""Which measurements boards of one kind share: a few of the others' for each, spread over boards and modes; pure.

Boards share when they have the same device, the same truth, the same cost of a minibatch and the same standing service
(or none): then they differ by a few percent, mostly the same in every mode, which a predictor takes as an offset.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from statistics import median

from fedge.devices import catalogue
from fedge.experiment import FleetBoard
from fedge.types import Measurement, PowerMode
from fedge.wire import ClientState

MAX_SHARED = 60
"""Measurements that a board gets of others; chosen by us. The fit grows with the cube of their number: with 60 it takes
half as long again as with none, with 240 six times as long, and from 60 on the error hardly falls."""
MAX_DONORS = 12
"""Boards that they are from; chosen by us. Boards differ in level, so that five modes of one board tell more of how
modes differ than one mode each of five boards."""
MAX_LOG_DIFFERENCE = 0.25
"""Boards do not share when their measurements of a common mode lie further apart, log units: one of the two measures
wrongly, and nobody knows which. Chosen by us; boards of one kind lie up to 8 % off their average."""


@dataclass(frozen=True, slots=True)
class _ModeMeasurement:
    """What a board knows of one mode: one of its measurements, and how many it has made since the latest there."""

    measurement: Measurement
    ago: int


_KnownModes = Mapping[PowerMode, _ModeMeasurement]
BoardKindKey = tuple[str, ...]
"""The device, by its own name, what its truth is, the workload that its minibatches cost as, and what it serves."""


def find_kinds(boards: Iterable[FleetBoard], cost: str) -> dict[str, BoardKindKey]:
    """Board -> its kind; ``cost`` is that of boards whose entry names none."""
    names = catalogue.aliases()
    return {
        board.name: (
            names.get(board.entry.device, board.entry.device),
            board.entry.truth,
            board.entry.cost or cost,
            *(() if board.entry.serving is None else (board.entry.serving.model_dump_json(),)),
        )
        for board in boards
    }


def share_measurements(
    kinds: Mapping[str, BoardKindKey],
    states: Mapping[str, ClientState],
    asked: Collection[str],
    limit: int = MAX_SHARED,
) -> dict[str, tuple[Measurement, ...]]:
    """For each board of ``asked``, at most ``limit`` measurements of other boards of its kind, newest last.

    Each says its ``board``. They come in turn from at most ``MAX_DONORS`` boards that do not contradict it: modes first
    that it has not measured itself, then modes that few others told it of, then new ones. Throttled measurements are
    not shared, nor what is no positive number. Depends on nothing else, also not on the boards' order or on who else is
    asked.
    """
    alike: dict[BoardKindKey, list[str]] = {}
    for board in sorted(kinds.keys() & states.keys()):
        alike.setdefault(kinds[board], []).append(board)
    known = cache(lambda board: _index_by_mode(board, states[board].measurements if board in states else ()))
    return {
        board: _select_for_board(known(board), _iterate_peers(board, alike.get(kinds[board], []), known), limit)
        for board in asked
    }


def _index_by_mode(board: str, measurements: Sequence[Measurement]) -> _KnownModes:
    """Per mode the repeat of median time, which no outlier is as long as there are three."""
    repeats: dict[PowerMode, list[Measurement]] = {}
    latest: dict[PowerMode, int] = {}
    for place, measurement in enumerate(measurements):
        if _is_usable(measurement):
            repeats.setdefault(measurement.mode, []).append(measurement)
            latest[measurement.mode] = place
    return {
        mode: _ModeMeasurement(
            dataclasses.replace(_pick_median(of_mode), board=board), len(measurements) - latest[mode]
        )
        for mode, of_mode in repeats.items()
    }


def _is_usable(measurement: Measurement) -> bool:
    mode = measurement.mode
    numbers = (measurement.step_s, measurement.power_w, mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz)
    return not measurement.throttled and all(math.isfinite(number) and number > 0 for number in numbers)


def _pick_median(repeats: Sequence[Measurement]) -> Measurement:
    return sorted(repeats, key=lambda measurement: measurement.step_s)[(len(repeats) - 1) // 2]


def _iterate_peers(board: str, alike: Sequence[str], known: Callable[[str], _KnownModes]) -> Iterator[_KnownModes]:
    """The other boards of its kind, which are sorted, from its own place on: so not all take from the same ones."""
    start = bisect_left(alike, board)
    return (known(other) for other in chain(alike[start:], alike[:start]) if other != board)


def _select_for_board(own: _KnownModes, others: Iterator[_KnownModes], limit: int) -> tuple[Measurement, ...]:
    left = [
        dict(known)
        for known in islice((known for known in others if known and _are_consistent(own, known)), MAX_DONORS)
    ]
    told: Counter[PowerMode] = Counter()
    picked: list[_ModeMeasurement] = []
    while left and len(picked) < limit:
        for donor in left[: limit - len(picked)]:
            mode = _pick_next_mode(donor, own, told)
            picked.append(donor.pop(mode))
            told[mode] += 1
        left = [donor for donor in left if donor]
    picked.sort(key=lambda seen: (-seen.ago, str(seen.measurement.board), seen.measurement.mode))
    return tuple(seen.measurement for seen in picked)


def _pick_next_mode(donor: _KnownModes, own: _KnownModes, told: Mapping[PowerMode, int]) -> PowerMode:
    return min(donor, key=lambda mode: (mode in own, told[mode], donor[mode].ago, mode))


def _are_consistent(own: _KnownModes, other: _KnownModes) -> bool:
    """Whether two boards read about the same in the modes that both have measured; also when there is none.

    Minibatches of another size or width take other times.
    """
    both = [(own[mode].measurement, other[mode].measurement) for mode in own.keys() & other.keys()]
    pairs = [(a, b) for a, b in both if a.scale == b.scale]
    if not pairs:
        return True
    time = median(abs(math.log(a.step_s / b.step_s)) for a, b in pairs)
    power = median(abs(math.log(a.power_w / b.power_w)) for a, b in pairs)
    return max(time, power) <= MAX_LOG_DIFFERENCE
