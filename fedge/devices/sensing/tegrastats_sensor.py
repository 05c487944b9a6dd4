"""tegrastats as a power sensor: runs the program in the background and uses its newest line."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from fedge.child_processes import end_process
from fedge.devices.sensing.latest_sample import FIRST_SAMPLE_LIMIT_S, LatestSample
from fedge.devices.sensing.power_formula import choose_total_formula, require_total_w
from fedge.devices.sensing.sysfs_readings import keep_plausible_temperatures
from fedge.devices.sensing.tegrastats_line import TegrastatsLine, parse_line
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
