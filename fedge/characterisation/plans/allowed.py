"""What a plan may write for each knob, and what that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from fedge.characterisation.point import KNOBS, Cache, Kind
from fedge.errors import BadInput, UnknownName

ALL = "all"
RUNTIMES = ("bare", "docker:IMAGE", "podman:IMAGE", "nvidia+docker:IMAGE", "nvidia+podman:IMAGE")
MOST_WORKERS, MOST_PREFETCH, LARGEST_BATCH = 64, 1024, 65_536
Names = Mapping[str, tuple[str, ...]]
"""The plan's own workloads, storages and named modes, by the knob that takes them."""


def values_of(knob: str, given: Any, names: Names, where: str) -> list[Any]:
    """The values that a sweep gives a knob: a list, one value, or ``all`` names; raises ``BadInput``."""
    if given == ALL and knob in names:
        if not names[knob]:
            raise BadInput(where, ALL, "names of the plan to choose from: it has none (modes:)")
        return list(names[knob])
    listed = given if isinstance(given, list) else [given]
    if not listed:
        raise BadInput(where, "an empty list", "at least one value")
    return [one_value(knob, value, names, where) for value in listed]


def one_value(knob: str, given: Any, names: Names, where: str) -> Any:
    """One value of a knob; raises ``BadInput``."""
    return _CHECKS[knob](given, names.get(knob, ()), where)


def _whole(least: int, most: int) -> Callable[[Any, tuple[str, ...], str], int]:
    def check(given: Any, _: tuple[str, ...], where: str) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
            raise BadInput(where, _shown(given), f"a whole number from {least} to {most}")
        return given

    return check


def _flag(given: Any, _: tuple[str, ...], where: str) -> bool:
    if not isinstance(given, bool):
        raise BadInput(where, _shown(given), "true or false")
    return given


def _of(known: tuple[str, ...]) -> Callable[[Any, tuple[str, ...], str], str]:
    return lambda given, _, where: _name(given, known, where)


def _name(given: Any, known: tuple[str, ...], where: str) -> str:
    if not isinstance(given, str) or given not in known:
        raise UnknownName(where, str(given), known)
    return given


def _mode(given: Any, _: tuple[str, ...], where: str) -> str:
    """Which mode it is depends on the board."""
    if not isinstance(given, str) or not given:
        raise BadInput(where, _shown(given), "maxn, a preset's name, or CORES/CPU/GPU/MEMORY with clocks in MHz")
    return given


def _runtime(given: Any, _: tuple[str, ...], where: str) -> str:
    text = given if isinstance(given, str) else ""
    engine, _colon, image = text.removeprefix("nvidia+").partition(":")
    if text != "bare" and (engine not in {"docker", "podman"} or not image or image.startswith("-")):
        raise UnknownName(where, str(given), RUNTIMES)
    return text


def _shown(given: object) -> str:
    return "nothing" if given is None else str(given).lower() if isinstance(given, bool) else repr(given)


_CHECKS: Mapping[str, Callable[[Any, tuple[str, ...], str], Any]] = {
    "mode": _mode,
    "workload": _name,
    "kind": _of(get_args(Kind)),
    "batch_size": _whole(1, LARGEST_BATCH),
    "workers": _whole(0, MOST_WORKERS),
    "prefetch": _whole(1, MOST_PREFETCH),
    "pinned": _flag,
    "storage": _name,
    "cache": _of(get_args(Cache)),
    "runtime": _runtime,
    "dvfs": _flag,
}
assert tuple(_CHECKS) == KNOBS
