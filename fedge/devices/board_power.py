"""The power mode of the local board through its power daemon: read, set and restore, in people's notation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Literal

from fedge.devices.board_spec import KNOBS
from fedge.errors import BadInput, BoardError
from fedge.powerd.powerd_client import PowerdClient, PowerdError

WIRE_KNOBS = tuple(KNOBS.values())
"""Knobs of the daemon's protocol: key, display name, and number of protocol units per displayed unit."""
UNCHANGED = "-"
"""Placeholder for a knob that is left unchanged."""
MODE_FORM = (
    "a stock mode's name, or CORES/CPU/GPU/MEMORY in MHz such as 4/1344/510/2133, with - for a knob to leave unchanged"
)
CLOCK_TOLERANCE = 0.0005
"""Relative tolerance of typed clocks, for rounded values (1109.3 for 1109.25 MHz)."""


def ask_powerd(socket: str, verb: Literal["get", "describe", "restore"]) -> Mapping[str, Any]:
    """Return the power daemon's answer.

    ``get`` gives its state: mode, limits, preset, lease and temperature; ``describe`` the board's identity, presets and
    knob values; ``restore`` restores the state that the daemon found at its start and gives the mode as read back.
    """
    with connect_powerd(socket) as power:
        answer: Mapping[str, Any] = getattr(power, verb)()
    return answer


def set_power_mode(text: str, socket: str) -> Mapping[str, Any]:
    """Set a mode and return it as read back.

    ``text`` is a preset's name, or a mode as in ``parse_wire_mode``.

    Raises:
        BadInput: If the board has no such mode.
        BoardError: If the daemon cannot be reached or fails.
    """
    with connect_powerd(socket) as power:
        described = power.describe()
        names = [preset["name"] for preset in described["presets"]]
        if "/" not in text:
            if text.upper() not in [name.upper() for name in names]:
                raise BadInput("MODE", repr(text), f"{MODE_FORM}; stock modes here: {', '.join(names) or 'none'}")
            return dict(power.set_preset(text))
        return dict(power.set_mode(parse_wire_mode(text, described["knobs"])))


def parse_wire_mode(text: str, knobs: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Parse a mode in human notation.

    ``text`` is CORES/CPU/GPU/MEMORY with clocks in MHz; ``-`` leaves a knob unchanged.

    Returns:
        Value by knob, in protocol units.

    Raises:
        BadInput: If the notation is wrong or the board lacks a value; the message lists the nearest ones.
    """
    parts = [part.strip() for part in text.split("/")]
    if len(parts) != len(WIRE_KNOBS):
        raise BadInput("MODE", repr(text), MODE_FORM)
    pairs = zip(WIRE_KNOBS, parts, strict=True)
    return {knob: _parse_knob(name, part, knobs[knob], unit) for (knob, name, unit), part in pairs if part != UNCHANGED}


def _parse_knob(name: str, text: str, table: Sequence[int], unit: float) -> int:
    try:
        wanted = float(text) * unit
    except ValueError as error:
        raise BadInput(f"MODE: {name}", repr(text), MODE_FORM) from error
    if not table:
        raise BadInput(f"MODE: {name}", text, f"{UNCHANGED}: this board has no such knob")
    nearest = sorted(table, key=lambda value: abs(value - wanted)) if math.isfinite(wanted) else table
    if not (math.isfinite(wanted) and abs(nearest[0] - wanted) <= CLOCK_TOLERANCE * wanted):
        near = ", ".join(f"{value / unit:g}" for value in sorted(nearest[:4]))
        raise BadInput(f"MODE: {name}", text, f"a value of the board's table; the nearest are {near}")
    return nearest[0]


def format_wire_mode(mode: Mapping[str, int]) -> str:
    """Format a mode of the protocol in the notation of ``parse_wire_mode``."""
    return "/".join(f"{mode[knob] / unit:g}" if knob in mode else UNCHANGED for knob, _, unit in WIRE_KNOBS)


@contextmanager
def connect_powerd(socket: str) -> Iterator[PowerdClient]:
    """Connect to the power daemon until the end of the block.

    Raises:
        BoardError: The daemon cannot be reached or fails.
    """
    try:
        with closing(PowerdClient(socket)) as power:
            yield power
    except PowerdError as error:
        raise BoardError(str(error)) from error
