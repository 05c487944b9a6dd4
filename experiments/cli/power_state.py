"""``fedge power``: reads, sets and restores the power mode of the local board through its power daemon."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedge.errors import BadInput, BoardError
from fedge.powerd.powerd_client import PowerdClient, PowerdError

WIRE_KNOBS: Sequence[tuple[str, str, float]] = (
    ("cores", "cores", 1.0),
    ("cpu_khz", "CPU MHz", 1e3),
    ("gpu_hz", "GPU MHz", 1e6),
    ("emc_hz", "memory MHz", 1e6),
)
"""Knobs of the daemon's protocol: key, display name, and number of protocol units per displayed unit."""
UNCHANGED = "-"
"""Placeholder for a knob that is left unchanged."""
MODE_FORM = (
    "a stock mode's name, or CORES/CPU/GPU/MEMORY in MHz such as 4/1344/510/2133, with - for what stays as it is"
)
CLOCK_TOLERANCE = 0.0005
"""Relative tolerance of typed clocks, for rounded values (1109.3 for 1109.25 MHz)."""


def read_state(socket: str) -> Mapping[str, Any]:
    """Return the daemon's state: mode, limits, preset, lease and temperature."""
    with _connect_daemon(socket) as power:
        answer: Mapping[str, Any] = power.get()
    return answer


def describe_board(socket: str) -> Mapping[str, Any]:
    """Return the board's identity, presets and knob values from the daemon."""
    with _connect_daemon(socket) as power:
        answer: Mapping[str, Any] = power.describe()
    return answer


def set_mode(text: str, socket: str) -> Mapping[str, Any]:
    """Set a mode and return it as read back.

    Args:
        text: A preset's name, or a mode as in ``parse_wire_mode``.
        socket: The daemon's socket.

    Raises:
        BadInput: If the board has no such mode.
        BoardError: If the daemon cannot be reached or fails.
    """
    with _connect_daemon(socket) as power:
        described = power.describe()
        names = [preset["name"] for preset in described["presets"]]
        if "/" not in text:
            if text.upper() not in [name.upper() for name in names]:
                raise BadInput("MODE", repr(text), f"{MODE_FORM}; stock modes here: {', '.join(names) or 'none'}")
            return dict(power.set_preset(text))
        return dict(power.set_mode(parse_wire_mode(text, described["knobs"])))


def restore_state(socket: str) -> Mapping[str, Any]:
    """Restore the state that the daemon found at its start; return the mode as read back."""
    with _connect_daemon(socket) as power:
        answer: Mapping[str, Any] = power.restore()
    return answer


def parse_wire_mode(text: str, knobs: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Parse a mode in human notation.

    Args:
        text: CORES/CPU/GPU/MEMORY with clocks in MHz; ``-`` leaves a knob unchanged.
        knobs: The board's values per knob, in protocol units.

    Returns:
        Value by knob, in protocol units.

    Raises:
        BadInput: If the notation is wrong or the board lacks a value; the message lists the nearest ones.
    """
    parts = [part.strip() for part in text.split("/")]
    if len(parts) != len(WIRE_KNOBS):
        raise BadInput("MODE", repr(text), MODE_FORM)
    given = zip(WIRE_KNOBS, parts, strict=True)
    return {
        knob: _parse_knob(shown, part, knobs[knob], unit) for (knob, shown, unit), part in given if part != UNCHANGED
    }


def _parse_knob(shown: str, text: str, table: Sequence[int], unit: float) -> int:
    try:
        wished = float(text) * unit
    except ValueError as error:
        raise BadInput(f"MODE: {shown}", repr(text), MODE_FORM) from error
    if not table:
        raise BadInput(f"MODE: {shown}", text, f"{UNCHANGED}: this board has no such knob")
    nearest = sorted(table, key=lambda value: abs(value - wished)) if math.isfinite(wished) else table
    if not (math.isfinite(wished) and abs(nearest[0] - wished) <= CLOCK_TOLERANCE * wished):
        near = ", ".join(f"{value / unit:g}" for value in sorted(nearest[:4]))
        raise BadInput(f"MODE: {shown}", text, f"a value of the board's table; the nearest are {near}")
    return nearest[0]


def format_wire_mode(mode: Mapping[str, int]) -> str:
    """Format a mode of the protocol in the notation of ``parse_wire_mode``."""
    return "/".join(f"{mode[knob] / unit:g}" if knob in mode else UNCHANGED for knob, _, unit in WIRE_KNOBS)


def print_modes(console: Console, described: Mapping[str, Any]) -> None:
    """Print knobs and presets."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for knob, name, unit in WIRE_KNOBS:
        values = described["allowed"][knob]
        table.add_row(name, ", ".join(f"{value / unit:g}" for value in values) or "not on this board")
    for preset in described["presets"]:
        marks = [
            word for word, true in (("default", preset["default"]), ("needs a reboot", preset["needs_reboot"])) if true
        ]
        note = f"  ({', '.join(marks)})" if marks else ""
        table.add_row(Text(preset["name"]), Text(f"{format_wire_mode(preset['mode'])}{note}"))
    console.print(table)


def print_state(console: Console, answer: Mapping[str, Any]) -> None:
    """Print the state returned by ``read_state``."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for knob, name, unit in WIRE_KNOBS:
        value = answer["mode"].get(knob)
        table.add_row(
            name,
            ("not on this board" if answer["mode"] else "cannot be read") if value is None else f"{value / unit:g}",
        )
    preset, lease = answer.get("preset"), answer.get("lease")
    table.add_row("stock mode", Text(preset["name"] if preset else "unknown"))
    table.add_row("held by", Text(f"{lease['name']}, {lease['left_s']:.0f} s left" if lease else "nobody"))
    table.add_row("changed", "yes: 'fedge power restore' puts back what was found" if answer.get("changed") else "no")
    if answer.get("temperature_c") is not None:
        table.add_row("hottest", f"{answer['temperature_c']:.1f} C")
    if answer.get("stopped"):
        table.add_row("refuses changes", Text(str(answer["stopped"])))
    console.print(table)


@contextmanager
def _connect_daemon(socket: str) -> Iterator[PowerdClient]:
    try:
        with closing(PowerdClient(socket)) as power:
            yield power
    except PowerdError as error:
        raise BoardError(str(error)) from error
