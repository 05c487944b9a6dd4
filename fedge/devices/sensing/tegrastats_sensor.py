"""tegrastats as a power sensor: runs the program in the background and uses its newest line."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedge.child_processes import end_process
from fedge.devices.sensing import choose_total_formula, require_total_w
from fedge.devices.sensing.sampler import FIRST_SAMPLE_LIMIT_S, LatestSample
from fedge.devices.sensing.sysfs_sensor import keep_plausible_temperatures
from fedge.errors import SensorLost
from fedge.powerd.machine import COMMAND_FOLDERS, Machine
from fedge.protocols import Clock
from fedge.types import SensorSample

END_LIMIT_S = 2.0
MAX_LINE_BYTES = 16_384


class TegrastatsSensor:
    """A ``PowerSensor`` that runs ``tegrastats --interval N``; a sample's time is when its line arrived.

    Newer releases print power to root only, and none prints over-current counters. The program is restarted if it ends.
    It is shared by all threads that read.

    Raises:
        SensorLost: The program is missing or prints no power.
    """

    def __init__(self, machine: Machine, clock: Clock, total_power: str | None = None, interval_ms: int = 100) -> None:
        self._command = [_find_program(machine), "--interval", str(interval_ms)]
        self._clock, self._wanted = clock, total_power
        self.interval_s = interval_ms / 1e3
        self._arrival = LatestSample("tegrastats", clock, self.interval_s)
        self._total: str | None = None
        self._turn = threading.Lock()
        """Held while the program is started or stopped."""
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        try:
            self.read()
        except SensorLost:
            self.close()
            raise

    @property
    def total_power(self) -> str:
        return self._total or ""

    def read(self) -> SensorSample:
        """Return the newest sample.

        Raises:
            SensorLost: The program has ended, hangs, or prints no power.
        """
        with self._turn:
            if self._process is None or self._process.poll() is not None:
                self._start()
        return self._arrival.wait_for_sample(FIRST_SAMPLE_LIMIT_S + self.interval_s)

    def close(self) -> None:
        """Stop the program."""
        with self._turn:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process, END_LIMIT_S)
        if self._reader is not None:
            self._reader.join(END_LIMIT_S)

    def _start(self) -> None:
        self._end()
        self._arrival.reset()
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise SensorLost(f"{self._command[0]} cannot be started: {error}; check that it may be run") from error
        self._process = process
        self._reader = threading.Thread(target=self._follow, args=(process,), name="fedge-tegrastats", daemon=True)
        self._reader.start()

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Store every line as the newest sample until the program ends."""
        assert process.stdout is not None
        with process.stdout as lines:
            while line := lines.readline(MAX_LINE_BYTES):
                self._process_line(line.decode("utf-8", "replace"))
        if process is self._process:
            self._arrival.fail(f"it ended with exit code {process.wait()}; try {' '.join(self._command)} by hand")

    def _process_line(self, text: str) -> None:
        at_s, line = self._clock.now_s(), parse_line(text)
        try:
            self._total = self._total or choose_total_formula(
                line.rails_w, self._wanted, "its lines hold no power; newer releases print it to root only"
            )
            self._arrival.put(_build_sample(at_s, line, self._total))
        except SensorLost as lost:
            self._arrival.fail(str(lost))


def _build_sample(at_s: float, line: TegrastatsLine, total: str) -> SensorSample:
    return SensorSample(
        at_s=at_s,
        total_w=require_total_w(total, line.rails_w, "a line"),
        rails_w=line.rails_w,
        temperatures_c=keep_plausible_temperatures(line.temperatures_c),
        gpu_load=line.gpu_load,
        cpu_mhz=line.cpu_mhz,
        gpu_mhz=line.gpu_mhz,
        mem_mhz=line.mem_mhz,
        mem_load=line.mem_load,
    )


def _find_program(machine: Machine) -> str:
    for folder in COMMAND_FOLDERS:
        path: Path = machine.path(f"{folder}/tegrastats")
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise SensorLost(f"no tegrastats in {', '.join(COMMAND_FOLDERS)}; it comes with JetPack: is this a Jetson?")


