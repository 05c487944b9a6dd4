"""An ordinary Linux machine as the ground of a rig: no power modes; its clocks' governor, where it shows one."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedge.characterisation.here.ground import Metered
from fedge.characterisation.point import Point
from fedge.characterisation.seen import Strip
from fedge.errors import BoardError
from fedge.powerd.client import SOCKET
from fedge.types import PowerMode

logger = logging.getLogger(__name__)
GOVERNORS = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
CHOICE = "scaling_available_governors"
PINNED = "performance"
"""The governor under which clocks stay at their top; what a processor does above it by itself (boost) stays its own."""
FOLLOWING = ("schedutil", "ondemand", "conservative", "powersave")
"""Governors under which they follow the load, the usual one first; Intel's and AMD's drivers call theirs powersave."""


@dataclass(frozen=True, slots=True)
class Ordinary:
    """``strict``: a plan that compares clocks pinned and not is refused where this cannot be set; else it is noted."""

    root: str = "/"
    strict: bool = False
    socket: str = SOCKET

    @property
    def title(self) -> str:
        """Processor and cores that are online."""
        return f"{_processor(Path(self.root))}, {os.cpu_count()} cores"

    @property
    def maxn(self) -> PowerMode | None:
        """None: there are no modes."""
        return None

    @property
    def meter(self) -> str | None:
        """None: what is metered is metered from beside."""
        return None

    @property
    def software(self) -> dict[str, str]:
        """The kernel, and the processor."""
        return {"machine": self.title, "kernel": platform.release()}

    def refuses(self, point: Point) -> str | None:
        """A mode always, and clocks that cannot be set as asked where the plan compares them."""
        if point.mode is not None:
            return (
                f"mode {point.mode} cannot be set: no power daemon listens at {self.socket}, which a Jetson has; "
                "leave mode out"
            )
        lack = self._lack(point.dvfs)
        return None if lack is None or not self.strict else f"dvfs: {str(point.dvfs).lower()} cannot be had: {lack}"

    @contextmanager
    def held(self, point: Point) -> Iterator[OrdinaryHeld]:
        """Set the governor where that is needed and can be."""
        lack = self._lack(point.dvfs)
        if lack is not None:
            yield OrdinaryHeld((f"clocks are as found: {lack}",))
            return
        files = self._governors()
        found = [(file, file.read_text("ascii").strip()) for file in files]
        wished = self._wished(point.dvfs, files)
        try:
            _write([(file, wished) for file, now in found if wished is not None and now != wished])
            yield OrdinaryHeld()
        finally:
            _put_back(found)

    def _governors(self) -> list[Path]:
        return sorted(Path(self.root).glob(GOVERNORS))

    def _lack(self, dvfs: bool) -> str | None:
        """Why clocks cannot be as wished; None where they are, or can be set so."""
        files = self._governors()
        if not files:
            return "this machine shows no clock governor"
        now = {file.read_text("ascii").strip() for file in files}
        wished = self._wished(dvfs, files)
        if wished is None or now == {wished}:
            return None
        if not all(os.access(file, os.W_OK) for file in files):
            return f"the clocks' governor is {', '.join(sorted(now))} and only root may set it to {wished}"
        return None

    def _wished(self, dvfs: bool, files: Sequence[Path]) -> str | None:
        """The governor to be set; None where the present ones will do."""
        now = {file.read_text("ascii").strip() for file in files}
        if not dvfs:
            return PINNED
        if PINNED not in now:
            return None
        with contextlib.suppress(OSError):
            there = (files[0].parent / CHOICE).read_text("ascii").split()
            return next((name for name in FOLLOWING if name in there), FOLLOWING[0])
        return FOLLOWING[0]


@dataclass(frozen=True, slots=True)
class OrdinaryHeld:
    """An ordinary machine during a point; it has no sensors of its own."""

    notes: tuple[str, ...] = ()

    def metered(self, start_s: float, end_s: float) -> Metered:
        """Nothing."""
        return Metered()

    def completed(self, strip: Strip, begun_s: float) -> Strip:
        """The strip itself."""
        return strip


def _write(wished: Sequence[tuple[Path, str]]) -> None:
    for file, governor in wished:
        try:
            file.write_text(governor)
        except OSError as error:
            raise BoardError(f"{file} cannot be set to {governor}: {error.strerror}") from error


def _put_back(found: Sequence[tuple[Path, str]]) -> None:
    for file, governor in found:
        try:
            if file.read_text("ascii").strip() != governor:
                file.write_text(governor)
        except OSError as error:  # the point is measured; the next one sets what it needs
            logger.warning("%s could not be put back to %s: %s", file, governor, error)


def _processor(root: Path) -> str:
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return " ".join(line.partition(":")[2].split())
    return platform.machine()
