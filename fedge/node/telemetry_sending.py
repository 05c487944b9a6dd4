"""A board's sender: brings the outbox to the server, the oldest first, with longer and longer pauses while it cannot.

Batches go strictly in the order in which they were seen. Live figures do not wait behind a backlog all the same: every
message, however old its stretches, carries what the board does at this moment, its power and its temperature included.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from fedge.node.telemetry_link import Link
from fedge.node.telemetry_outbox import Outbox
from fedge.telemetry.batch import to_bytes
from fedge.telemetry.live import Progress

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
JITTER = 0.5
"""A pause is from this share of it up to all of it, so that a fleet does not come back in one moment. Chosen by us."""
DRAIN_S = 0.25
"""Between two messages of a backlog: two minutes' worth each, so a day takes three minutes. Chosen by us."""
BEAT_S = 1.0
"""A board without a sensor says so often what it does."""

logger = logging.getLogger(__name__)


def pause_s(failures: int, random: float) -> float:
    """Seconds until the next try after so many failures in a row; ``random`` is from 0 to 1."""
    whole_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))
    return max(FIRST_PAUSE_S, whole_s * (JITTER + (1 - JITTER) * random))


class Sender:
    """Sends until it is told to stop; ``run`` is a thread's work.

    ``progress`` gives what the board does now, ``wait`` waits for so many seconds or until ``stop`` (then: True).
    """

    def __init__(
        self,
        outbox: Outbox,
        link: Link,
        progress: Callable[[], Progress],
        wall_s: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._outbox, self._link, self._progress = outbox, link, progress
        self._wall_s, self._random = wall_s, random
        self._stop, self._more = threading.Event(), threading.Event()

    def more(self) -> None:
        """There is something new to send."""
        self._more.set()

    def stop(self) -> None:
        """End; a message under way is still waited for."""
        self._stop.set()
        self._more.set()

    def run(self) -> None:
        """Send what there is, again and again."""
        failures = 0
        while not self._stop.is_set():
            failures = 0 if self.sent() else failures + 1
            if failures:
                self._stop.wait(pause_s(failures, self._random()))
            elif self._outbox.backlog:
                self._stop.wait(DRAIN_S)
            else:
                self._more.wait(BEAT_S)
                self._more.clear()
        self._link.close()

    def sent(self) -> bool:
        """Send one message; False when it has to be sent again."""
        found = self._outbox.oldest(self._wall_s(), anyway=True)
        assert found is not None
        number, batch = found
        try:
            message = to_bytes(replace(batch, progress=self._progress(), lost=self._outbox.lost))
            outcome = self._link.post(message)
        except Exception:  # the thread's edge: whatever it is, it must not end the sending
            logger.exception("a message could not be sent")
            outcome = "again"
        if outcome == "again":
            return False
        if outcome == "refused":
            logger.warning("the server refused %d s of samples: they are lost", len(batch.trace))
            self._outbox.lose(len(batch.trace))
        self._outbox.done(number)
        return True
