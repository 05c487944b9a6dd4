"""The processor's own energy counters (RAPL), where the machine shows them: ``/sys/class/powercap/intel-rapl:*``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(slots=True)
class Rapl:
    """Counts joules of all packages since it was made; counters that wrap around are followed."""

    folders: tuple[Path, ...]
    _joules: float = 0.0
    _last_uj: dict[Path, int] = field(default_factory=dict)

    def __call__(self) -> float | None:
        """Joules since the first call; None where a counter cannot be read."""
        try:
            for folder in self.folders:
                now_uj = int((folder / "energy_uj").read_text())
                passed_uj = now_uj - self._last_uj.get(folder, now_uj)
                if passed_uj < 0:
                    passed_uj += int((folder / "max_energy_range_uj").read_text())
                self._joules += passed_uj / 1e6
                self._last_uj[folder] = now_uj
        except (OSError, ValueError):
            return None
        return self._joules


def rapl(root: Path = POWERCAP) -> Rapl | None:
    """A counter over the packages under ``root``; None where there is none that this user may read."""
    folders = tuple(sorted(folder for folder in root.glob("intel-rapl:*") if folder.name.count(":") == 1))
    counter = Rapl(folders)
    return counter if folders and counter() is not None else None
