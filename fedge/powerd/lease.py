"""Leases: who alone may change the mode, until when, and how a lease begins and ends."""

import hmac
from typing import NamedTuple, Optional

from fedge.powerd.mode_records import PowerdRefusal

LONGEST_S = 300.0
SLOW_S = 1.0
"""Work of at least this many seconds extends the lease; shorter work must not, or a flood of requests could keep it
alive.
"""


class PowerdLease(NamedTuple):
    """A lease.

    Attributes:
        name: Name of the holder.
        token: The holder's secret.
        ends_s: When it ends, on the daemon's monotonic clock.
    """

    name: str
    token: str
    ends_s: float


def remaining_s(lease: PowerdLease, now_s: float) -> float:
    """Return the seconds until the lease ends, at least 0."""
    return max(0.0, lease.ends_s - now_s)


def extend_by_work(lease: PowerdLease, spent_s: float) -> PowerdLease:
    """Extend the lease by the time that the daemon was busy and could not receive a renewal."""
    return lease._replace(ends_s=lease.ends_s + spent_s) if spent_s >= SLOW_S else lease


def check_holder(lease: Optional[PowerdLease], token: Optional[str], now_s: float) -> None:
    """Check that a change is permitted: the holder's, or anybody's while there is no lease.

    Raises:
        PowerdRefusal: Of kind not-holder or held.
    """
    if lease is None:
        if token is not None:
            raise PowerdRefusal("not-holder", "this lease has ended and the state found was put back; hold a new one")
        return
    if token is None:
        text = f"{lease.name} holds the board for {remaining_s(lease, now_s):.0f} s more; wait, or ask them"
        raise PowerdRefusal("held", text)
    if not hmac.compare_digest(token.encode("utf-8", "replace"), lease.token.encode("ascii")):
        text = f"this token is not that of {lease.name}, who holds the board now"
        raise PowerdRefusal("not-holder", f"{text}; hold a new lease when theirs has ended")


def begin_or_renew(
    lease: Optional[PowerdLease], name: str, seconds: float, token: Optional[str], new_token: str, now_s: float
) -> Optional[PowerdLease]:
    """Begin, renew or end a lease.

    ``seconds`` count from now, at most ``LONGEST_S``; 0 gives the lease back. ``token`` is the holder's, None to begin
    a lease, which gets ``new_token``; a renewed one keeps its name and token.

    Returns:
        The lease, or None if it was given back.

    Raises:
        PowerdRefusal: Of kind bad-request, not-holder or held.
    """
    if not 0 <= seconds <= LONGEST_S:
        text = f"got seconds={seconds:g}; from 0 (give back) to {LONGEST_S:g}, renewed in time"
        raise PowerdRefusal("bad-request", text)
    check_holder(lease, token, now_s)
    if lease is None:
        if seconds == 0:
            raise PowerdRefusal("bad-request", "got seconds=0 without a lease to give back; hold one with more seconds")
        return PowerdLease(name, new_token, now_s + seconds)
    return lease._replace(ends_s=now_s + seconds) if seconds > 0 else None
