"""A thread that looks at the machine at a steady rate while a point is measured, and keeps what it saw."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from fedge.characterisation.here import proc as kernel
from fedge.characterisation.here.rapl import Rapl
from fedge.devices.sensing import thermal
from fedge.devices.sensing.held import Files
from fedge.powerd.machine import Machine
from fedge.worker.characterising_host import DISKSTATS
from fedge.worker.characterising_host import read_bytes as disk_bytes

JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Look:
    """The machine at one moment; NaN where nothing tells. What ends in ``_so_far`` only grows."""

    at_s: float
    busy_so_far: float
    """Ticks of all cores."""
    ticks_so_far: float
    memory_mb: float
    read_bytes_so_far: float
    joules_so_far: float
    temperature_c: float


@dataclass(eq=False)
class Eyes:
    """Makes looks. ``disk`` are the numbers of the block device under the images; without one, what the processes say.

    ``pid`` is the measuring program's, once it runs.
    """

    disk: str | None
    rapl: Rapl | None = None
    root: str = "/"
    now_s: Callable[[], float] = time.monotonic
    pid: int | None = None
    _read: dict[int, float] = field(default_factory=dict)
    """Bytes per process, also of those that ended."""

    def __post_init__(self) -> None:
        machine = Machine(self.root)
        self._files = Files(machine)
        self._proc = Path(self.root) / "proc"
        self._zones = thermal.readers(self._files, machine)

    def look(self) -> Look:
        """The machine now."""
        pids = () if self.pid is None else kernel.tree(self.pid, self._proc)
        busy, ticks = kernel.cpu_times(self._proc)
        hottest_c = max(thermal.temperatures(self._zones).values(), default=math.nan)
        return Look(
            self.now_s(),
            busy,
            ticks,
            kernel.resident_mb(pids, self._proc) or math.nan,
            self._bytes(pids),
            math.nan if self.rapl is None else self.rapl.joules(),
            hottest_c,
        )

    def close(self) -> None:
        """Close the sensors' files."""
        self._files.close()

    def _bytes(self, pids: tuple[int, ...]) -> float:
        if self.disk is None:
            self._read.update(kernel.read_bytes(pids, self._proc))
            return sum(self._read.values())
        lines = (self._proc / Path(DISKSTATS).name).read_text("ascii").splitlines()
        found = disk_bytes(self.disk, lines)
        return math.nan if found is None else found


class Looking:
    """``with Looking(eyes, hz) as looking: ...`` and then ``looking.looks``, the first and last at the block's ends."""

    def __init__(self, eyes: Eyes, hz: float) -> None:
        self._eyes, self._period_s = eyes, 1.0 / hz
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looking", daemon=True)
        self.looks: list[Look] = []

    def __enter__(self) -> Self:
        self.looks.append(self._eyes.look())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(JOIN_S)
        if error is None:
            self.looks.append(self._eyes.look())
        self._eyes.close()

    def _run(self) -> None:
        begun_s, k = time.monotonic(), 0
        while True:
            k = max(k + 1, math.ceil((time.monotonic() - begun_s) / self._period_s))
            if self._stop.wait(max(0.0, begun_s + k * self._period_s - time.monotonic())):
                return
            with contextlib.suppress(OSError):  # a look that fails is a gap
                self.looks.append(self._eyes.look())
