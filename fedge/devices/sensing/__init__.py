"""Power sensors of a board: the table of their names, and their construction."""

from __future__ import annotations

from typing import Protocol

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
