"""Power sensors of a board: the table of their names, their construction, and the formula of total power."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from fedge.errors import SensorLost
from fedge.powerd.machine import Machine
from fedge.protocols import Clock, PowerSensor
from fedge.registry import load_named

SENSORS = {
    "auto": "fedge.devices.sensing.auto_sensor:AutoSensor",
    "sysfs": "fedge.devices.sensing.sysfs_sensor:SysfsSensor",
    "tegrastats": "fedge.devices.sensing.tegrastats_sensor:TegrastatsSensor",
    "jtop": "fedge.devices.sensing.jtop_sensor:JtopSensor",
    "nvml": "fedge.devices.sensing.nvml_sensor:NvmlSensor",
}
"""Name of a sensor in the configuration -> its class, constructed as ``Class(machine, clock, total_power)``."""


class OpenSensor(PowerSensor, Protocol):
    """A power sensor that holds files, a process or a thread until it is closed."""

    def close(self) -> None: ...


def open_sensor(
    name: str, machine: Machine, clock: Clock, total_power: str | None = None, where: str = "sensor"
) -> OpenSensor:
    """Open a power sensor.

    ``total_power`` is the preferred formula of total power, such as ``"VDD_IN"``; None lets the sensor choose.

    Raises:
        UnknownName: There is no sensor of this name.
        BadInput: The user's own class cannot be loaded.
        SensorLost: The machine has no such sensor.
    """
    sensor: OpenSensor = load_named(where, name, SENSORS)(machine, clock, total_power)
    return sensor


# Total power ----------------------------------------------------------------------------------------------------------


INPUT_RAILS = ("VIN", "POM_5V_IN", "VDD_IN")
"""Rails that measure the module's whole input; the first one present is used."""


def rails_in_formula(formula: str) -> tuple[str, ...]:
    """Return the rails of a formula, such as ``("A", "B")`` for ``"A + B"``."""
    return tuple(rail.strip() for rail in formula.split("+"))


def choose_total_formula(labels: Collection[str], wanted: str | None, where: str) -> str:
    """Choose the formula of total power.

    ``wanted`` is used if all of its rails exist.

    Raises:
        SensorLost: The board has no rails.
    """
    if wanted is not None and all(rail in labels for rail in rails_in_formula(wanted)):
        return wanted
    if not labels:
        raise SensorLost(f"no power rail found: {where}")
    return next((rail for rail in INPUT_RAILS if rail in labels), " + ".join(labels))


def evaluate_formula_w(formula: str, rails_w: Mapping[str, float]) -> float | None:
    """Return total power in watts, or None if one of the formula's rails is missing."""
    parts = [rails_w.get(rail) for rail in rails_in_formula(formula)]
    return None if None in parts else sum(part for part in parts if part is not None)


def require_total_w(formula: str, rails_w: Mapping[str, float], source: str) -> float:
    """Return total power in watts.

    Raises:
        SensorLost: ``source``, such as "a line", lacks a rail of the formula.
    """
    total_w = evaluate_formula_w(formula, rails_w)
    if total_w is None:
        missing = [rail for rail in rails_in_formula(formula) if rail not in rails_w]
        raise SensorLost(f"{source} lacks {', '.join(missing)} of the total {formula}")
    return total_w
