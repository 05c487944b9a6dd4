"""Measurements shared between boards of one kind, spread over boards and modes. Pure functions.

Boards share if they are of one kind (``fedge.knowledge.recall.measurement_kind``).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from statistics import median

from fedge.groups import group_by
from fedge.knowledge.recall import MAX_DONORS, MAX_MODES
from fedge.types import Measurement, PowerMode, pick_median
from fedge.wire import ClientState

ENOUGH_MEASUREMENTS = 24
"""Measurements up to which more than ``MAX_DONORS`` boards are asked: in the first rounds each has measured one mode or
two. Default; a larger value helps these rounds alone.
"""
GROUPS, GROUPS_OF_MANY = 4, 2
"""Groups into which the boards of a kind are dealt, and those of a kind of at least ``MANY_BOARDS``. All boards of a
group get the same measurements, so that a process that emulates many of them fits a predictor to these once. Default;
with more groups a board hears of more of its kind, and fits cost more.
"""
MANY_BOARDS = 48
"""Boards of a kind of which half are more than are asked even in the first rounds."""
MAX_LOG_DIFFERENCE = 0.25
"""Boards do not share if their measurements of common modes differ by more than this (log units), since one of them
must be wrong. Boards of one kind differ from their average by up to 8 %, so two of them by up to 0.16.
"""


@dataclass(frozen=True, slots=True)
class _ModeMeasurement:
    """A board's median measurement of one mode, and the number of measurements since its latest one."""

    measurement: Measurement
    ago: int


_KnownModes = Mapping[PowerMode, _ModeMeasurement]


def share_measurements(
    kinds: Mapping[str, Hashable],
    states: Mapping[str, ClientState],
    asked: Collection[str],
    peers: Collection[str] = (),
    limit: int = MAX_MODES,
) -> dict[str, tuple[Measurement, ...]]:
    """Select at most ``limit`` measurements of peers for each client of ``asked``.

    The boards of a kind are dealt into groups (``count_groups``). A board gets measurements of boards in other groups,
    taken in turn from ``MAX_DONORS`` that are consistent with it, or from more if these know few modes: first modes
    that few other donors have contributed, then recent ones (the measurements of a state are oldest first). Boards of
    ``peers``, which take no part in the run, are of no group. Throttled and invalid measurements are not shared.

    The result depends neither on the order of boards nor on which other clients are asked.

    Returns:
        For each client of ``asked``, measurements with their ``board`` set, newest last; all boards of a group that
        contradict no donor get the same.
    """
    alike = group_by(sorted(kinds.keys() - peers), kinds.__getitem__)
    absent = group_by(sorted(peers), kinds.__getitem__)
    place = {board: number for boards in alike.values() for number, board in enumerate(boards)}
    known = cache(lambda board: _index_by_mode(board, states[board].measurements if board in states else ()))
    donors = cache(lambda kind, group: [*_list_donors(alike[kind], group, known), *absent.get(kind, ())])
    select = cache(lambda chosen: _select_measurements([known(board) for board in chosen], limit))

    def consistent(board: str) -> tuple[str, ...]:
        every = donors(kinds[board], place[board] % count_groups(len(alike[kinds[board]])))
        chosen, modes = list[str](), 0
        for other in (other for other in every if _are_consistent(known(board), known(other))):
            if len(chosen) >= MAX_DONORS and modes >= ENOUGH_MEASUREMENTS:
                break
            chosen.append(other)
            modes += len(known(other))
        return tuple(chosen)

    return {board: select(consistent(board)) for board in asked}


def count_groups(boards: int) -> int:
    """Return the number of groups into which so many boards of a kind are dealt."""
    return GROUPS_OF_MANY if boards >= MANY_BOARDS else GROUPS


def divide_boards(kinds: Mapping[str, Hashable], asked: Collection[str], shares: int) -> list[list[str]]:
    """Divide the boards of ``asked`` among processes: equally large shares of about the same kinds; some may be empty.

    Boards of a group, which get the same measurements, are in one share where that is possible: each process fits a
    predictor to these once. A board mostly stays in its share if others are asked.
    """
    alike = group_by(sorted(kinds), kinds.__getitem__)
    places = {
        board: (number % count_groups(len(boards)) / count_groups(len(boards)), kind, number)
        for kind, boards in enumerate(alike.values())
        for number, board in enumerate(boards)
    }
    ordered = sorted(asked, key=places.__getitem__)
    bounds = [share * len(ordered) // shares for share in range(shares + 1)]
    return [ordered[first:end] for first, end in pairwise(bounds)]


def _list_donors(alike: Sequence[str], group: int, known: Callable[[str], _KnownModes]) -> list[str]:
    """Return the boards of a kind that measured something and are not of the group; other groups begin elsewhere."""
    groups = count_groups(len(alike))
    start = group * len(alike) // groups
    turned = chain(range(start, len(alike)), range(start))
    return [alike[number] for number in turned if number % groups != group and known(alike[number])]


def _index_by_mode(board: str, measurements: Sequence[Measurement]) -> _KnownModes:
    """Return one measurement per mode: the repeat with the median step time, which is robust to outliers."""
    repeats: dict[PowerMode, list[Measurement]] = {}
    latest: dict[PowerMode, int] = {}
    for place, measurement in enumerate(measurements):
        if _is_usable(measurement):
            repeats.setdefault(measurement.mode, []).append(measurement)
            latest[measurement.mode] = place
    return {
        mode: _ModeMeasurement(dataclasses.replace(pick_median(of_mode), board=board), len(measurements) - latest[mode])
        for mode, of_mode in repeats.items()
    }


def _is_usable(measurement: Measurement) -> bool:
    mode = measurement.mode
    numbers = (measurement.step_s, measurement.power_w, mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz)
    return not measurement.throttled and all(math.isfinite(number) and number > 0 for number in numbers)


def _select_measurements(donors: Iterable[_KnownModes], limit: int) -> tuple[Measurement, ...]:
    left = [dict(known) for known in donors]
    shared: Counter[PowerMode] = Counter()
    picked: list[_ModeMeasurement] = []
    while left and len(picked) < limit:
        for donor in left[: limit - len(picked)]:
            mode = min((shared[each], known.ago, each) for each, known in donor.items())[-1]
            picked.append(donor.pop(mode))
            shared[mode] += 1
        left = [donor for donor in left if donor]
    picked.sort(key=lambda candidate: (-candidate.ago, str(candidate.measurement.board), candidate.measurement.mode))
    return tuple(candidate.measurement for candidate in picked)


def _are_consistent(own: _KnownModes, other: _KnownModes) -> bool:
    """Return True if two boards agree in the modes that both have measured, or have no such mode.

    Measurements at different batch sizes or widths are not compared.
    """
    both = [(own[mode].measurement, other[mode].measurement) for mode in own.keys() & other.keys()]
    pairs = [(a, b) for a, b in both if a.scale == b.scale]
    if not pairs:
        return True
    # Of the smallest figures, which a hostile board may send, a quotient would be 0.
    time = median(abs(math.log(a.step_s) - math.log(b.step_s)) for a, b in pairs)
    power = median(abs(math.log(a.power_w) - math.log(b.power_w)) for a, b in pairs)
    return max(time, power) <= MAX_LOG_DIFFERENCE
