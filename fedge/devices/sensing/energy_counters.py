"""Energy counters: NVML's of this machine's NVIDIA GPUs (the extra ``gpu``), and the kernel's RAPL of the processor."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

logger = logging.getLogger(__name__)
NO_NVML = "no NVIDIA driver, or the package nvidia-ml-py (the extra gpu) is missing"
MJ_PER_J = 1000.0
"""NVML counts millijoules since the driver was loaded; cards before Volta do not count."""
MW_PER_W = 1000
"""NVML's powers and limits are whole milliwatts."""


def try_load_nvml() -> Any | None:
    """Return the module ``pynvml``, initialised; None without the package or a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.info("NVIDIA GPUs are not measured: %s", error)
        return None
    return pynvml


class GpuEnergyCounter:
    """Energy of all GPUs since this object was created.

    Raises:
        NVMLError: A card does not count its energy, or cannot be read.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._cards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._start_mj = self._read_mj()

    @classmethod
    def try_open(cls) -> Self | None:
        """Open the counters of all cards; None without the package, a driver, a card, or where one does not count."""
        nvml = try_load_nvml()
        if nvml is None:
            return None
        try:
            counter = cls(nvml)
        except nvml.NVMLError as error:
            logger.info("the energy of GPUs is not measured: %s", error)
            return None
        return counter if counter._cards else None

    def try_read_energy_j(self) -> float | None:
        """Return the energy since this object was created, or None if a card cannot be read any more."""
        try:
            return (self._read_mj() - self._start_mj) / MJ_PER_J
        except self._nvml.NVMLError:
            return None

    def _read_mj(self) -> int:
        return sum(int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(card)) for card in self._cards)


RAPL_FOLDER = "sys/class/powercap"
RAPL_PACKAGE = re.compile(r"intel-rapl:\d+")
"""Folder of a processor package; a second colon marks a part of a package."""
RAPL_PLATFORM = "psys"
"""Name of the zone beside the packages, on many laptops, that counts the whole machine: they are in it already."""
RAPL_PERIOD_S = 60.0
"""Seconds between readings of counters that wrap around: the smallest range, 65 kJ, holds two minutes at 500 W."""


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
            packages = [zone for zone in zones if (zone / "name").read_text("ascii").strip() != RAPL_PLATFORM]
            return cls(packages) if packages else None
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

    @contextlib.contextmanager
    def follow(self, period_s: float = RAPL_PERIOD_S) -> Iterator[None]:
        """Read the counters every ``period_s`` inside the block, in a thread, so that none wraps around unseen."""
        over = threading.Event()

        def read() -> None:
            while not over.wait(period_s):
                self.try_read_energy_j()

        thread = threading.Thread(target=read, name="fedge-rapl", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @staticmethod
    def _read_uj(zone: Path) -> int:
        return int((zone / "energy_uj").read_text("ascii"))
