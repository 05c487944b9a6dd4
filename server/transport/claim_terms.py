"""Terms on which a run holds its boards: the run's name, and for how long a request claims a board."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from server.transport.client_port import OutgoingRequest

MIN_CLAIM_S = 120.0
"""Shortest claim in seconds. A default: boards of a run that died are blocked for this long."""
CLAIM_FACTOR = 3.0
"""Claim length in multiples of the expected round length, since a board may be left out of one."""
INITIAL_CLAIM_S = 300.0
"""Claim length in seconds before the length of a round is known."""
CLAIM_MARGIN_S = 60.0
"""Seconds by which a claim may exceed the reply timeout. A default that covers the time between two requests."""


def claim_duration_s(round_s: float | None, planned_s: float | None, timeout_s: float) -> float:
    """Return the seconds for which a board stays claimed after its reply.

    Claims are short because only their expiry frees the boards of a run that was killed.

    Args:
        round_s: Length of the last round in seconds of wall time; None before the first.
        planned_s: Planned length of this round in seconds; None without a deadline.
        timeout_s: Seconds that the server waits for a reply.
    """
    known_s = max((each for each in (round_s, planned_s) if each is not None), default=None)
    wanted_s = INITIAL_CLAIM_S if known_s is None else max(MIN_CLAIM_S, CLAIM_FACTOR * known_s)
    return min(wanted_s, timeout_s + CLAIM_MARGIN_S)


@dataclass(slots=True, eq=False)
class ClaimTerms:
    """Claim of one run. Mutable: it measures the wall time of rounds.

    Attributes:
        is_over: Returns True if the run with a name is known to be over, so that its boards may be taken over.
    """

    run: str
    timeout_s: float = 600.0
    is_over: Callable[[str], bool] = lambda _run: False
    _began_s: float | None = None
    _round_s: float | None = None

    def begin_round(self, now_s: float) -> None:
        """Record that clients are asked to train at wall time ``now_s``."""
        if self._began_s is not None:
            self._round_s = now_s - self._began_s
        self._began_s = now_s

    def add_to_request(self, question: OutgoingRequest) -> OutgoingRequest:
        """Return the request with the name of the run and the length of the claim; one in another run's name stays."""
        if question.ask.run:
            return question
        goal = question.ask.goal
        claim_s = claim_duration_s(self._round_s, None if goal is None else goal.deadline_s, self.timeout_s)
        return dataclasses.replace(question, ask=dataclasses.replace(question.ask, run=self.run, claim_s=claim_s))
