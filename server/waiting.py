"""How long the server waits for real boards: their own time, and an allowance learnt from earlier replies; pure."""

from __future__ import annotations

from collections.abc import Sequence

START_ALLOWANCE_S = 60.0
"""Before any reply has shown what comes on top of a board's work: a slow board starts a process for every message."""
LEAST_ALLOWANCE_S = 15.0
"""Flower polls on both sides, so that even a quick board's reply may take so long."""
FACTOR = 1.5
"""So many times what was seen is allowed, since the next message may take longer."""
REMEMBERED = 100
"""What the newest so many replies took counts, so that one bad moment is forgotten. All four are chosen by us."""


def allowance_s(overheads_s: Sequence[float]) -> float:
    """What to allow on top of a board's work, from what the newest replies took on top of theirs, oldest first."""
    seen = overheads_s[-REMEMBERED:]
    return max(LEAST_ALLOWANCE_S, FACTOR * max(seen)) if seen else START_ALLOWANCE_S


def wait_s(timeout_s: float, within_s: float | None, overheads_s: Sequence[float]) -> float:
    """Real seconds to wait for a reply that counts for ``within_s`` of its board's work (None: always)."""
    return timeout_s if within_s is None else min(timeout_s, within_s + allowance_s(overheads_s))
