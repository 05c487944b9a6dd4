"""A board's temperatures by zone; zones that cannot be read are passed over unless they are needed."""

from typing import Dict, List, Sequence, Tuple

from fedge.powerd.control_values import read_int, try_read_text
from fedge.powerd.machine import Machine
from fedge.powerd.mode_records import PowerdRefusal

ZONES = "/sys/class/thermal/thermal_zone*"
COLDEST_C = -100.0
"""Zones of parts that are off read -256 C; chosen by us, far below any sensor's range."""
NOT_SENSORS = ("PMIC-Die",)
"""Up to JetPack 4 a constant (100 C on the Nano), no measurement: it would look like a board about to melt."""


def read_temperatures(machine: Machine, needed: Sequence[str]) -> Dict[str, float]:
    """Degrees C by zone type, the hotter one where two have one type.

    Raises ``PowerdRefusal`` (sensor-lost) where a needed zone cannot be read, or none of the zones there are.
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
    """The zones that count, as folder and type."""
    listed = [(folder, try_read_text(machine, f"{folder}/type")) for folder in machine.glob(ZONES)]
    return [(folder, name) for folder, name in listed if name not in NOT_SENSORS or name in needed]


def _refuse_lost(lost: Sequence[str], readable: Sequence[str]) -> None:
    if lost:
        raise PowerdRefusal(
            "sensor-lost",
            f"the temperature of {', '.join(sorted(lost))} cannot be read; readable: {', '.join(readable) or 'none'}; "
            "mend the sensor, or take the zone out of needed_zones",
        )
