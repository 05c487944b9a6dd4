"""The clients of a round in columns: when each ends, whose reply counts, and what each has spent. Pure functions.

The one set of rules for rounds of reports (``settlement``), asynchronous tasks, evaluations by clients, and the studies
that simulate whole fleets in columns. A single client is a column of one.

Symbols of a client, seconds after the round's start: download d, work w of consecutive parts w_k at p_k watts, upload
u, b = d + w + u; radio r joules above the idle power i for both transfers. It is away from a on and its battery is
empty from f on. It ends at e = min(b, a, f), with an error unless e = b. Of what it has done by t, w' seconds are work
and d' and u' transfers; its energy in a round that lasts until t is, at most what its battery can give,

    sum_k w'_k p_k + r (d' + u') / (d + u) + i (t - w').
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.devices.battery import Batteries
from fedge.experiment import LateReplySpec
from fedge.telemetry.store_records import Status
from fedge.types import EvaluationReport, Floats, Measurement, RoundReport

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class WorkColumns:
    """The work of c clients in a round, shape (c,) each, of k parts, shape (c, k).

    Attributes:
        down_s: Seconds of the download; ``up_s`` those of the upload.
        parts_s: Seconds of each part of the work, one after the other; 0 where a client has fewer parts.
        parts_w: Power during each part, in watts.
        radio_j: Energy of the radio for both transfers, above idle power, in joules.
        idle_w: Power while transferring and waiting, in watts.
    """

    down_s: Floats
    parts_s: Floats
    parts_w: Floats
    up_s: Floats
    radio_j: Floats
    idle_w: Floats

    @property
    def work_s(self) -> Floats:
        """Return the seconds of all parts."""
        return _sum_parts(self.parts_s)

    @property
    def busy_s(self) -> Floats:
        """Return the seconds until the reply."""
        return self.down_s + self.work_s + self.up_s


def _sum_parts(parts: Floats) -> Floats:
    """Sum over parts in their order; the rounding of numpy's own sum would depend on the number of other clients."""
    total = np.zeros(len(parts))
    for part in parts.T:
        total = total + part
    return total


def stack_reports(reports: Sequence[RoundReport | EvaluationReport | None], idle_w: Sequence[float]) -> WorkColumns:
    """Stack reports to columns; None stands for a client that did nothing."""
    parts = [() if report is None else report.parts for report in reports]
    parts_s, parts_w = np.zeros((2, len(reports), max(map(len, parts), default=0)))
    links = np.zeros((len(reports), 3))
    for row, (report, measured) in enumerate(zip(reports, parts, strict=True)):
        parts_s[row, : len(measured)] = [part.work_s for part in measured]
        parts_w[row, : len(measured)] = [part.power_w for part in measured]
        if report is not None:
            links[row] = report.link.down_s, report.link.up_s, report.link.radio_j
    down_s, up_s, radio_j = links.T
    return WorkColumns(
        down_s, parts_s=parts_s, parts_w=parts_w, up_s=up_s, radio_j=radio_j, idle_w=np.array(idle_w, dtype=np.float64)
    )


@dataclass(frozen=True, slots=True, eq=False)
class WorkEnds:
    """The end of each client's part in a round, shape (c,) each.

    Attributes:
        at_s: Seconds from the start of the round; infinity for a real board that was cut off before it was done, NaN
            for a client that failed without a report and is taken to have idled.
        error: Whether no result comes of it: it ends before its reply, or its reply is refused.
        flat: Whether its battery is empty then.
    """

    at_s: Floats
    error: Flags
    flat: Flags


def _list_phases(work: WorkColumns, down_s: Floats, parts_s: Floats, up_s: Floats) -> list[tuple[Floats, Floats]]:
    """Return the seconds and watts of the download, each part and the upload, of which so many seconds were done."""
    link_w = work.idle_w + work.radio_j / np.maximum(work.down_s + work.up_s, 1e-12)
    return [(down_s, link_w), *zip(parts_s.T, work.parts_w.T, strict=True), (up_s, link_w)]


def find_ends(work: WorkColumns, away_s: Floats, batteries: Batteries) -> WorkEnds:
    """Return when each client replies, or when it goes away or runs out of battery before that.

    Args:
        work: The clients' work.
        away_s: Seconds after which each goes away; infinity if it stays.
        batteries: Their batteries at the start of the round.
    """
    empty_s = batteries.time_to_empty_s(_list_phases(work, work.down_s, work.parts_s, work.up_s))
    busy_s = work.busy_s
    other_s = np.minimum(away_s, busy_s)
    at_s = np.minimum(empty_s, other_s)
    return WorkEnds(at_s, error=at_s < busy_s, flat=empty_s < other_s)


