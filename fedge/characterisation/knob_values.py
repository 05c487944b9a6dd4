"""The boards of a plan: their names, and the knobs that each has."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from fedge.characterisation.sweep_plan import DEFAULT_PREFETCH, KNOBS, CacheState, SweepPoint, WorkKind
from fedge.errors import BadInput, UnknownName
from fedge.types import DeviceSpec, PowerMode

if TYPE_CHECKING:
    from fedge.devices.local_board import BoardLocation


HERE, EMULATED = "here", "emulated:"


def device_name(board: str) -> str | None:
    """The catalogue's name of an emulated board such as ``agx-xavier-1``; None for this machine."""
    return None if board == HERE else board.rpartition("-")[0]


def load_board_spec(board: str) -> DeviceSpec | None:
    """The board's knobs and presets; None where no mode can be set. Raises ``BoardError`` for a daemon out of reach."""
    device = device_name(board)
    if device is not None:
        from fedge.devices import catalogue

        return catalogue.find(device, "board")
    from fedge.devices import local_board

    place = local_board.BoardLocation()
    return _load_local_spec(place) if Path(place.power_socket).exists() else None


def _load_local_spec(place: BoardLocation) -> DeviceSpec:
    """Of a board whose power daemon answers."""
    from fedge.devices import local_board
    from fedge.devices.board_spec import build_board_spec

    described = local_board.describe_board(place)
    catalogued = local_board.find_board_spec(place, local_board.parse_identity(described), described)
    return build_board_spec(catalogued, described, catalogued.total_power)


MAXN, TOP, LOWEST = "maxn", "-", "min"
MAX_CLOCK_DISTANCE = 0.15
"""A clock that lies farther (relative) from every one that the board has is a mistake; chosen by us."""
MODE_SYNTAX = "CORES/CPU/GPU/MEMORY with clocks in MHz ('-' the board's top, 'min' its lowest)"


def parse_mode(text: str, named: Mapping[str, str], spec: DeviceSpec | None, where: str) -> PowerMode | None:
    """The mode that ``text`` says: a name of the plan's own ``named``, ``maxn``, a preset, or the four knobs.

    Knobs become the nearest that the board has. Where no mode can be set (``spec`` None), ``maxn`` is None and knobs
    are taken as they stand. Raises ``BadInput`` for a mode that the board has nothing like, ``UnknownName`` for a name
    that nobody knows.
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


ALL = "all"
RUNTIMES = ("bare", "docker:IMAGE", "podman:IMAGE", "nvidia+docker:IMAGE", "nvidia+podman:IMAGE")
MOST_WORKERS, MOST_PREFETCH, LARGEST_BATCH = 64, 1024, 65_536
KnownNames = Mapping[str, tuple[str, ...]]
"""The plan's own workloads, storages and named modes, by the knob that takes them."""


def parse_knob_values(knob: str, given: Any, names: KnownNames, where: str) -> list[Any]:
    """The values that a sweep gives a knob: a list, one value, or ``all`` names; raises ``BadInput``."""
    if given == ALL and knob in names:
        if not names[knob]:
            raise BadInput(where, ALL, "names of the plan to choose from: it has none (modes:)")
        return list(names[knob])
    listed = given if isinstance(given, list) else [given]
    if not listed:
        raise BadInput(where, "an empty list", "at least one value")
    return [parse_knob_value(knob, value, names, where) for value in listed]


def parse_knob_value(knob: str, given: Any, names: KnownNames, where: str) -> Any:
    """One value of a knob; raises ``BadInput``."""
    return _CHECKS[knob](given, names.get(knob, ()), where)


def _make_whole_number_check(least: int, most: int) -> Callable[[Any, tuple[str, ...], str], int]:
    def check(given: Any, _: tuple[str, ...], where: str) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
            raise BadInput(where, _format_given(given), f"a whole number from {least} to {most}")
        return given

    return check


def _check_flag(given: Any, _: tuple[str, ...], where: str) -> bool:
    if not isinstance(given, bool):
        raise BadInput(where, _format_given(given), "true or false")
    return given


def _make_choice_check(known: tuple[str, ...]) -> Callable[[Any, tuple[str, ...], str], str]:
    return lambda given, _, where: _check_name(given, known, where)


def _check_name(given: Any, known: tuple[str, ...], where: str) -> str:
    if not isinstance(given, str) or given not in known:
        raise UnknownName(where, str(given), known)
    return given


def _check_mode(given: Any, _: tuple[str, ...], where: str) -> str:
    """Which mode it is depends on the board."""
    if not isinstance(given, str) or not given:
        raise BadInput(where, _format_given(given), "maxn, a preset's name, or CORES/CPU/GPU/MEMORY with clocks in MHz")
    return given


def _check_runtime(given: Any, _: tuple[str, ...], where: str) -> str:
    text = given if isinstance(given, str) else ""
    engine, _colon, image = text.removeprefix("nvidia+").partition(":")
    if text != "bare" and (engine not in {"docker", "podman"} or not image or image.startswith("-")):
        raise UnknownName(where, str(given), RUNTIMES)
    return text


def _format_given(given: object) -> str:
    return "nothing" if given is None else str(given).lower() if isinstance(given, bool) else repr(given)


_CHECKS: Mapping[str, Callable[[Any, tuple[str, ...], str], Any]] = {
    "mode": _check_mode,
    "workload": _check_name,
    "kind": _make_choice_check(get_args(WorkKind)),
    "batch_size": _make_whole_number_check(1, LARGEST_BATCH),
    "workers": _make_whole_number_check(0, MOST_WORKERS),
    "prefetch": _make_whole_number_check(1, MOST_PREFETCH),
    "pinned": _check_flag,
    "storage": _check_name,
    "cache": _make_choice_check(get_args(CacheState)),
    "runtime": _check_runtime,
    "dvfs": _check_flag,
}
assert tuple(_CHECKS) == KNOBS


Sweep = Mapping[str, Sequence[Any]]
"""Knob -> the values that it takes, crossed with those of the sweep's other knobs."""


def cross_knobs(board: str, base: Mapping[str, Any], sweeps: Iterable[Sweep]) -> tuple[SweepPoint, ...]:
    """The points of one board, each once, in the order of the sweeps.

    ``base`` holds a value per knob that is not a ``SweepPoint``'s own default. A sweep of nothing is the base itself.
    Settings of a loader without workers do not differ in their prefetch.
    """
    found: dict[SweepPoint, None] = {}
    for sweep in sweeps:
        for values in product(*sweep.values()):
            turned = dict(zip(sweep, values, strict=True))
            found[_normalise_prefetch(SweepPoint(**{"board": board, **base, **turned}))] = None
    return tuple(found)


def _normalise_prefetch(point: SweepPoint) -> SweepPoint:
    """Without workers nothing is fetched ahead: such settings are one point, whatever their prefetch."""
    return point if point.workers else replace(point, prefetch=DEFAULT_PREFETCH)


def order_points(points: Iterable[SweepPoint], repeats: int, seed: int) -> tuple[SweepPoint, ...]:
    """Every point once in every repeat; repeats follow each other, so that they spread over time."""
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
