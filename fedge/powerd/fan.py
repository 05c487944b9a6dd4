"""The fan's speed, through hwmon or, up to JetPack 4, the fan driver's own file."""

from typing import Any, Optional

from fedge.powerd.machine import Machine
from fedge.powerd.mode import Refused
from fedge.powerd.plan import Write, plain
from fedge.powerd.reading import maybe_text

OLD = "/sys/devices/pwm-fan/target_pwm"
HWMON = "/sys/class/hwmon/hwmon*"
FULL = 255


def file(machine: Machine) -> Optional[str]:
    """The fan's control file, or None without one."""
    if machine.exists(OLD):
        return OLD
    folders = machine.glob(HWMON)
    fans = [folder for folder in folders if machine.exists(f"{folder}/pwm1")]
    named = [folder for folder in fans if "fan" in maybe_text(machine, f"{folder}/name")]
    return f"{(named or fans)[0]}/pwm1" if fans else None


def at(machine: Machine, percent: Any) -> Write:
    """The write for a speed in percent; raises ``Refused`` (bad-request, not-allowed)."""
    if isinstance(percent, bool) or not isinstance(percent, (int, float)) or not 0 <= percent <= 100:
        raise Refused("bad-request", f"got a fan speed of {percent!r:.60}; it must be a number from 0 to 100 (percent)")
    path = file(machine)
    if path is None:
        raise Refused("not-allowed", "this board has no fan that can be set")
    return plain(path, round(percent * FULL / 100))
