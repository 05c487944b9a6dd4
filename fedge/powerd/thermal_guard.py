"""The temperature guard: decides from readings and limits whether modes may be set or the state must be restored."""

import math
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

COOLER_C = 5.0
"""Hysteresis in degrees C: after a stop the board must be this much below the limit before a mode is set again."""


class GuardStop(NamedTuple):
    """Why modes are not set at present.

    Attributes:
        kind: ``too-hot`` or ``sensor-lost``.
        text: The reason in words.
    """

    kind: str
    text: str


def check_temperatures(
    before: Optional[GuardStop],
    temperatures_c: Optional[Dict[str, float]],
    hottest_c: float,
    needed: Sequence[str] = (),
    lost: str = "",
) -> Optional[GuardStop]:
    """Decide whether modes may be set.

    After a stop the board must be ``COOLER_C`` below the limit, so that modes do not toggle every second.

    Args:
        before: The current stop, or None.
        temperatures_c: Degrees C by zone; None if they could not be read.
        hottest_c: The limit in degrees C.
        needed: Zones that must be readable.
        lost: Why the temperatures could not be read.

    Returns:
        The stop from now on, or None to go on.
    """
    if temperatures_c is None:
        return GuardStop(
            "sensor-lost", f"{lost or 'the temperatures cannot be read'}; nothing is set until they can be"
        )
    gone = [zone for zone in needed if not math.isfinite(temperatures_c.get(zone, math.nan))]
    if gone:
        text = f"no temperature of {', '.join(gone)}, which needed_zones names; nothing is set until it is read again"
        return GuardStop("sensor-lost", text)
    zone, hottest = find_hottest(temperatures_c)
    limit_c = hottest_c if before is None else hottest_c - COOLER_C
    if hottest is None or hottest <= limit_c:
        return None
    text = (
        f"{zone} is at {hottest:.1f} C, the limit is {hottest_c:g} C; wait until it is below {hottest_c - COOLER_C:g} C"
    )
    return GuardStop("too-hot", text)


def find_hottest(temperatures_c: Dict[str, float]) -> Tuple[str, Optional[float]]:
    """Return the hottest zone and its temperature in degrees C; ``("", None)`` without any."""
    known = {zone: value for zone, value in temperatures_c.items() if math.isfinite(value)}
    if not known:
        return "", None
    zone = max(known, key=lambda name: known[name])
    return zone, known[zone]
