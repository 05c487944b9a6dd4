"""A board's sensor samples as stretches of one second, also between runs."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedge.devices import catalogue
from fedge.devices.board_identity import BoardIdentity, match_board_spec
from fedge.devices.node_settings import NodeSettings
from fedge.errors import FedgeError
from fedge.powerd.board_control import identify_board
from fedge.powerd.machine import Machine
from fedge.powerd.mode_records import PowerdRefusal
from fedge.telemetry.board_messages import keep_plausible, plausible_or_none
from fedge.telemetry.live_records import COLUMN_RANGES, OVERLAP_S, BoardProgress
from fedge.telemetry.trace_operations import shift_trace, trace_from_samples
from fedge.types import EMPTY_TRACE, DeviceSpec, SensorSample, Trace

STRETCH_S = 1.0
GAP_S = 3.0
"""Longest interval between samples that is interpolated, in seconds; a longer one leaves a gap in the trace."""
CLOCK_SET_S = 0.05
"""Shift of unix time against the monotonic clock, in seconds, that counts as the clock being set."""
CLOCK_IS_SET_S = 1_735_689_600.0
"""2025-01-01: a board without a clock battery starts in an earlier year, where its stretches would be misplaced."""
SHOW_END_S = 60.0
"""Seconds for which a round's end is reported before the board counts as idle."""
STALE_S = 900.0
"""Seconds without a report after which a run counts as gone: longer than any single part of its work."""

logger = logging.getLogger(__name__)


class SensorStretches:
    """Cuts samples into stretches of one second in unix time; successive calls return each stretch once.

    After the wall clock was set back, nothing is returned until it passes the last returned stretch, so that no time is
    reported twice.

    Attributes:
        lost: Number of stretches that could not be dated.
    """

    def __init__(self, now_s: Callable[[], float], wall_s: Callable[[], float]) -> None:
        """Start at the present time.

        Args:
            now_s: The sensor's clock in seconds.
            wall_s: Unix time in seconds.
        """
        self._now_s, self._wall_s = now_s, wall_s
        self._from_s = now_s()
        """End of what was returned, on the sensor's clock."""
        self._ahead_s = wall_s() - now_s()
        self._until_s = 0.0
        """End of what was returned, unix time."""
        self.lost = 0

    def take_new(self, samples: Sequence[SensorSample]) -> Trace:
        """Return the whole seconds since the last call, as far as samples cover them."""
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
        if dated.start_s[0] < max(self._until_s - OVERLAP_S, CLOCK_IS_SET_S):
            self.lost += len(dated)
            return EMPTY_TRACE
        self._until_s = dated.start_s[-1] + dated.span_s[-1]
        return dated


def describe_progress(
    report: BoardProgress | None, board: str, device: str, sample: SensorSample | None, now_s: float
) -> BoardProgress:
    """Combine a run's last report, while it is recent, with the sensor's newest values; otherwise the board is idle."""
    idle = BoardProgress(board, now_s, "idle", device)
    limit_s = SHOW_END_S if report is not None and report.state in {"done", "failed"} else STALE_S
    base = (
        idle
        if report is None or not 0 <= now_s - report.at_s <= limit_s
        else replace(report, at_s=now_s, device=device)
    )
    if sample is None:
        return replace(base, power_w=None, temperature_c=None)
    return replace(
        base,
        power_w=plausible_or_none(sample.total_w, COLUMN_RANGES["power_w"]),
        temperature_c=plausible_or_none(sample.hottest_c, COLUMN_RANGES["temperature_c"]),
    )


def find_board_spec(settings: NodeSettings) -> DeviceSpec | None:
    """Return the catalogue's entry of this board, found without its daemon; None if it is unknown."""
    try:
        if settings.device is not None:
            return catalogue.find(settings.device, where="device")
        tree = identify_board(Machine(settings.root))
        identity = BoardIdentity(tree.model, tuple(tree.compatible), tree.l4t)
        return match_board_spec(identity, (), catalogue.load_catalogue())
    except (FedgeError, PowerdRefusal, OSError) as error:
        logger.warning("the board's kind is not known: %s", error)
        return None