@dataclass(frozen=True, slots=True, eq=False)
class RoundVerdict:
    """The length of a round in seconds, and which of its clients are done or failed.

    Attributes:
        unfinished: Status of the clients that are neither.
    """

    round_s: float
    done: Flags
    failed: Flags
    unfinished: Status

    def list_statuses(self) -> list[Status]:
        """List the status of each client."""
        pairs = zip(self.done.tolist(), self.failed.tolist(), strict=True)
        return ["done" if done else "failed" if failed else self.unfinished for done, failed in pairs]


def deadline_with_grace_s(late: LateReplySpec, deadline_s: float) -> float:
    """Return the deadline extended by the grace period, in seconds."""
    return deadline_s * (1 + late.grace)


def compute_cutoff_s(late: LateReplySpec, deadline_s: float | None) -> float | None:
    """Return the seconds after which a round continues without unfinished clients, or None if it waits for all."""
    waits = late.action in ("accept", "partial")
    return None if deadline_s is None or waits else deadline_with_grace_s(late, deadline_s)


def classify_clients(ends: WorkEnds, cut_s: float | None, wanted: int | None, empty_s: float) -> RoundVerdict:
    """Determine the length of a round and who is done or failed; of equally fast clients the first ones count.

    A client that failed without a report has no part in the length. With ``wanted``, the first so many replies count,
    and the round ends with the last of them; unfinished clients are cancelled. Otherwise the round lasts until every
    client has replied or failed, but at most ``cut_s``; clients that are not done by then are late.

    ``empty_s`` is the length in seconds of a round without clients, and the least length of one in which a client was
    cut off.
    """
    at_s, awaited = ends.at_s, ~np.isnan(ends.at_s)
    in_time = np.isfinite(at_s) & (at_s <= (np.inf if cut_s is None else cut_s))
    done, last_s = in_time & ~ends.error, float(at_s[in_time].max(initial=0.0))
    unfinished: Status = "late"
    if wanted is not None and np.count_nonzero(done) >= wanted:
        counted = np.flatnonzero(done)
        counted = counted[np.argsort(at_s[counted], kind="stable")][:wanted]
        done = np.zeros(len(at_s), dtype=np.bool_)
        done[counted] = True
        round_s, unfinished = float(at_s[counted[-1]]), "cancelled"
    elif not awaited.any():
        round_s = empty_s
    elif in_time[awaited].all():
        round_s = last_s
    else:
        # Without a cutoff, a real board was cut off all the same: the round lasts at least until the deadline.
        round_s = max(last_s, empty_s) if cut_s is None else cut_s
    failed = ~awaited | (ends.error & (at_s <= round_s))
    return RoundVerdict(round_s, done, failed, unfinished)


@dataclass(frozen=True, slots=True, eq=False)
class SpentColumns:
    """Time and energy that clients spent in the first seconds of a round, shape (c,), of k parts, shape (c, k)."""

    down_s: Floats
    work_s: Floats
    up_s: Floats
    work_j: Floats
    radio_j: Floats
    parts_s: Floats
    parts_j: Floats


def spend(work: WorkColumns, until_s: Floats) -> SpentColumns:
    """Return the time and energy that each client had spent ``until_s`` seconds into the round."""
    down_s = np.minimum(work.down_s, until_s)
    whole_s = work.work_s
    work_s = np.minimum(whole_s, np.maximum(0.0, until_s - work.down_s))
    up_s = np.minimum(work.up_s, np.maximum(0.0, until_s - work.down_s - work_s))
    left_s, parts_s = np.where(work_s < whole_s, work_s, np.inf), np.zeros_like(work.parts_s)
    for place, part_s in enumerate(work.parts_s.T):
        parts_s[:, place] = np.minimum(part_s, left_s)
        left_s = np.maximum(0.0, left_s - part_s)
    parts_j = parts_s * work.parts_w
    link_s = work.down_s + work.up_s  # 0 under a Flower app, whose transfers no board sees
    sent = np.divide(down_s + up_s, link_s, out=np.ones_like(link_s), where=link_s > 0)
    return SpentColumns(
        down_s,
        work_s=work_s,
        up_s=up_s,
        work_j=_sum_parts(parts_j),
        radio_j=work.radio_j * sent,
        parts_s=parts_s,
        parts_j=parts_j,
    )


