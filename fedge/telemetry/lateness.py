"""Classification of the clients of a round as done, late, cancelled or failed, by simulated time, not arrival. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedge.experiment import LateReplySpec
from fedge.telemetry.store_records import Status


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a client's part in a round.

    Attributes:
        at_s: Seconds from the start of the round; infinity for a real board that was cut off before it was done.
        flat: True if its battery is empty then.
    """

    at_s: float
    error: str | None = None
    flat: bool = False


@dataclass(frozen=True, slots=True)
class RoundVerdict:
    """The length of a round in seconds, and the status of every client in it."""

    round_s: float
    status: Mapping[str, Status]


def compute_cutoff_s(late: LateReplySpec, deadline_s: float | None) -> float | None:
    """Return the seconds after which a round continues without unfinished clients, or None if it waits for all."""
    waits = late.action in ("accept", "partial")
    return None if deadline_s is None or waits else deadline_with_grace_s(late, deadline_s)


@dataclass(frozen=True, slots=True)
class RealCutoff:
    """Limits on real boards, which cannot be interrupted by a message while they work; None means no limit.

    Attributes:
        within_s: Seconds after which a round continues without a client.
        cancel_s: Seconds after which the client stops its own work.
        wanted: Number of replies after which the round continues.
        counts_s: Only replies that were ready within this many seconds count towards ``wanted``.
    """

    within_s: float | None = None
    cancel_s: float | None = None
    wanted: int | None = None
    counts_s: float | None = None


NO_CUTOFF = RealCutoff()


def compute_real_cutoff(late: LateReplySpec, deadline_s: float | None, wanted: int | None) -> RealCutoff:
    """Return when a round of real boards continues without unfinished clients."""
    counts_s = compute_cutoff_s(late, deadline_s)
    if deadline_s is None or late.action == "partial" or (late.action == "accept" and wanted is None):
        return RealCutoff(None, None, wanted, counts_s)
    stop_s = deadline_with_grace_s(late, deadline_s)
    return RealCutoff(stop_s, None if late.action == "discount" else stop_s, wanted, counts_s)


def has_enough_replies(cut: RealCutoff, replied_s: Iterable[float]) -> bool:
    """Return True if a round of real boards can continue.

    ``replied_s`` are the times at which the replies were ready, in seconds from the start of the round.
    """
    latest_s = math.inf if cut.counts_s is None else cut.counts_s
    return cut.wanted is not None and sum(at_s <= latest_s for at_s in replied_s) >= cut.wanted


def deadline_with_grace_s(late: LateReplySpec, deadline_s: float) -> float:
    """Return the deadline extended by the grace period, in seconds."""
    return deadline_s * (1 + late.grace)


def classify_clients(
    endings: Mapping[str, Completion], cut_s: float | None, wanted: int | None, empty_s: float
) -> RoundVerdict:
    """Assign a status to every client of a round and determine its length.

    With ``wanted``, the first so many replies count, ordered by time and then by name, and the round ends with the last
    of them; unfinished clients are cancelled. Otherwise the round lasts until every client has replied or failed, but
    at most ``cut_s``; clients that are not done by then are late.

    Args:
        endings: End of each client's part, by client name.
        cut_s: Seconds after which the round continues without unfinished clients, or None.
        wanted: Number of replies that are enough, or None.
        empty_s: Length in seconds of a round without clients, and the least length of one in which a client was cut
            off.
    """
    in_order = sorted(endings, key=lambda board: (endings[board].at_s, board))
    latest_s = math.inf if cut_s is None else cut_s
    in_time = [b for b in in_order if endings[b].at_s <= latest_s and math.isfinite(endings[b].at_s)]
    counted = [b for b in in_time if endings[b].error is None][:wanted]
    if wanted is not None and len(counted) == wanted:
        round_s = endings[counted[-1]].at_s
        return RoundVerdict(
            round_s, {b: _classify_client(b in counted, endings[b], round_s, "cancelled") for b in in_order}
        )
    if cut_s is not None and len(in_time) < len(in_order):
        return RoundVerdict(cut_s, {b: _classify_client(b in counted, endings[b], cut_s, "late") for b in in_order})
    round_s = max((endings[b].at_s for b in in_time), default=empty_s)
    if len(in_time) < len(in_order):
        # A real board was cut off although the round has no cutoff: the round lasts at least until the deadline.
        round_s = max(round_s, empty_s)
    return RoundVerdict(round_s, {b: _classify_client(b in counted, endings[b], round_s, "late") for b in in_order})


def _classify_client(counted: bool, ending: Completion, round_s: float, otherwise: Status) -> Status:
    if counted:
        return "done"
    return "failed" if ending.error is not None and ending.at_s <= round_s else otherwise
