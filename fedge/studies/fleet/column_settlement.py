"""Settlement of a round of columns, as the server does it for one client after the other. Pure functions.

Symbols of a client: download d, work w, upload u seconds, b = d + w + u; it is away from a on and its battery is empty
from f on, after the round's start. It ends at min(b, a, f), with an error unless that is b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.experiment import LateReplySpec
from fedge.studies.fleet.client_columns import Flags
from fedge.types import Floats


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedWork:
    """The work of c clients in a round, shape (c,) each.

    Attributes:
        down_s: Seconds of the download; ``work_s`` those of the work and ``up_s`` those of the upload.
        work_j: Energy of the work, in joules.
        idle_w: Power while transferring and waiting, in watts; ``radio_w`` that of the radio above it.
        away_s: Seconds after which the client goes away; infinite if it stays.
        left_j: Charge of its battery, in joules; infinite on mains.
        charging_w: Charging power, in watts.
        capacity_j: Capacity of the battery, in joules.
    """

    down_s: Floats
    work_s: Floats
    up_s: Floats
    work_j: Floats
    idle_w: Floats
    radio_w: Floats
    away_s: Floats
    left_j: Floats
    charging_w: Floats
    capacity_j: Floats

    @property
    def busy_s(self) -> Floats:
        """Return the seconds until the reply."""
        return self.down_s + self.work_s + self.up_s


@dataclass(frozen=True, slots=True, eq=False)
class ColumnSettlement:
    """The end of a round.

    Attributes:
        round_s: Its length in seconds.
        done: Clients whose result counts; all others are late, cancelled or failed.
        failed: Clients that went away or ran out of battery before the end.
        energy_j: Energy of each client, in joules.
        left_j: Charge of each battery at the end, in joules.
    """

    round_s: float
    done: Flags
    failed: Flags
    energy_j: Floats
    left_j: Floats


def settle_columns(
    work: SimulatedWork, late: LateReplySpec, deadline_s: float | None, wanted: int | None
) -> ColumnSettlement:
    """Settle a round.

    Args:
        work: The clients' work.
        late: Treatment of late replies, ``accept`` or ``drop``.
        deadline_s: The round's deadline in seconds; None without one.
        wanted: Number of replies that are enough; None if all are awaited.
    """
    empty_s = compute_empty_s(work)
    ends_s = np.minimum(work.busy_s, np.minimum(work.away_s, empty_s))
    error = ends_s < work.busy_s
    cut_s = np.inf if deadline_s is None or late.action == "accept" else deadline_s * (1.0 + late.grace)
    counted = (ends_s <= cut_s) & ~error
    if wanted is not None and int(counted.sum()) >= wanted:
        order = np.flatnonzero(counted)
        order = order[np.argsort(ends_s[order], kind="stable")][:wanted]
        counted = np.zeros(len(ends_s), dtype=np.bool_)
        counted[order] = True
        round_s = float(ends_s[order[-1]])
    elif (ends_s > cut_s).any():
        round_s = float(cut_s)
    else:
        round_s = float(ends_s.max())
    failed = error & (ends_s <= round_s) & ~counted
    until_s = np.where(failed, ends_s, round_s)
    flat = failed & (empty_s < np.minimum(work.away_s, work.busy_s))
    return _book_energy(work, round_s, done=counted, failed=failed, until_s=until_s, flat=flat)


def _book_energy(
    work: SimulatedWork, round_s: float, *, done: Flags, failed: Flags, until_s: Floats, flat: Flags
) -> ColumnSettlement:
    """Book work, radio and idle energy until ``until_s``; a flat board draws nothing after it."""
    worked_s = np.clip(until_s - work.down_s, 0.0, work.work_s)
    work_j = work.work_j * worked_s / np.maximum(work.work_s, 1e-12)
    sent_s = np.clip(until_s - work.down_s - work.work_s, 0.0, work.up_s)
    radio_j = work.radio_w * (np.minimum(until_s, work.down_s) + sent_s)
    known_s = np.where(flat, until_s, round_s)
    energy_j = work_j + radio_j + work.idle_w * (known_s - worked_s)
    energy_j = np.minimum(energy_j, work.left_j + work.charging_w * known_s)
    left_j = np.where(flat, 0.0, work.left_j - energy_j + work.charging_w * until_s)
    left_j += work.charging_w * np.maximum(0.0, round_s - until_s)
    left_j = np.clip(left_j, 0.0, work.capacity_j)
    return ColumnSettlement(round_s, done, failed, energy_j=energy_j, left_j=left_j)


def compute_empty_s(work: SimulatedWork) -> Floats:
    """Return the seconds until each battery is empty; infinite if it lasts through the client's work."""
    empty_s = np.full(len(work.work_s), np.inf)
    past_s, left_j = np.zeros(len(empty_s)), work.left_j
    link_w, work_w = work.idle_w + work.radio_w, work.work_j / np.maximum(work.work_s, 1e-12)
    for seconds, watts in ((work.down_s, link_w), (work.work_s, work_w), (work.up_s, link_w)):
        net_w = watts - work.charging_w
        ends = (net_w * seconds > left_j) & ~np.isfinite(empty_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            empty_s = np.where(ends, past_s + left_j / net_w, empty_s)
        left_j = np.minimum(work.capacity_j, left_j - net_w * seconds)
        past_s = past_s + seconds
    return empty_s
