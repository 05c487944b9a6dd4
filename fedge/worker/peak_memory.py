"""Peak memory of this process since the last reset: main memory, and what torch reserved on a GPU.

Main memory is the kernel's high-water mark of resident pages (VmHWM). CUDA's own context is in neither figure.
"""

import contextlib
import sys
from pathlib import Path
from typing import Any, Callable, Optional

STATUS = "/proc/self/status"
CLEAR = "/proc/self/clear_refs"
FORGET_PEAK = "5"
"""Value for clear_refs that resets the high-water mark (Linux 4.0 and newer)."""


def read_status() -> str:
    """Return this process's status file; empty if there is none."""
    try:
        return Path(STATUS).read_text()
    except OSError:
        return ""


def clear_peak() -> None:
    """Ask the kernel to reset the high-water mark; some kernels do not."""
    with contextlib.suppress(OSError):
        Path(CLEAR).write_text(FORGET_PEAK)


class PeakMemoryMeter:
    """Measures the peak since ``reset``; if the kernel cannot reset its mark, only a peak above all earlier ones."""

    def __init__(self, status: Callable[[], str] = read_status, clear: Callable[[], None] = clear_peak) -> None:
        self._status, self._clear = status, clear
        self._before_kb = 0

    def reset(self) -> None:
        """Start a new measurement from the memory held now."""
        before_kb = parse_high_water_kb(self._status())
        self._clear()
        after_kb = parse_high_water_kb(self._status())
        forgotten = before_kb is None or after_kb is None or after_kb < before_kb
        self._before_kb = 0 if forgotten or after_kb is None else after_kb
        if _uses_gpu():
            _loaded_torch().cuda.reset_peak_memory_stats()

    def peak_mb(self) -> Optional[float]:
        """Return the sum of both peaks in megabytes (1e6 bytes), or None if it is unknown."""
        resident_kb = parse_high_water_kb(self._status())
        if resident_kb is None:
            return None
        if _uses_gpu():  # beside which the main memory of a training hardly changes
            return resident_kb * 1.024e-3 + int(_loaded_torch().cuda.max_memory_reserved()) / 1e6
        return None if resident_kb <= self._before_kb else resident_kb * 1.024e-3


def parse_high_water_kb(status: str) -> Optional[int]:
    """Return ``VmHWM`` of a process's status, in units of 1,024 bytes; None if it is missing."""
    for line in status.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "VmHWM:" and words[1].isdigit():
            return int(words[1])
    return None


def _loaded_torch() -> Any:
    return sys.modules.get("torch")


def _uses_gpu() -> bool:
    torch = _loaded_torch()
    return torch is not None and bool(torch.cuda.is_initialized())
