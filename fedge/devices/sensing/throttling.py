"""How often a board was throttled for under-voltage or over-current: the counters of ``soctherm_oc``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedge.devices.sensing.held import Files, number_or_none, text_or_none
from fedge.powerd.machine import Machine

MONITORS = "/sys/class/hwmon/hwmon*"
NAME = "soctherm_oc"


def counters(files: Files, machine: Machine) -> tuple[Callable[[], float], ...]:
    """Cheap ways to read the event counters: under-voltage, average and instantaneous over-current; () without any."""
    return tuple(
        files.number(path)
        for folder in machine.glob(MONITORS)
        if text_or_none(machine, f"{folder}/name") == NAME
        for path in machine.glob(f"{folder}/oc*_event_cnt")
    )


def events(readers: Sequence[Callable[[], float]]) -> int | None:
    """All counters' sum; None when the board has none, or one cannot be read (the sum would seem to fall)."""
    counts = [number_or_none(read) for read in readers]
    return int(sum(c for c in counts if c is not None)) if counts and None not in counts else None