@dataclass(frozen=True, slots=True, eq=False)
class SettledColumns:
    """The end of a round, shape (c,) each.

    Attributes:
        until_s: End of each client's booked time, in seconds after the start of the round.
        joining: Late clients whose reply joins a later round.
        lost: Clients of which no result comes and whose end is within their booked time; not after they were stopped.
        spent: What each client has done within its booked time.
        energy_j: Energy of each board until the end of the round, or of its booked time if that is later, in joules.
        batteries: Their batteries then.
    """

    ends: WorkEnds
    verdict: RoundVerdict
    until_s: Floats
    joining: Flags
    lost: Flags
    spent: SpentColumns
    energy_j: Floats
    batteries: Batteries


def settle_columns(
    work: WorkColumns,
    batteries: Batteries,
    ends: WorkEnds,
    *,
    late: LateReplySpec,
    deadline_s: float | None,
    wanted: int | None,
) -> SettledColumns:
    """Settle a round: classify its clients and book what each has spent.

    Args:
        work: The clients' work.
        batteries: Their batteries at the start of the round.
        ends: Their ends.
        late: Treatment of late replies. A client whose late reply joins a later round is booked until it is done, so
            that all of its energy is in one row.
        deadline_s: The round's deadline in seconds; None without one.
        wanted: Number of replies that are enough; None if all are awaited.
    """
    verdict = classify_clients(ends, compute_cutoff_s(late, deadline_s), wanted, deadline_s or 0.0)
    goes_on = np.isfinite(ends.at_s) & ~verdict.done & ~verdict.failed
    goes_on &= late.action == "discount" and verdict.unfinished == "late"
    ended = verdict.failed & ~np.isnan(ends.at_s)
    until_s = np.where(ended | goes_on, ends.at_s, verdict.round_s)
    lost = ends.error & (ends.at_s <= until_s)
    spent = spend(work, until_s)
    flat = ends.flat & lost
    over_s = np.maximum(until_s, verdict.round_s)
    # A board whose battery is empty draws nothing after that, and is charged until the round is over.
    known_s = np.where(flat, until_s, over_s)
    wanted_j = spent.work_j + spent.radio_j + work.idle_w * (known_s - spent.work_s)
    charged = batteries.without_surplus(_list_phases(work, spent.down_s, spent.parts_s, spent.up_s))
    energy_j = charged.limit_energy_j(wanted_j, known_s)
    # Rounding must leave nothing in an empty battery.
    left = charged.update(np.where(flat, np.inf, energy_j), known_s).update(0.0, over_s - known_s)
    return SettledColumns(
        ends,
        verdict,
        until_s,
        joining=goes_on & ~ends.error,
        lost=lost,
        spent=spent,
        energy_j=energy_j,
        batteries=left,
    )


# One client's completed work, part by part ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompletedPart:
    """The completed share of one part of the work; ``steps`` counts whole steps only."""

    work_s: float
    work_j: float
    steps: int


@dataclass(frozen=True, slots=True)
class CompletedWork:
    """Time and energy that a client spent in the first seconds of a round.

    Attributes:
        work_s: Seconds of training, probes included.
        parts: Completed share of each part of the report, in order; parts that were not started have zero steps.
    """

    down_s: float
    work_s: float
    up_s: float
    work_j: float
    radio_j: float
    parts: tuple[CompletedPart, ...]

    @property
    def steps(self) -> int:
        """Number of whole steps completed."""
        return sum(part.steps for part in self.parts)


def compute_completed_work(report: RoundReport | EvaluationReport, until_s: float) -> CompletedWork:
    """Return the time and energy that a client had spent ``until_s`` seconds into the round.

    The parts of the report are taken to run one after the other.
    """
    return get_completed_work(report, spend(stack_reports([report], [0.0]), np.array([until_s])), 0)


def get_completed_work(report: RoundReport | EvaluationReport, spent: SpentColumns, row: int) -> CompletedWork:
    """Return a row of columns of reports as the completed work of its report."""
    pairs = zip(spent.parts_s[row].tolist(), spent.parts_j[row].tolist(), strict=True)
    parts = tuple(
        CompletedPart(seconds, joules, _count_whole_steps(part, seconds))
        for part, (seconds, joules) in zip(report.parts, pairs, strict=False)
    )
    return CompletedWork(
        float(spent.down_s[row]),
        work_s=float(spent.work_s[row]),
        up_s=float(spent.up_s[row]),
        work_j=float(spent.work_j[row]),
        radio_j=float(spent.radio_j[row]),
        parts=parts,
    )


def _count_whole_steps(part: Measurement, seconds: float) -> int:
    """Return the whole steps in the first ``seconds`` of a part: mode change and warm-up first, then the steps."""
    if seconds >= part.work_s:
        return part.steps
    before_s = part.lost_s + part.warm_up_s + (part.switch_s or 0.0)
    return min(int(max(0.0, seconds - before_s) / part.step_s), part.steps)
