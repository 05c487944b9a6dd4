"""The temperature guard: from readings and limits to "go on" or "put back and set nothing more"."""

import math
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

COOLER_C = 5.0
"""After a stop the board must be this much below the limit before a mode is set again; chosen by us."""


class GuardStop(NamedTuple):
    """Why nothing is set now; ``kind`` is ``too-hot`` or ``sensor-lost``."""

    kind: str
    text: str


def check_temperatures(
    before: Optional[GuardStop],
    temperatures_c: Optional[Dict[str, float]],
    hottest_c: float,
    needed: Sequence[str] = (),
    lost: str = "",
) -> Optional[GuardStop]:
    """The stop that holds from now on, or None to go on.

    ``temperatures_c`` is by zone, None where they could not be read, and ``lost`` then says why. After any stop the
    board must be ``COOLER_C`` below ``hottest_c``, so that it is not set and put back every second.
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
    """The hottest zone and its temperature; ``("", None)`` without any."""
    known = {zone: value for zone, value in temperatures_c.items() if math.isfinite(value)}
    if not known:
        return "", None
    zone = max(known, key=lambda name: known[name])
    return zone, known[zone]
