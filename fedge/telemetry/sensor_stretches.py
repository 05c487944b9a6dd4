"""What a board sees of itself, second by second, also when no run is going: its sensor's samples as stretches."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedge.devices import catalogue
from fedge.devices.board_identity import BoardIdentity, match_board_spec
from fedge.devices.node_settings import NodeSettings
from fedge.errors import FedgeError
from fedge.powerd.device_tree import identify_board
from fedge.powerd.machine import Machine
from fedge.powerd.mode_records import PowerdRefusal
from fedge.protocols import PowerSensor
from fedge.telemetry.board_messages import COLUMN_RANGES, OVERLAP_S, keep_plausible, plausible_or_none
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import read_progress
from fedge.telemetry.trace_operations import shift_trace, trace_from_samples
from fedge.types import EMPTY_TRACE, DeviceSpec, SensorSample, Trace

STRETCH_S = 1.0
MAX_KEPT_SAMPLES = 400
"""Samples that are kept: twenty seconds' at the highest rate. Chosen by us."""
GAP_S = 3.0
"""Without a sample for so long nothing is said of the time between. Chosen by us."""
CLOCK_SET_S = 0.05
"""Unix time that moved by so much against the monotonic clock was set. Chosen by us."""
CLOCK_IS_SET_S = 1_735_689_600.0
"""2025-01-01: a board without a battery starts in an earlier year, and its stretches would be nowhere."""
SHOW_END_S = 60.0
"""So long a round's end is told; then the board is idle. Chosen by us."""
STALE_S = 900.0
"""Whoever works and has not told anything for so long is gone: longer than any stretch of work. Chosen by us."""

logger = logging.getLogger(__name__)


class BufferedSensor:
    """A ``PowerSensor`` in front of another, which keeps what was read of late."""

    def __init__(self, sensor: PowerSensor) -> None:
        self._sensor = sensor
        self._turn = threading.Lock()
        self._samples: deque[SensorSample] = deque(maxlen=MAX_KEPT_SAMPLES)
        self.interval_s = float(getattr(sensor, "interval_s", 0.0))

    @property
    def total_power(self) -> str:
        return self._sensor.total_power

    def read(self) -> SensorSample:
        """One look; raises ``SensorLost``."""
        sample = self._sensor.read()
        with self._turn:
            if not self._samples or sample.at_s > self._samples[-1].at_s:
                self._samples.append(sample)
        return sample

    def samples(self) -> list[SensorSample]:
        """The oldest first."""
        with self._turn:
            return list(self._samples)


class SensorStretches:
    """Cuts samples into stretches of a second, dated in unix time; asked again and again, each is given once.

    ``now_s`` is the sensor's clock, ``wall_s`` unix time. A clock that was set back gives nothing until it is past what
    was given before: no time is told twice.
    """

    def __init__(self, now_s: Callable[[], float], wall_s: Callable[[], float]) -> None:
        self._now_s, self._wall_s = now_s, wall_s
        self._from_s = now_s()
        """The end of what was given, on the sensor's clock."""
        self._ahead_s = wall_s() - now_s()
        self._told_s = 0.0
        """The end of what was given, unix time."""
        self.lost = 0
        """Stretches that cannot be dated."""

    def take_new(self, samples: list[SensorSample]) -> Trace:
        """The whole seconds that are over since the last call, as far as a sample tells of them."""
        whole = int((samples[-1].at_s - self._from_s) // STRETCH_S) if samples else 0
        if whole < 1:
            return EMPTY_TRACE
        first = max(0, bisect_left(samples, self._from_s, key=lambda sample: sample.at_s) - 1)
        start_s, self._from_s = self._from_s, self._from_s + whole * STRETCH_S
        trace = keep_plausible(
            trace_from_samples(samples[first:], start_s=start_s, end_s=self._from_s, period_s=STRETCH_S, gap_s=GAP_S)
        )
        return self._date_trace(trace)

    def _date_trace(self, trace: Trace) -> Trace:
        ahead_s = self._wall_s() - self._now_s()
        if abs(ahead_s - self._ahead_s) > CLOCK_SET_S:
            self._ahead_s = ahead_s
        dated = shift_trace(trace, self._ahead_s)
        if not dated:
            return EMPTY_TRACE
        if dated.start_s[0] < max(self._told_s - OVERLAP_S, CLOCK_IS_SET_S):
            self.lost += len(dated)
            return EMPTY_TRACE
        self._told_s = dated.start_s[-1] + dated.span_s[-1]
        return dated


def describe_progress(
    said: BoardProgress | None, board: str, device: str, sample: SensorSample | None, now_s: float
) -> BoardProgress:
    """What the board does now: what a run told, while that holds, with the sensor's newest figures; else it is idle."""
    idle = BoardProgress(board, now_s, "idle", device)
    limit_s = SHOW_END_S if said is not None and said.state in {"done", "failed"} else STALE_S
    base = idle if said is None or not 0 <= now_s - said.at_s <= limit_s else replace(said, at_s=now_s, device=device)
    if sample is None:
        return replace(base, power_w=None, temperature_c=None)
    return replace(
        base,
        power_w=plausible_or_none(sample.total_w, COLUMN_RANGES["power_w"]),
        temperature_c=plausible_or_none(sample.hottest_c, COLUMN_RANGES["temperature_c"]),
    )


def read_local_progress(folder: Path, board: str) -> BoardProgress | None:
    """What a run on this board told last."""
    return read_progress(folder).get(board)


def find_board_spec(settings: NodeSettings) -> DeviceSpec | None:
    """The catalogue's entry of this board, found without its daemon; None where nobody knows it."""
    try:
        if settings.device is not None:
            return catalogue.find(settings.device, where="device")
        said = identify_board(Machine(settings.root))
        identity = BoardIdentity(said.model, tuple(said.compatible), said.l4t)
        return match_board_spec(identity, (), catalogue.load_catalogue())
    except (FedgeError, PowerdRefusal, OSError) as error:
        logger.warning("the board's kind is not known: %s", error)
        return None
