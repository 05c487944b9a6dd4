"""One holder at a time: who may change the mode now, until when, and how a lease begins and ends."""

import hmac
from typing import NamedTuple, Optional

from fedge.powerd.mode_records import PowerdRefusal

LONGEST_S = 300.0
SLOW_S = 1.0
"""A stretch of work from which on it counts as the daemon's time and not the holder's; chosen by us."""


class PowerdLease(NamedTuple):
    """``token`` is the holder's secret; ``ends_s`` is on the daemon's monotonic clock."""

    name: str
    token: str
    ends_s: float


def remaining_s(lease: PowerdLease, now_s: float) -> float:
    """Seconds until the lease ends, at least 0."""
    return max(0.0, lease.ends_s - now_s)


def has_ended(lease: Optional[PowerdLease], now_s: float) -> bool:
    """Whether there is a lease and its time is over."""
    return lease is not None and now_s >= lease.ends_s


def extend_by_work(lease: PowerdLease, spent_s: float) -> PowerdLease:
    """The lease after the daemon worked on something for so long: while it does, no renewal can be heard.

    Short work moves nothing, so that a flood of requests cannot keep a lease for ever.
    """
    return lease._replace(ends_s=lease.ends_s + spent_s) if spent_s >= SLOW_S else lease


def check_holder(lease: Optional[PowerdLease], token: Optional[str], now_s: float) -> None:
    """Raise ``PowerdRefusal`` unless a change is this one's to make: the holder's, or anybody's while nobody holds."""
    if lease is None:
        if token is not None:
            raise PowerdRefusal("not-holder", "this lease has ended and the state found was put back; hold a new one")
        return
    if token is None:
        raise PowerdRefusal(
            "held", f"{lease.name} holds the board for {remaining_s(lease, now_s):.0f} s more; wait, or ask them"
        )
    if not hmac.compare_digest(token.encode("utf-8", "replace"), lease.token.encode("ascii")):
        text = (
            f"this token is not that of {lease.name}, who holds the board now; hold a new lease when theirs has ended"
        )
        raise PowerdRefusal("not-holder", text)


def begin_or_renew(
    lease: Optional[PowerdLease], name: str, seconds: float, token: Optional[str], new_token: str, now_s: float
) -> Optional[PowerdLease]:
    """The lease after this wish: begun, renewed, or None when given back (0 seconds). Raises ``PowerdRefusal``.

    ``new_token`` is used for a lease that begins. A renewed one keeps its name and token and ends ``seconds`` from now.
    """
    if not 0 <= seconds <= LONGEST_S:
        raise PowerdRefusal(
            "bad-request", f"got seconds={seconds:g}; from 0 (give back) to {LONGEST_S:g}, renewed in time"
        )
    check_holder(lease, token, now_s)
    if lease is None:
        if seconds == 0:
            raise PowerdRefusal("bad-request", "got seconds=0 without a lease to give back; hold one with more seconds")
        return PowerdLease(name, new_token, now_s + seconds)
    return lease._replace(ends_s=now_s + seconds) if seconds > 0 else None
