"""A board's temperatures by zone; unreadable zones are skipped unless they are required."""

from typing import Dict, List, Sequence, Tuple

from fedge.powerd.control_values import read_int, try_read_text
from fedge.powerd.machine import Machine
from fedge.powerd.mode_records import PowerdRefusal

ZONES = "/sys/class/thermal/thermal_zone*"
COLDEST_C = -100.0
"""Lower readings are no temperatures: zones of powered-down parts read -256 C. Far below any sensor's range."""
NOT_SENSORS = ("PMIC-Die",)
"""Constant up to JetPack 4 (100 C on the Nano) and no measurement: it would look like an overheating board."""


def read_temperatures(machine: Machine, needed: Sequence[str]) -> Dict[str, float]:
    """Read the temperatures.

    Args:
        machine: The machine.
        needed: Zone types that must be readable.

    Returns:
        Degrees C by zone type, the hotter one of two zones of one type.

    Raises:
        PowerdRefusal: Of kind sensor-lost, if a required zone or all zones are unreadable.
    """
    found: Dict[str, float] = {}
    lost: List[str] = []
    for folder, name in list_zones(machine, needed):
        try:
            celsius = read_int(machine, f"{folder}/temp") / 1000.0
        except OSError:
            celsius = -300.0
        if celsius > COLDEST_C:
            found[name] = max(celsius, found.get(name, celsius))
        else:
            lost.append(name)
    _refuse_lost([name for name in needed if name not in found] or (lost if not found else []), sorted(found))
    return found


def list_zones(machine: Machine, needed: Sequence[str]) -> List[Tuple[str, str]]:
    """Return folder and type of the zones that count."""
    listed = [(folder, try_read_text(machine, f"{folder}/type")) for folder in machine.glob(ZONES)]
    return [(folder, name) for folder, name in listed if name not in NOT_SENSORS or name in needed]


def _refuse_lost(lost: Sequence[str], readable: Sequence[str]) -> None:
    if lost:
        raise PowerdRefusal(
            "sensor-lost",
            f"the temperature of {', '.join(sorted(lost))} cannot be read; readable: {', '.join(readable) or 'none'}; "
            "mend the sensor, or take the zone out of needed_zones",
        )
