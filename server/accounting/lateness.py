"""Who counts in a round: done, late, cancelled or failed, by the fleet's clock and never by arrival; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedge.experiment import LateReplySpec
from fedge.telemetry.store_records import Status


@dataclass(frozen=True, slots=True)
class Completion:
    """When a board's part is over, seconds from the round's start: its reply is there, or it failed with ``error``.

    Infinity for a real board that was cut off before it was done.
    """

    at_s: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RoundVerdict:
    """How long a round lasted, and what became of every board in it."""

    round_s: float
    status: Mapping[str, Status]


def compute_cutoff_s(late: LateReplySpec, deadline_s: float | None) -> float | None:
    """Seconds after which a round goes on without the boards that are not done; None when it waits for them."""
    waits = late.action in ("accept", "partial")
    return None if deadline_s is None or waits else deadline_with_grace_s(late, deadline_s)


@dataclass(frozen=True, slots=True)
class RealCutoff:
    """For real boards, seconds of their work; None: for ever.

    After ``within_s`` a round goes on without a board, after ``cancel_s`` the board ends its work by itself, since no
    message reaches it meanwhile. Once ``wanted`` boards replied that were done within ``counts_s`` it goes on, too.
    """

    within_s: float | None = None
    cancel_s: float | None = None
    wanted: int | None = None
    counts_s: float | None = None


NO_CUTOFF = RealCutoff()


def compute_real_cutoff(late: LateReplySpec, deadline_s: float | None, wanted: int | None) -> RealCutoff:
    """When real boards that are not done are given up; ``wanted`` replies are enough where more boards are asked."""
    counts_s = compute_cutoff_s(late, deadline_s)
    if deadline_s is None or late.action == "partial" or (late.action == "accept" and wanted is None):
        return RealCutoff(None, None, wanted, counts_s)
    stop_s = deadline_with_grace_s(late, deadline_s)
    return RealCutoff(stop_s, None if late.action == "discount" else stop_s, wanted, counts_s)


def has_enough_replies(cut: RealCutoff, replied_s: Iterable[float]) -> bool:
    """Whether a round of real boards can go on once some have replied, each so long after the round's start."""
    latest_s = math.inf if cut.counts_s is None else cut.counts_s
    return cut.wanted is not None and sum(at_s <= latest_s for at_s in replied_s) >= cut.wanted


def deadline_with_grace_s(late: LateReplySpec, deadline_s: float) -> float:
    """The deadline with its grace."""
    return deadline_s * (1 + late.grace)


def classify_clients(
    endings: Mapping[str, Completion], cut_s: float | None, wanted: int | None, empty_s: float
) -> RoundVerdict:
    """What became of each board.

    With ``wanted`` the first so many replies count, by their time and then by name, and the round is over with the last
    of them: boards that are still at it are cancelled. Otherwise it lasts until every board has replied or failed, at
    most until ``cut_s``: boards that are not done by then are late. ``empty_s`` is the length of a round of no board,
    and the least of one in which a board was cut off.
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
    if len(in_time) < len(in_order):  # cut off, though nothing but the deadline says when
        round_s = max(round_s, empty_s)
    return RoundVerdict(round_s, {b: _classify_client(b in counted, endings[b], round_s, "late") for b in in_order})


def _classify_client(counted: bool, ending: Completion, round_s: float, otherwise: Status) -> Status:
    if counted:
        return "done"
    return "failed" if ending.error is not None and ending.at_s <= round_s else otherwise
