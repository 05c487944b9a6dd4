"""Temperatures of a board's thermal zones, by the zones' types; zones that are asleep are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedge.devices.sensing.held import Files, number_or_none, text_or_none
from fedge.powerd.machine import Machine

ZONES = "/sys/class/thermal/thermal_zone*"
FIXED = "PMIC"
"""How the name of a sensor begins that says 100 C at all times on boards up to Xavier, as their tegrastats logs show;
it would be the hottest."""
PLAUSIBLE_C = (-60.0, 200.0)
"""What lies outside is no temperature: a zone that is off says -256. Chosen by us."""


def readers(files: Files, machine: Machine) -> dict[str, Callable[[], float]]:
    """Per zone a cheap way to read its temperature, C; of two zones of one type the second gets its folder's name."""
    found: dict[str, Callable[[], float]] = {}
    for folder in machine.glob(ZONES):
        name = text_or_none(machine, f"{folder}/type")
        if name:
            known = f"{name} ({folder.rsplit('/', 1)[-1]})" if name in found else name
            found[known] = _celsius(files.number(f"{folder}/temp"))
    return found


def temperatures(zones: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """What the zones say now, C; cv0 to cv2 answer EAGAIN while their engine is off, and are left out."""
    seen = {name: number_or_none(read) for name, read in zones.items()}
    return believed({name: at_c for name, at_c in seen.items() if at_c is not None})


def believed(temperatures_c: Mapping[str, float]) -> dict[str, float]:
    """The temperatures that are some: not those of sensors that are off, or say the same at all times."""
    low, high = PLAUSIBLE_C
    return {name: at_c for name, at_c in temperatures_c.items() if low < at_c < high and not name.startswith(FIXED)}


def _celsius(millis: Callable[[], float]) -> Callable[[], float]:
    return lambda: millis() / 1e3
