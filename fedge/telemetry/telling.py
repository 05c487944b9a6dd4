"""Tells a board's progress while it works, seldom enough to cost nothing; what cannot be told never stops the work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedge.telemetry.live import Progress, State
from fedge.telemetry.progress import LONGEST_ERROR, LONGEST_NAME, tell
from fedge.telemetry.strict import Malformed

EVERY_S = 0.5
"""Chosen by us: a page shows no more."""

logger = logging.getLogger(__name__)


class Teller:
    """Keeps what a board does and tells it in ``folder`` (None: to nobody), at most every ``every_s`` seconds.

    Changes of state are told at once, unless ``states_at_once`` is false: then they wait like everything else, which is
    for rounds that last milliseconds. ``last_s`` is when the board told something last, ``wall_s`` gives unix time.
    """

    def __init__(
        self,
        folder: Path | None,
        begun: Progress,
        wall_s: Callable[[], float],
        every_s: float = EVERY_S,
        *,
        states_at_once: bool = True,
        last_s: float = float("-inf"),
    ) -> None:
        self._folder, self._now, self._wall_s = folder, _printable(begun), wall_s
        self._every_s, self._states_at_once = every_s, states_at_once
        self._told: State | None = None
        """The state that was told last, by this teller."""
        self.told_s = last_s
        """When something was told last, unix time."""

    def say(self, state: State | None = None, **changes: Any) -> None:
        """The board does this now; ``changes`` are fields of ``Progress``."""
        if self._folder is None:
            return
        at_s = self._wall_s()
        self._now = _printable(replace(self._now, state=state or self._now.state, at_s=at_s, **changes))
        due = not 0 <= at_s - self.told_s < self._every_s
        if due or (self._states_at_once and self._now.state != self._told):
            self._tell(self._folder)

    def worked(self, steps: int) -> None:
        """So many more minibatches are done."""
        self.say(steps_done=self._now.steps_done + steps)

    def end(self, state: State, **changes: Any) -> None:
        """The round's last word: told too when anything else was told of the round, so that nothing stale stays."""
        self.say(state, **changes)
        if self._folder is not None and self._told not in {None, state}:
            self._tell(self._folder)

    def _tell(self, folder: Path) -> None:
        self._told, self.told_s = self._now.state, self._now.at_s
        try:
            tell(folder, self._now)
        except (OSError, ValueError, Malformed) as error:
            logger.debug("progress cannot be told: %s", error)


def _printable(progress: Progress) -> Progress:
    """With texts as they may be told: on one line, and not too long."""
    return replace(
        progress,
        device=_short(progress.device, LONGEST_NAME),
        run=_short(progress.run, LONGEST_NAME),
        mode=_short(progress.mode, LONGEST_NAME),
        error=_short(progress.error, LONGEST_ERROR),
    )


def _short(text: str, longest: int) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:longest])
