"""One holder at a time: who may change the mode now, until when, and how a lease begins and ends."""

import hmac
from typing import NamedTuple, Optional

from fedge.powerd.mode import Refused

LONGEST_S = 300.0
SLOW_S = 1.0
"""A stretch of work from which on it counts as the daemon's time and not the holder's; chosen by us."""


class Lease(NamedTuple):
    """``token`` is the holder's secret; ``ends_s`` is on the daemon's monotonic clock."""

    name: str
    token: str
    ends_s: float


def left_s(lease: Lease, now_s: float) -> float:
    """Seconds until the lease ends, at least 0."""
    return max(0.0, lease.ends_s - now_s)


def ended(lease: Optional[Lease], now_s: float) -> bool:
    """Whether there is a lease and its time is over."""
    return lease is not None and now_s >= lease.ends_s


def moved_on(lease: Lease, spent_s: float) -> Lease:
    """The lease after the daemon worked on something for so long: while it does, no renewal can be heard.

    Short work moves nothing, so that a flood of requests cannot keep a lease for ever.
    """
    return lease._replace(ends_s=lease.ends_s + spent_s) if spent_s >= SLOW_S else lease


def allow(lease: Optional[Lease], token: Optional[str], now_s: float) -> None:
    """Raise ``Refused`` unless a change is this one's to make: the holder's, or anybody's while nobody holds."""
    if lease is None:
        if token is not None:
            raise Refused("not-holder", "this lease has ended and the state found was put back; hold a new one")
        return
    if token is None:
        raise Refused("held", f"{lease.name} holds the board for {left_s(lease, now_s):.0f} s more; wait, or ask them")
    if not hmac.compare_digest(token.encode("utf-8", "replace"), lease.token.encode("ascii")):
        text = (
            f"this token is not that of {lease.name}, who holds the board now; hold a new lease when theirs has ended"
        )
        raise Refused("not-holder", text)


def hold(
    lease: Optional[Lease], name: str, seconds: float, token: Optional[str], new_token: str, now_s: float
) -> Optional[Lease]:
    """The lease after this wish: begun, renewed, or None when given back (0 seconds). Raises ``Refused``.

    ``new_token`` is used for a lease that begins. A renewed one keeps its name and token and ends ``seconds`` from now.
    """
    if not 0 <= seconds <= LONGEST_S:
        raise Refused("bad-request", f"got seconds={seconds:g}; from 0 (give back) to {LONGEST_S:g}, renewed in time")
    allow(lease, token, now_s)
    if lease is None:
        if seconds == 0:
            raise Refused("bad-request", "got seconds=0 without a lease to give back; hold one with more seconds")
        return Lease(name, new_token, now_s + seconds)
    return lease._replace(ends_s=now_s + seconds) if seconds > 0 else None
