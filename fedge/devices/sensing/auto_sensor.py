"""The sensor ``auto``: jtop where its service answers and agrees with the kernel's files, else those files."""

from __future__ import annotations

import logging

from fedge.devices.sensing.jtop_sensor import JtopSensor
from fedge.devices.sensing.sysfs_sensor import SysfsSensor
from fedge.errors import SensorLost
from fedge.powerd.machine import Machine
from fedge.protocols import Clock
from fedge.types import SensorSample

logger = logging.getLogger(__name__)
AGREEMENT = 0.10
"""Largest relative difference of total power. Both read the same chips, a moment apart, so a larger one means another
formula or unit; a board at work varies by some percent between two reads.
"""
ATTEMPTS = 3
"""Pairs of samples that are compared until one agrees: the load may change between the two reads of a pair."""
SERVICE_SOCKET = "/run/jtop.sock"


class AutoSensor:
    """A ``PowerSensor`` that is one of two, chosen when it is opened.

    Raises:
        SensorLost: Neither can be read.
    """

    def __init__(self, machine: Machine, clock: Clock, total_power: str | None = None) -> None:
        self.name, self.reason, self._sensor = _choose_sensor(machine, clock, total_power)
        logger.info("sensor %s: %s", self.name, self.reason)

    @property
    def interval_s(self) -> float:
        return self._sensor.interval_s

    @property
    def total_power(self) -> str:
        return self._sensor.total_power

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user: the choice, and what the chosen sensor does not show."""
        others = self._sensor.notes if isinstance(self._sensor, SysfsSensor) else ()
        return (f"sensor {self.name}: {self.reason}", *others)

    def read(self) -> SensorSample:
        return self._sensor.read()

    def close(self) -> None:
        self._sensor.close()


def _choose_sensor(
    machine: Machine, clock: Clock, total_power: str | None
) -> tuple[str, str, SysfsSensor | JtopSensor]:
    if not machine.path(SERVICE_SOCKET).exists():
        return "sysfs", f"no jtop service ({SERVICE_SOCKET} is missing)", SysfsSensor(machine, clock, total_power)
    try:
        jtop = JtopSensor(machine, clock, total_power)
    except SensorLost as lost:
        return "sysfs", str(lost), SysfsSensor(machine, clock, total_power)
    try:
        files = SysfsSensor(machine, clock, total_power)
        files.read()
    except SensorLost as lost:
        return "jtop", f"the kernel's files have no power ({lost})", jtop
    try:
        difference = _compare_sensors(jtop, files)
    except SensorLost as lost:
        jtop.close()
        return "sysfs", str(lost), files
    if difference > AGREEMENT:
        jtop.close()
        return "sysfs", f"jtop's total power differs by {difference:.0%} from that of the kernel's files", files
    files.close()
    return "jtop", f"its service answers and agrees with the kernel's files within {AGREEMENT:.0%}", jtop


def _compare_sensors(jtop: JtopSensor, files: SysfsSensor) -> float:
    """Return the smallest relative difference of total power over some pairs of samples.

    Raises:
        SensorLost: One of them cannot be read.
    """
    smallest, seen_s = float("inf"), None
    for _ in range(ATTEMPTS):
        sample = jtop.read_next(seen_s)
        seen_s = sample.at_s
        own_w = files.read().total_w
        smallest = min(smallest, abs(sample.total_w - own_w) / max(own_w, 1e-9))
        if smallest <= AGREEMENT:
            break
    return smallest
