"""INA3221 power monitors through sysfs, found by their rails' labels: iio on JetPack 4, hwmon from JetPack 5 on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fedge.devices.sensing.control_files import ControlFiles, text_or_none
from fedge.powerd.machine import Machine

HWMON = "/sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*"
ALL_HWMON = "/sys/class/hwmon/hwmon*"
"""All hardware monitors, whatever their driver; searched by name if the driver's own path has none."""
IIO = "/sys/bus/i2c/drivers/ina3221x/*/iio:device*"
SUM_CHANNEL = 7
"""Channel of the hwmon driver for the sum of shunt voltages, which is not a rail."""
_CHANNEL = re.compile(r"(?:in|rail_name_)(\d{1,2})(?:_label)?")


@dataclass(frozen=True, slots=True)
class PowerRail:
    """A rail and its files: ``(mW,)``, or ``(mV, mA)``, whose product is its power."""

    label: str
    files: tuple[str, ...]


def find_rails(machine: Machine) -> tuple[PowerRail, ...]:
    """List all connected rails in the order of chips and channels; repeated labels are left out."""
    folders = machine.glob(HWMON) or _find_named_monitors(machine)
    rails = [
        rail
        for folder in folders
        for path in machine.glob(f"{folder}/in*_label")
        if (rail := _hwmon_rail(machine, folder, path))
    ]
    for folder in machine.glob(IIO):
        paths = machine.glob(f"{folder}/rail_name_*")
        rails += [rail for path in paths if (rail := _iio_rail(machine, folder, path))]
    first: dict[str, PowerRail] = {}
    for rail in rails:
        first.setdefault(rail.label, rail)
    return tuple(first.values())


def build_rail_reader(files: ControlFiles, rail: PowerRail) -> Callable[[], float]:
    """Return a fast function that reads a rail's power in watts; it raises ``OSError`` or ``ValueError``."""
    first, *rest = (files.number_reader(path) for path in rail.files)
    if not rest:
        return lambda: first() / 1e3
    (second,) = rest
    return lambda: first() * second() / 1e6


def _find_named_monitors(machine: Machine) -> list[str]:
    return [path for path in machine.glob(ALL_HWMON) if text_or_none(machine, f"{path}/name") == "ina3221"]


def _hwmon_rail(machine: Machine, folder: str, path: str) -> PowerRail | None:
    channel, label = _parse_channel(path), text_or_none(machine, path)
    files = (f"{folder}/in{channel}_input", f"{folder}/curr{channel}_input")
    if channel in {None, SUM_CHANNEL} or not _is_connected(label) or not all(map(machine.exists, files)):
        return None
    return PowerRail(str(label), files)


def _iio_rail(machine: Machine, folder: str, path: str) -> PowerRail | None:
    channel, label = _parse_channel(path), text_or_none(machine, path)
    if channel is None or not _is_connected(label):
        return None
    power = f"{folder}/in_power{channel}_input"
    if machine.exists(power):
        return PowerRail(str(label), (power,))
    files = (f"{folder}/in_voltage{channel}_input", f"{folder}/in_current{channel}_input")
    return PowerRail(str(label), files) if all(map(machine.exists, files)) else None


def _parse_channel(path: str) -> int | None:
    found = _CHANNEL.fullmatch(path.rsplit("/", 1)[-1])
    return None if found is None else int(found[1])


def _is_connected(label: str | None) -> bool:
    return bool(label) and "NC" not in str(label) and "sum of shunt voltages" not in str(label).lower()
