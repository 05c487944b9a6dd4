"""Boards of a plan, their power modes, and the points that the sweeps of a plan cross."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedge.characterisation.sweep_plan import DEFAULT_PREFETCH, SweepPoint
from fedge.errors import BadInput, UnknownName
from fedge.types import DeviceSpec, PowerMode

if TYPE_CHECKING:
    from fedge.devices.local_board import BoardLocation


HERE, EMULATED = "here", "emulated:"


def device_name(board: str) -> str | None:
    """Return the catalogue's name of an emulated board such as ``agx-xavier-1``, or None for this machine."""
    return None if board == HERE else board.rpartition("-")[0]


def load_board_spec(board: str) -> DeviceSpec | None:
    """Load a board's knobs and presets.

    Args:
        board: ``here`` or an emulated board's name.

    Returns:
        The specification, or None where no power mode can be set.

    Raises:
        BoardError: The power daemon does not answer.
        UnknownName: The catalogue has no such board.
    """
    device = device_name(board)
    if device is not None:
        from fedge.devices import catalogue

        return catalogue.find(device, "board")
    from fedge.devices import local_board

    place = local_board.BoardLocation()
    return _load_local_spec(place) if Path(place.power_socket).exists() else None


def _load_local_spec(place: BoardLocation) -> DeviceSpec:
    """Load the specification of this board, whose power daemon answers."""
    from fedge.devices import local_board
    from fedge.devices.board_spec import build_board_spec

    described = local_board.describe_board(place)
    catalogued = local_board.find_board_spec(place, local_board.parse_identity(described), described)
    return build_board_spec(catalogued, described, catalogued.total_power)


MAXN, TOP, LOWEST = "maxn", "-", "min"
MAX_CLOCK_DISTANCE = 0.15
"""Largest relative distance of a written clock to the nearest one of the board. A default: wide enough for clocks
rounded by hand, narrow enough to reject those of another board."""
MODE_SYNTAX = "CORES/CPU/GPU/MEMORY with clocks in MHz ('-' the board's top, 'min' its lowest)"


def parse_mode(text: str, named: Mapping[str, str], spec: DeviceSpec | None, where: str) -> PowerMode | None:
    """Resolve a mode text to a power mode.

    Args:
        text: A name in ``named``, ``maxn``, a preset's name, or ``CORES/CPU/GPU/MEMORY`` with clocks in MHz.
        named: The plan's own modes: name -> text.
        spec: The board, whose nearest clocks are taken; None where no mode can be set: the numbers stay as written.
        where: Prefix of messages.

    Returns:
        The mode; None for ``maxn`` where no mode can be set.

    Raises:
        BadInput: The board has no such core count, or no clock near one of those written.
        UnknownName: The text is neither a known name nor four knobs.
    """
    text = named.get(text, text)
    presets = {} if spec is None else {name.lower(): mode for name, mode in spec.presets.items()}
    if text.lower() == MAXN:
        return None if spec is None else spec.maxn
    if text.lower() in presets:
        return presets[text.lower()]
    words = text.split("/")
    if len(words) == len(PowerMode.__slots__):
        return _parse_mode_knobs(words, spec, f"{where} {text!r}" if text not in where else where)
    known = [] if spec is None else [name for name in spec.presets if name.lower() != MAXN]
    raise UnknownName(where, text, (*named, MAXN, *known, MODE_SYNTAX))


def _parse_mode_knobs(words: Sequence[str], spec: DeviceSpec | None, where: str) -> PowerMode:
    if spec is None:
        cores, *clocks = (_parse_number(word, where) for word in words)
        return PowerMode(_parse_whole_number(cores, where), *clocks)
    cores = _parse_cores(words[0], spec, where)
    clocks = [
        _find_nearest_clock(word, table, where) for word, table in zip(words[1:], _clock_tables(spec), strict=True)
    ]
    return PowerMode(cores, *clocks)


def _clock_tables(spec: DeviceSpec) -> tuple[tuple[float, ...], ...]:
    return spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz


def _parse_cores(word: str, spec: DeviceSpec, where: str) -> int:
    if word in {TOP, LOWEST}:
        return max(spec.cores) if word == TOP else min(spec.cores)
    cores = _parse_whole_number(_parse_number(word, where), where)
    if cores not in spec.cores:
        raise BadInput(where, f"{cores} cores", f"one of {', '.join(map(str, spec.cores))} on {spec.name}")
    return cores


def _find_nearest_clock(word: str, table: Sequence[float], where: str) -> float:
    if word in {TOP, LOWEST}:
        return max(table) if word == TOP else min(table)
    wished = _parse_number(word, where)
    nearest = min(table, key=lambda value: abs(value - wished))
    if abs(nearest - wished) > MAX_CLOCK_DISTANCE * wished:
        raise BadInput(where, f"{wished:g} MHz", f"a clock that the board has ({', '.join(f'{v:g}' for v in table)})")
    return nearest


def _parse_number(word: str, where: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise BadInput(where, repr(word), MODE_SYNTAX)
    return value


def _parse_whole_number(value: float, where: str) -> int:
    if value != int(value):
        raise BadInput(where, f"{value:g} cores", "a whole number of cores")
    return int(value)


Sweep = Mapping[str, Sequence[Any]]
"""Knob -> its values, crossed with those of the sweep's other knobs."""


def cross_knobs(board: str, base: Mapping[str, Any], sweeps: Iterable[Sweep]) -> tuple[SweepPoint, ...]:
    """Return the points of one board, each once, in the order of the sweeps.

    Args:
        board: The board's name.
        base: A value for each knob that differs from ``SweepPoint``'s default.
        sweeps: Values per knob; an empty sweep is the base itself.

    Returns:
        The points; without loader workers, settings that differ only in prefetch are one point.
    """
    found: dict[SweepPoint, None] = {}
    for sweep in sweeps:
        for values in product(*sweep.values()):
            turned = dict(zip(sweep, values, strict=True))
            found[_normalise_prefetch(SweepPoint(**{"board": board, **base, **turned}))] = None
    return tuple(found)


def _normalise_prefetch(point: SweepPoint) -> SweepPoint:
    """Return the point with the default prefetch if it has no workers, since nothing is then fetched ahead."""
    return point if point.workers else replace(point, prefetch=DEFAULT_PREFETCH)


def order_points(points: Iterable[SweepPoint], repeats: int, seed: int) -> tuple[SweepPoint, ...]:
    """Return every point once per repeat, shuffled within each repeat.

    Args:
        points: The points of one repeat; duplicates are dropped.
        repeats: Number of repeats; they follow each other, so that they are spread over time.
        seed: Determines the order within a repeat.
    """
    once = tuple(dict.fromkeys(points))
    return tuple(
        point
        for repeat in range(repeats)
        for point in sorted(
            (replace(point, repeat=repeat) for point in once), key=lambda point: _point_rank(point, seed)
        )
    )


def _point_rank(point: SweepPoint, seed: int) -> bytes:
    return hashlib.sha256(f"{seed} {point.key}".encode()).digest()
