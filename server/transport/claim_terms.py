"""In whose name real boards are asked, and for how long after an answer each is kept for that run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from server.transport.client_port import OutgoingRequest

MIN_CLAIM_S = 120.0
"""So long at least; a run that died lets go of its boards after that."""
CLAIM_FACTOR = 3.0
"""So many times as long as a round is expected to take, since a board may be left out of one."""
INITIAL_CLAIM_S = 300.0
"""As long as nothing tells how long a round takes."""
CLAIM_MARGIN_S = 60.0
"""So much longer than the server waits for a reply, and no longer. All four are chosen by us."""


def claim_duration_s(round_s: float | None, planned_s: float | None, timeout_s: float) -> float:
    """For how long a board is kept after its answer, by the last round's length, this one's plan and a reply's limit.

    Nobody but the board itself can end the claim of a run that was stopped from outside, so it is short.
    """
    known_s = max((each for each in (round_s, planned_s) if each is not None), default=None)
    wanted_s = INITIAL_CLAIM_S if known_s is None else max(MIN_CLAIM_S, CLAIM_FACTOR * known_s)
    return min(wanted_s, timeout_s + CLAIM_MARGIN_S)


@dataclass(slots=True, eq=False)
class ClaimTerms:
    """The name of a run, kept when it is resumed, and how long its last round took in real time; mutable."""

    run: str
    timeout_s: float = 600.0
    _began_s: float | None = None
    _round_s: float | None = None

    def begin_round(self, now_s: float) -> None:
        """Boards are asked to train from now on."""
        if self._began_s is not None:
            self._round_s = now_s - self._began_s
        self._began_s = now_s

    def add_to_request(self, question: OutgoingRequest) -> OutgoingRequest:
        """The question with the run in whose name it is asked."""
        goal = question.ask.goal
        claim_s = claim_duration_s(self._round_s, None if goal is None else goal.deadline_s, self.timeout_s)
        return dataclasses.replace(question, ask=dataclasses.replace(question.ask, run=self.run, claim_s=claim_s))