# Lines of tegrastats, as JetPack 3 to 7 print them; damaged text never raises -----------------------------------------


_RAIL = re.compile(r"(?<!\S)([A-Z][A-Z0-9_]*) (\d{1,9})(?:mW)?(?:/\d{1,9}(?:mW)?){1,2}(?!\S)", re.ASCII)
"""``NAME now/mean`` in milliwatts: without a unit up to JetPack 4, with it since, and with the peak in JetPack 7.
``RAM 1/2MB`` is none."""
_CORES = re.compile(r"(?<!\S)(?:CPU|cpu) \[([^\]]{0,2000})\](?:@(\d{1,6}))?", re.ASCII)
_CORE = re.compile(r"\d{1,3}%(?:@(\d{1,6}))?", re.ASCII)
_ENGINE = r"(?<!\S){}(?:_FREQ)? (?:(\d{{1,3}}(?:\.\d+)?)%)?(?:@\[?([0-9.,off/NA ]{{1,200}})\]?)?(?!\w)"
_GPU = re.compile(_ENGINE.format("GR3D"), re.ASCII)
_MEM = re.compile(_ENGINE.format("EMC"), re.ASCII)
_TEMPERATURE = re.compile(r"(?<!\S)([A-Za-z][\w-]*)@(-?\d{1,4}(?:\.\d{1,9})?)C(?:/-?[\d.]+C)?(?!\w)", re.ASCII)
_CLOCK = re.compile(r"\d{1,6}(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TegrastatsLine:
    """Content of one line; None or absent if the line does not have it.

    Attributes:
        cpu_mhz: Clock of the fastest core.
        mem_load: Share of memory bandwidth in use, 0 to 1.
        gpu_load: GPU load, 0 to 1.
        gpu_mhz: Clock of the fastest GPU cluster.
        temperatures_c: All temperatures; a sensor that is switched off reports -256.
        rails_w: Present power by rail in watts, not tegrastats' mean.
    """

    cpu_mhz: float | None
    mem_load: float | None
    mem_mhz: float | None
    gpu_load: float | None
    gpu_mhz: float | None
    temperatures_c: Mapping[str, float]
    rails_w: Mapping[str, float]


def parse_line(line: str) -> TegrastatsLine:
    """Parse one line; content that is missing or has an unknown format is left out."""
    mem_load, mem_mhz = _parse_engine(_MEM, line)
    gpu_load, gpu_mhz = _parse_engine(_GPU, line)
    return TegrastatsLine(
        cpu_mhz=_parse_cpu_mhz(line),
        mem_load=mem_load,
        mem_mhz=mem_mhz,
        gpu_load=gpu_load,
        gpu_mhz=gpu_mhz,
        temperatures_c={name: float(text) for name, text in _TEMPERATURE.findall(line)},
        rails_w={name: mw / 1e3 for name, mw in parse_rails_mw(line).items()},
    )


def parse_rails_mw(line: str) -> dict[str, float]:
    """Return the present power by rail in milliwatts; ``NC`` marks a sensor that is not connected."""
    return {name: float(now) for name, now in _RAIL.findall(line) if name != "NC"}


def _parse_cpu_mhz(line: str) -> float | None:
    """Parse the fastest of cores such as ``[2%@1190,off]``; some formats have one clock for all, after the bracket."""
    found = _CORES.search(line)
    if found is None:
        return None
    cores = [core for text in found[1].split(",") if (core := _CORE.fullmatch(text.strip()))]
    return max((float(mhz) for core in cores if (mhz := core[1] or found[2])), default=None)


def _parse_engine(pattern: re.Pattern[str], line: str) -> tuple[float | None, float | None]:
    """Parse load and MHz from ``37%``, ``37%@921``, ``0%@[305,305]``, ``@[1574,off]`` or ``@2133``."""
    found = pattern.search(line)
    if found is None:
        return None, None
    load, clocks = found[1], [float(mhz) for mhz in _CLOCK.findall(found[2] or "")]
    return None if load is None else float(load) / 100, max(clocks, default=None)
