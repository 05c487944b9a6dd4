"""Sign of life of commands on standard error: the phase as it begins, and how long it takes."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from experiments.cli.command_output import write_if_heard
from fedge import phases

FIRST_S, LATER_S, LONG_S = 2.0, 10.0, 30.0
"""Longest silence in the first ``LATER_FROM_S`` of an announced phase, up to ``LONG_FROM_S``, and after that: a reader
who waits sees in the first minute at least every three seconds that work goes on, and the log of an hour stays short.
Between lines of the command's own that keep coming it may be up to ``LATER_S``. A terminal's line is replaced.
"""
LATER_FROM_S, LONG_FROM_S = 60.0, 300.0
PAUSES = 2
"""Successive pauses from which on the command's own lines, such as those of rounds, count as signs of life."""
PAUSE_MARGIN = 1.5
"""Longest silence after such a line, as a multiple of the longest of these pauses, up to ``LATER_S``."""
START_UP_S = 1.5
"""What Python and its imports take before the first sign of life can be given, where /proc does not say it."""
MAX_START_UP_S = 10.0
"""Age of a process from which on it must have done other things than to start."""
TICK_S = 0.25
SPINNER_AFTER_S = 1.0
CLEAR_LINE = "\r\x1b[2K"


class Heartbeat:
    """Writes a line whenever nothing has been written for too long; on a terminal, one line that is replaced.

    Args:
        name: The phase until another begins, such as the command's name.
        age_s: Seconds of silence before.
    """

    def __init__(self, name: str, stream: TextIO, age_s: float = START_UP_S) -> None:
        self._phase, self.stream = name, stream
        self._started_s = self._announced_s = time.monotonic()
        self._written_s = self._started_s - age_s
        self._output_s: float | None = None
        self._pauses_s: deque[float] = deque(maxlen=PAUSES)
        self._shown = False
        self._lock = threading.RLock()

    def begin(self, name: str, *, announce: bool) -> None:
        """Name the phase that begins; one that is announced stands in a log as it begins.

        Only an announced phase makes the log dense again: rounds of seconds each would keep it so for hours.
        """
        with self._lock:
            if name != self._phase:
                self._phase, self._started_s = name, time.monotonic()
            if announce:
                self._announced_s = time.monotonic()
                self._output_s = None
                self._pauses_s.clear()
                if not self.stream.isatty():
                    self._write_line(f"fedge: {name}\n")

    def note_output(self) -> None:
        """Note that the command itself writes: the line of a terminal is removed before."""
        with self._lock:
            self._written_s = time.monotonic()
            if self._output_s is not None and self._written_s - self._output_s > FIRST_S:
                self._pauses_s.append(self._written_s - self._output_s)
            self._output_s = self._written_s
            if self._shown:
                self._shown = False
                write_if_heard(self.stream, CLEAR_LINE)

    def tick(self) -> None:
        """Write the phase if nothing has been written for too long; nothing while no phase is under way."""
        with self._lock:
            if not self._phase:
                return
            now_s = time.monotonic()
            elapsed_s, silent_s = now_s - self._started_s, now_s - self._written_s
            text = f"fedge: {self._phase}, {elapsed_s:.0f} s"
            if self.stream.isatty():
                if self._shown or silent_s >= SPINNER_AFTER_S:
                    self._shown = True
                    write_if_heard(self.stream, f"{CLEAR_LINE}{text[: shutil.get_terminal_size().columns - 1]}")
            elif silent_s >= max(_longest_silence_s(now_s - self._announced_s), self._expected_pause_s()):
                self._write_line(f"{text}\n")

    def _expected_pause_s(self) -> float:
        """Return how long to wait for the command's own next line where its lines keep coming, in seconds."""
        if self._written_s != self._output_s or len(self._pauses_s) < PAUSES:
            return 0.0
        return min(LATER_S, PAUSE_MARGIN * max(self._pauses_s))

    def _write_line(self, text: str) -> None:
        write_if_heard(self.stream, text)
        self._written_s = time.monotonic()


def _start_up_s() -> float:
    """Return how long this process has been starting, in seconds: it takes several if the machine is busy."""
    try:
        began_ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return START_UP_S
    return age_s if age_s < MAX_START_UP_S else START_UP_S


def _longest_silence_s(elapsed_s: float) -> float:
    return FIRST_S if elapsed_s < LATER_FROM_S else LATER_S if elapsed_s < LONG_FROM_S else LONG_S


class _NotedStream:
    """A standard stream that tells the heartbeat about every write; standard error stays usable without a reader."""

    def __init__(self, stream: TextIO, heartbeat: Heartbeat) -> None:
        self._stream, self._heartbeat, self._owner = stream, heartbeat, os.getpid()

    def write(self, text: str) -> int:
        if os.getpid() == self._owner:  # a forked child has no heartbeat, and its lock may be held for good
            self._heartbeat.note_output()
        if self._stream is not self._heartbeat.stream:
            return self._stream.write(text)
        write_if_heard(self._stream, text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def show_signs_of_life(name: str) -> Iterator[None]:
    """Keep standard error from falling silent inside the block; ``name`` is the first phase."""
    out, err = sys.stdout, sys.stderr
    heartbeat, ended = Heartbeat(name, err, _start_up_s()), threading.Event()

    def beat() -> None:
        while not ended.wait(TICK_S):
            heartbeat.tick()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    sys.stdout, sys.stderr = _NotedStream(out, heartbeat), _NotedStream(err, heartbeat)
    phases.add_listener(heartbeat.begin)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        phases.remove_listener(heartbeat.begin)
        heartbeat.note_output()
        sys.stdout, sys.stderr = out, err
