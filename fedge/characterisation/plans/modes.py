"""How a plan names power modes, and which mode of a board that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedge.errors import BadInput, UnknownName
from fedge.types import DeviceSpec, PowerMode

MAXN, TOP, LOWEST = "maxn", "-", "min"
FARTHEST = 0.15
"""A clock that lies farther (relative) from every one that the board has is a mistake; chosen by us."""
WORDS = "CORES/CPU/GPU/MEMORY with clocks in MHz ('-' the board's top, 'min' its lowest)"


def mode_of(text: str, named: Mapping[str, str], spec: DeviceSpec | None, where: str) -> PowerMode | None:
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
        return _knobs(words, spec, f"{where} {text!r}" if text not in where else where)
    known = [] if spec is None else [name for name in spec.presets if name.lower() != MAXN]
    raise UnknownName(where, text, (*named, MAXN, *known, WORDS))


def _knobs(words: Sequence[str], spec: DeviceSpec | None, where: str) -> PowerMode:
    if spec is None:
        cores, *clocks = (_number(word, where) for word in words)
        return PowerMode(_whole(cores, where), *clocks)
    cores = _cores(words[0], spec, where)
    clocks = [_nearest(word, table, where) for word, table in zip(words[1:], _clocks(spec), strict=True)]
    return PowerMode(cores, *clocks)


def _clocks(spec: DeviceSpec) -> tuple[tuple[float, ...], ...]:
    return spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz


def _cores(word: str, spec: DeviceSpec, where: str) -> int:
    if word in {TOP, LOWEST}:
        return max(spec.cores) if word == TOP else min(spec.cores)
    cores = _whole(_number(word, where), where)
    if cores not in spec.cores:
        raise BadInput(where, f"{cores} cores", f"one of {', '.join(map(str, spec.cores))} on {spec.name}")
    return cores


def _nearest(word: str, table: Sequence[float], where: str) -> float:
    if word in {TOP, LOWEST}:
        return max(table) if word == TOP else min(table)
    wished = _number(word, where)
    nearest = min(table, key=lambda value: abs(value - wished))
    if abs(nearest - wished) > FARTHEST * wished:
        raise BadInput(where, f"{wished:g} MHz", f"a clock that the board has ({', '.join(f'{v:g}' for v in table)})")
    return nearest


def _number(word: str, where: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise BadInput(where, repr(word), WORDS)
    return value


def _whole(value: float, where: str) -> int:
    if value != int(value):
        raise BadInput(where, f"{value:g} cores", "a whole number of cores")
    return int(value)
