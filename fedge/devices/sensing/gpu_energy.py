"""Energy of this machine's NVIDIA GPUs, read from NVML's counters (the optional package nvidia-ml-py)."""

from __future__ import annotations

import logging
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

    Args:
        nvml: The module ``pynvml``, initialised.

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
