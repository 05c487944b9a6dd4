"""What a board says of itself: the name table of its power sensors and their look-up."""

from __future__ import annotations

from typing import Protocol

from fedge.powerd.machine import Machine
from fedge.protocols import Clock, PowerSensor
from fedge.registry import load_named

SENSORS = {
    "sysfs": "fedge.devices.sensing.sysfs_sensor:SysfsSensor",
    "tegrastats": "fedge.devices.sensing.tegrastats_sensor:TegrastatsSensor",
    "jtop": "fedge.devices.sensing.jtop_sensor:JtopSensor",
}
"""A sensor's name in the configuration -> its class, made from (machine, clock, formula of the total or None)."""


class OpenSensor(PowerSensor, Protocol):
    """A power sensor that holds files, a process or a thread until it is closed."""

    def close(self) -> None: ...


def open_sensor(
    name: str, machine: Machine, clock: Clock, total_power: str | None = None, where: str = "sensor"
) -> OpenSensor:
    """The sensor behind ``name``: one of ``SENSORS`` or the user's own ``module:Class``, opened.

    ``total_power`` is the formula that is wanted, e.g. ``"VDD_IN"``. Raises ``UnknownName`` or ``BadInput`` for the
    field ``where``, and ``SensorLost`` when the machine has no such sensor.
    """
    sensor: OpenSensor = load_named(where, name, SENSORS)(machine, clock, total_power)
    return sensor
