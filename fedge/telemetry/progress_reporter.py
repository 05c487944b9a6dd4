"""Reports a board's progress while it works, rarely enough to cost nothing; a failing report never stops the work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedge.json_reader import MalformedJson
from fedge.telemetry.live_records import LONGEST_ERROR, LONGEST_NAME, ActivityState, BoardProgress
from fedge.telemetry.progress_files import write_progress

REPORT_PERIOD_S = 0.5
"""Seconds between reports: pages are not refreshed faster."""

logger = logging.getLogger(__name__)


class ProgressReporter:
    """Tracks a board's progress and writes it to a folder at most every ``every_s`` seconds.

    Attributes:
        told_s: Unix time of the last report.
    """

    def __init__(
        self,
        folder: Path | None,
        begun: BoardProgress,
        wall_s: Callable[[], float],
        every_s: float = REPORT_PERIOD_S,
        *,
        states_at_once: bool = True,
        last_s: float = float("-inf"),
    ) -> None:
        """Start with a first progress.

        Args:
            folder: Folder of the progress files; None: nothing is written.
            begun: The first progress.
            wall_s: Unix time in seconds.
            every_s: Least seconds between reports.
            states_at_once: Whether changes of state are reported immediately; false for rounds that last milliseconds.
            last_s: Unix time of the board's last report.
        """
        self._folder, self._now, self._wall_s = folder, begun, wall_s
        self._every_s, self._states_at_once = every_s, states_at_once
        self._reported: ActivityState | None = None
        self.told_s = last_s

    def report(self, state: ActivityState | None = None, **changes: Any) -> None:
        """Update the progress and report it if it is due; ``changes`` are fields of ``BoardProgress``."""
        if self._folder is None:
            return
        at_s = self._wall_s()
        self._now = replace(self._now, state=state or self._now.state, at_s=at_s, **changes)
        due = not 0 <= at_s - self.told_s < self._every_s
        if due or (self._states_at_once and self._now.state != self._reported):
            self._write(self._folder)

    def add_steps(self, steps: int) -> None:
        """Count further steps as done."""
        self.report(steps_done=self._now.steps_done + steps)

    def finish(self, state: ActivityState, **changes: Any) -> None:
        """Report the end of the round.

        It is always written if an earlier report of the round was, so that nothing stale remains.
        """
        self.report(state, **changes)
        if self._folder is not None and self._reported not in {None, state}:
            self._write(self._folder)

    def _write(self, folder: Path) -> None:
        self._reported, self.told_s = self._now.state, self._now.at_s
        try:
            write_progress(folder, _make_printable(self._now))
        except (OSError, ValueError, MalformedJson) as error:
            logger.debug("progress cannot be told: %s", error)


def _make_printable(progress: BoardProgress) -> BoardProgress:
    """Return the progress with texts shortened and on one line."""
    limits = {"device": LONGEST_NAME, "run": LONGEST_NAME, "mode": LONGEST_NAME, "error": LONGEST_ERROR}
    texts = {name: getattr(progress, name)[:longest] for name, longest in limits.items()}
    printable: dict[str, Any] = {
        name: "".join(c if c.isprintable() else " " for c in text) for name, text in texts.items()
    }
    return replace(progress, **printable)


SILENT_REPORTER = ProgressReporter(None, BoardProgress("", 0.0, "fetching"), time.time)
"""Writes nothing."""
