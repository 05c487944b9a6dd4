"""The most memory that this process held since it was last asked to forget: main memory, and what torch took on a GPU.

Main memory is the kernel's own high-water mark of resident pages. What CUDA itself takes for its context is in neither.
"""

import contextlib
import sys
from pathlib import Path
from typing import Any, Callable, Optional

STATUS = "/proc/self/status"
CLEAR = "/proc/self/clear_refs"
FORGET_PEAK = "5"
"""What makes the kernel forget the high-water mark (Linux 4.0 and newer)."""


def read_status() -> str:
    """The kernel's lines on this process; empty where there are none."""
    try:
        return Path(STATUS).read_text()
    except OSError:
        return ""


def clear_peak() -> None:
    """Ask the kernel to forget; some do not."""
    with contextlib.suppress(OSError):
        Path(CLEAR).write_text(FORGET_PEAK)


class PeakMemoryMeter:
    """Tells the peak since the last ``forget``; where the kernel does not forget, only a peak above all before it."""

    def __init__(self, status: Callable[[], str] = read_status, clear: Callable[[], None] = clear_peak) -> None:
        self._status, self._clear = status, clear
        self._before_kb = 0

    def reset(self) -> None:
        """Count anew from what is held now."""
        before_kb = parse_high_water_kb(self._status())
        self._clear()
        after_kb = parse_high_water_kb(self._status())
        forgotten = before_kb is None or after_kb is None or after_kb < before_kb
        self._before_kb = 0 if forgotten or after_kb is None else after_kb
        if _uses_gpu():
            _loaded_torch().cuda.reset_peak_memory_stats()

    def peak_mb(self) -> Optional[float]:
        """Megabytes (1e6 bytes) of both together; None where nobody knows."""
        resident_kb = parse_high_water_kb(self._status())
        if resident_kb is None:
            return None
        if _uses_gpu():  # beside which the main memory of a training hardly changes
            return resident_kb * 1.024e-3 + int(_loaded_torch().cuda.max_memory_reserved()) / 1e6
        return None if resident_kb <= self._before_kb else resident_kb * 1.024e-3


def parse_high_water_kb(status: str) -> Optional[int]:
    """``VmHWM`` of a process's status, in units of 1,024 bytes."""
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
