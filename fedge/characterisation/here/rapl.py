"""Intel's and AMD's own energy counters (RAPL), where the user may read them: joules of the processor's packages."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Self

ZONES = "sys/class/powercap"
PACKAGE = re.compile(r"intel-rapl:\d+")
"""A package; what follows a second colon is a part of one."""
SOURCE = "RAPL, the processor's packages alone"


class Rapl:
    """Counters that wrap around at their range; to be read more often than that, which is minutes."""

    def __init__(self, zones: list[Path]) -> None:
        self._zones = zones
        self._range_uj = [int((zone / "max_energy_range_uj").read_text("ascii")) for zone in zones]
        self._last_uj = [self._read(zone) for zone in zones]
        self._joules = 0.0

    @classmethod
    def found(cls, root: str = "/") -> Self | None:
        """The machine's counters; None where there are none, or this user may not read them."""
        folder = Path(root) / ZONES
        zones = sorted(zone for zone in folder.glob("intel-rapl:*") if PACKAGE.fullmatch(zone.name))
        with contextlib.suppress(OSError, ValueError):
            return cls(zones) if zones else None
        return None

    def joules(self) -> float:
        """Since it was made."""
        for k, zone in enumerate(self._zones):
            now_uj = self._read(zone)
            self._joules += (now_uj - self._last_uj[k]) % self._range_uj[k] / 1e6
            self._last_uj[k] = now_uj
        return self._joules

    @staticmethod
    def _read(zone: Path) -> int:
        return int((zone / "energy_uj").read_text("ascii"))
