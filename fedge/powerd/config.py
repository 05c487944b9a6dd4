"""The daemon's configuration file, parsed strictly: permitted knobs, the floor, and who may send requests."""

import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from fedge.powerd.line_protocol import format_value

CONFIG = "/etc/fedge/powerd.json"
EXTRAS = ("drop-caches", "fan", "lock-min")
"""Features beyond the four knobs; each is off unless the file's ``extras`` names it."""
COOLEST_LIMIT_C, HOTTEST_LIMIT_C = 40.0, 110.0
"""Range of ``hottest_c`` in degrees C: a board idles below it, and its own protection acts before the upper end."""
LONGEST_CONFIG = 65536
HIGHEST = 10**12
"""Largest number: a terahertz."""


class BadConfig(Exception):
    """An invalid configuration file; the text is one line that says where, what was got and what would be right."""


class Config(NamedTuple):
    """Content of the configuration file; the defaults apply to a board without one.

    Attributes:
        emc: Control of the memory clock: ``lock`` or ``cap``.
        emc_table_hz: Memory rates in Hz, for boards whose firmware lists none.
        hottest_c: Temperature in degrees C above which the found state is restored.
        needed_zones: Thermal zones without which nothing is set.
        extras: Enabled features of ``EXTRAS``.
        group: Unix group whose members may send requests.
        state: Folder of the saved state.
    """

    floor_cores: int = 2
    floor_cpu_khz: int = 400000
    emc: str = "lock"
    emc_table_hz: Tuple[int, ...] = ()
    hottest_c: float = 95.0
    needed_zones: Tuple[str, ...] = ()
    extras: Tuple[str, ...] = ()
    group: str = "fedge"
    socket: str = "/run/fedge/powerd.sock"
    state: str = "/var/lib/fedge-powerd"


def load(path: Path, needed: bool) -> Config:
    """Read the configuration file; unless it is ``needed``, all defaults apply without one.

    Raises:
        BadConfig: The file is missing, unreadable, writable by others than root, or invalid.
    """
    try:
        with path.open("rb") as file:
            _check_owner(os.fstat(file.fileno()))
            return parse(file.read(LONGEST_CONFIG).decode("utf-8"))
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from error
    except FileNotFoundError as error:
        if needed:
            raise BadConfig(f"{path}: no such file; name the daemon's file, or leave --config out") from error
        return Config()
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}; the daemon must be able to read it") from error
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{path}: {error}; it must be one JSON object in UTF-8") from error


def _check_owner(found: os.stat_result) -> None:
    """Check that only root can write the file, if the daemon runs as root."""
    if os.geteuid() == 0 and (found.st_uid != 0 or found.st_mode & 0o022):
        raise BadConfig("others than root can write this file; chown root and chmod 644 it")


def parse(text: str) -> Config:
    """Parse a configuration from JSON text.

    Raises:
        BadConfig: A key or value is invalid.
        ValueError: The text is not JSON.
    """
    raw = json.loads(text, object_pairs_hook=_reject_duplicates)
    if not isinstance(raw, dict):
        raise BadConfig(f"got {format_value(raw)}; it must be one JSON object")
    fields: Dict[str, Any] = {}
    for key, value in raw.items():
        if key not in FIELDS:
            raise BadConfig(f"unknown key {format_value(key)}; known: {', '.join(FIELDS)}")
        parsed = FIELDS[key](key, value)
        fields.update(parsed if key == "floor" else {key: parsed})
    return Config(**fields)


def _reject_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise BadConfig(f"key {format_value(key)} stands twice; keep one")
        found[key] = value
    return found


def _bad_value(where: str, value: Any, right: str) -> BadConfig:
    return BadConfig(f"{where}: got {format_value(value)}; {right}")


def _check_whole_number(where: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= HIGHEST:
        raise _bad_value(where, value, f"it must be a whole number of at least {least}")
    return value


def _check_list(key: str, value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise _bad_value(key, value, "it must be a list")
    return value


def _check_text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise _bad_value(where, value, "it must be a text on one line, not empty")
    return value


def _parse_floor(key: str, value: Any) -> Dict[str, int]:
    known = {"cores": ("floor_cores", 1), "cpu_khz": ("floor_cpu_khz", 0)}
    if not isinstance(value, dict):
        raise _bad_value(key, value, 'it must look like {"cores": 2, "cpu_khz": 400000}')
    for name in value:
        if name not in known:
            raise BadConfig(
                f"unknown key {format_value(f'{key}.{name}')}; known: {', '.join(f'{key}.{k}' for k in known)}"
            )
    return {known[name][0]: _check_whole_number(f"{key}.{name}", value[name], known[name][1]) for name in value}


def _parse_emc(key: str, value: Any) -> str:
    if value not in ("lock", "cap"):
        raise _bad_value(key, value, 'it must be "lock" (a fixed memory clock) or "cap" (an upper limit)')
    return str(value)


def _parse_clocks(key: str, value: Any) -> Tuple[int, ...]:
    clocks = [_check_whole_number(f"{key}[{n}]", clock, 1) for n, clock in enumerate(_check_list(key, value))]
    if clocks != sorted(set(clocks)):
        raise _bad_value(key, value, "the clocks (Hz) must rise")
    return tuple(clocks)


def _parse_hottest(key: str, value: Any) -> float:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not known or not COOLEST_LIMIT_C <= value <= HOTTEST_LIMIT_C:
        raise _bad_value(key, value, f"it must be a temperature from {COOLEST_LIMIT_C:g} to {HOTTEST_LIMIT_C:g} C")
    return float(value)


def _parse_names(key: str, value: Any) -> Tuple[str, ...]:
    return tuple(_check_text(f"{key}[{n}]", name) for n, name in enumerate(_check_list(key, value)))


def _parse_extras(key: str, value: Any) -> Tuple[str, ...]:
    for extra in _check_list(key, value):
        if extra not in EXTRAS:
            raise _bad_value(key, extra, f"known: {', '.join(EXTRAS)}")
    return tuple(extra for extra in EXTRAS if extra in value)


def _parse_path(key: str, value: Any) -> str:
    if not _check_text(key, value).startswith("/"):
        raise _bad_value(key, value, "it must be a path that begins with /")
    return str(value)


FIELDS: Dict[str, Callable[[str, Any], Any]] = {
    "floor": _parse_floor,
    "emc": _parse_emc,
    "emc_table_hz": _parse_clocks,
    "hottest_c": _parse_hottest,
    "needed_zones": _parse_names,
    "extras": _parse_extras,
    "group": _check_text,
    "socket": _parse_path,
    "state": _parse_path,
}
