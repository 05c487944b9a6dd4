"""Energy of the processor's packages, read from the kernel's RAPL counters."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Self

RAPL_FOLDER = "sys/class/powercap"
RAPL_PACKAGE = re.compile(r"intel-rapl:\d+")
"""Name of a processor package; a second colon marks a part of a package."""


class PackageEnergyCounter:
    """Energy of all processor packages by RAPL; its counters wrap around within minutes and must be read more often."""

    def __init__(self, zones: list[Path]) -> None:
        self._zones = zones
        self._range_uj = [int((zone / "max_energy_range_uj").read_text("ascii")) for zone in zones]
        self._last_uj = [self._read_uj(zone) for zone in zones]
        self._joules = 0.0

    @classmethod
    def try_open(cls, root: str = "/") -> Self | None:
        """Open the machine's counters.

        Returns:
            The counter, or None if the machine has none or this user may not read them.
        """
        folder = Path(root) / RAPL_FOLDER
        zones = sorted(zone for zone in folder.glob("intel-rapl:*") if RAPL_PACKAGE.fullmatch(zone.name))
        with contextlib.suppress(OSError, ValueError):
            return cls(zones) if zones else None
        return None

    def read_energy_j(self) -> float:
        """Return the energy since this object was created.

        Raises:
            OSError: If a counter cannot be read.
        """
        for k, zone in enumerate(self._zones):
            now_uj = self._read_uj(zone)
            self._joules += (now_uj - self._last_uj[k]) % self._range_uj[k] / 1e6
            self._last_uj[k] = now_uj
        return self._joules

    def try_read_energy_j(self) -> float | None:
        """Return the energy since this object was created, or None if a counter cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            return self.read_energy_j()
        return None

    @staticmethod
    def _read_uj(zone: Path) -> int:
        return int((zone / "energy_uj").read_text("ascii"))
