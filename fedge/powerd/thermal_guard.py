"""A board's temperatures by zone, and the guard that decides from them whether modes may be set."""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from fedge.powerd.machine import Machine, read_int, try_read_text
from fedge.powerd.mode_records import PowerdRefusal

ZONES = "/sys/class/thermal/thermal_zone*"
COLDEST_C = -100.0
"""Lower readings are no temperatures: zones of powered-down parts read -256 C. Far below any sensor's range."""
NOT_SENSORS = ("PMIC-Die",)
"""Constant up to JetPack 4 (100 C on the Nano) and no measurement: it would look like an overheating board."""
COOLER_C = 5.0
"""Hysteresis in degrees C: after a stop the board must be this much below the limit before a mode is set again, so that
modes do not toggle every second.
"""


def list_zones(machine: Machine, needed: Sequence[str]) -> List[Tuple[str, str]]:
    """Return folder and type of the zones that count."""
    listed = [(folder, try_read_text(machine, f"{folder}/type")) for folder in machine.glob(ZONES)]
    return [(folder, name) for folder, name in listed if name not in NOT_SENSORS or name in needed]


def read_temperatures(machine: Machine, needed: Sequence[str]) -> Dict[str, float]:
    """Read the temperatures; unreadable zones are skipped unless they are required.

    Returns:
        Degrees C by zone type, the hotter one of two zones of one type.

    Raises:
        PowerdRefusal: Of kind sensor-lost, if a required zone or all zones are unreadable.
    """
    found: Dict[str, float] = {}
    unread: List[str] = []
    for folder, name in list_zones(machine, needed):
        try:
            celsius = read_int(machine, f"{folder}/temp") / 1000.0
        except OSError:
            celsius = -300.0
        if celsius > COLDEST_C:
            found[name] = max(celsius, found.get(name, celsius))
        else:
            unread.append(name)
    lost = [name for name in needed if name not in found] or (unread if not found else [])
    if lost:
        readable = ", ".join(sorted(found)) or "none"
        text = f"the temperature of {', '.join(sorted(lost))} cannot be read; readable: {readable}"
        raise PowerdRefusal("sensor-lost", f"{text}; mend the sensor, or take the zone out of needed_zones")
    return found


class GuardStop(NamedTuple):
    """Why modes are not set at present.

    Attributes:
        kind: ``too-hot`` or ``sensor-lost``.
    """

    kind: str
    text: str


def check_temperatures(
    before: Optional[GuardStop], temperatures_c: Optional[Dict[str, float]], hottest_c: float, lost: str = ""
) -> Optional[GuardStop]:
    """Decide whether modes may be set.

    Temperatures are by zone, or None if they could not be read, and then ``lost`` says why.

    Returns:
        The stop from now on, or None to go on.
    """
    if temperatures_c is None:
        return GuardStop("sensor-lost", f"{lost}; nothing is set until they can be")
    if not temperatures_c:
        return None
    zone = max(temperatures_c, key=lambda name: temperatures_c[name])
    cooler_c = hottest_c - COOLER_C
    if temperatures_c[zone] <= (hottest_c if before is None else cooler_c):
        return None
    got = f"{zone} is at {temperatures_c[zone]:.1f} C, the limit is {hottest_c:g} C"
    return GuardStop("too-hot", f"{got}; wait until it is below {cooler_c:g} C")
