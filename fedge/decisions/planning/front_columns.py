"""All boards' fronts as flat columns, so that a planner handles a hundred thousand of them with a few numpy calls.

Symbols: board i has link l_i, idle power p_i and points k of work t_ik, energy e_ik and standard deviation s_ik (log);
the margin is z standard deviations. A point ends at l_i + t_ik as expected, and at l_i + t_ik exp(z s_ik) with the
margin. At the end: one board's point of least energy at a deadline, and its energy in a round, also at MAXN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.types import Floats, Front, FrontPoint, NarrowOffer

Ints: TypeAlias = NDArray[np.int64]

MAX_FIGURE = 1e12
"""Seconds, joules or watts above this are no plausible figures of a round; the bound keeps every sum precise."""
NARROW_RANGE = 1e3
"""A narrow network's work relative to the whole one's is within this factor, or it is no plausible offer."""


@dataclass(frozen=True, slots=True, eq=False)
class FrontColumns:
    """The fronts of n boards with m points in all, each board's MAXN among its points.

    Attributes:
        boards: Names in ascending order.
        offsets: Board i has the points ``offsets[i]`` to ``offsets[i + 1]``, at least one, by rising ``safe_ends_s``.
        ends_s: Expected end of each point in seconds after the round's start, shape (m,).
        safe_ends_s: End of each point with the margin, in seconds, shape (m,).
        above_idle_j: Energy of each point above idling, in joules, with the radio's, shape (m,).
        power_w: Power of each point while it works, in watts, shape (m,).
        idle_w: Idle power of each board, in watts, shape (n,).
        maxn_s: Expected end at MAXN, in seconds, shape (n,).
        maxn_safe_s: End at MAXN with the margin, in seconds, shape (n,).
        maxn_work_s: Time of the work at MAXN, in seconds, shape (n,).
        maxn_work_j: Energy of the work at MAXN, in joules, shape (n,).
        maxn_idle_w: Power while waiting at MAXN, in watts, shape (n,).
        radio_j: Energy of the radio in joules, shape (n,).
        left_out: Boards whose front is empty or implausible.
    """

    boards: tuple[str, ...]
    offsets: Ints
    ends_s: Floats
    safe_ends_s: Floats
    above_idle_j: Floats
    power_w: Floats
    idle_w: Floats
    maxn_s: Floats
    maxn_safe_s: Floats
    maxn_work_s: Floats
    maxn_work_j: Floats
    maxn_idle_w: Floats
    radio_j: Floats
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.boards)

    @property
    def counts(self) -> Ints:
        """Points per board, shape (n,)."""
        return np.diff(self.offsets)

    @property
    def maxn_round_s(self) -> float:
        """Expected length in seconds of the round with every board at MAXN."""
        return float(self.maxn_s.max())

    @property
    def maxn_energy_j(self) -> float:
        """Energy of that round in joules, every board working and waiting at MAXN."""
        waiting_s = self.maxn_round_s - self.maxn_work_s
        return float(self.maxn_work_j.sum() + self.radio_j.sum() + (self.maxn_idle_w * waiting_s).sum())


def build_columns(fronts: Mapping[str, Front], z: float = 0.0) -> FrontColumns:
    """Build the columns of ``fronts`` with a margin of ``z`` standard deviations on every time.

    O(m), and O(m log m) where points are out of order.

    Args:
        fronts: The fronts by board. A board is left out if its front has no points, or a figure in it is not finite, a
            time is not positive, or an energy, power, link time or standard deviation is negative; or if its upload
            takes longer than both transfers, or has no bytes, or its fixed share of the work is more than the whole, or
            a narrow offer is impossible.
        z: Margin in standard deviations of the log times.
    """
    named = [board for board in sorted(fronts) if fronts[board].points]
    listed = [fronts[board] for board in named]
    counts = np.array([len(front.points) + 1 for front in listed], dtype=np.int64)
    work_s, work_j, spread = _stack_points(listed, int(counts.sum()))
    heads = np.array([(f.link_s, f.idle_w, f.maxn_idle_w, f.radio_j) for f in listed], dtype=np.float64).reshape(-1, 4)
    whole = _is_plausible(heads).all(axis=1) & _has_plausible_uploads(listed)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        held_s = work_s * np.exp(z * spread)
        sound = (
            _is_plausible(work_s) & (work_s > 0) & _is_plausible(work_j) & _is_plausible(spread) & _is_plausible(held_s)
        )
        power_w = work_j / work_s
        sound &= _is_plausible(power_w)
    board_of = np.repeat(np.arange(len(named)), counts)
    whole &= np.bincount(board_of[~sound], minlength=len(named)) == 0
    kept, keep = np.flatnonzero(whole), np.repeat(whole, counts)
    offsets = _compute_offsets(counts[kept])
    link_s, idle_w, maxn_idle_w, radio_j = heads[kept].T
    board_of = np.repeat(np.arange(len(kept)), counts[kept])
    work_s, work_j, held_s, power_w = work_s[keep], work_j[keep], held_s[keep], power_w[keep]
    ends_s, held_s = link_s[board_of] + work_s, link_s[board_of] + held_s
    above_j, maxn = radio_j[board_of] + work_j - idle_w[board_of] * work_s, offsets[1:] - 1
    boards = tuple(named[i] for i in kept)
    figures = (ends_s[maxn], held_s[maxn], work_s[maxn], work_j[maxn], maxn_idle_w, radio_j)
    order = _order_by_safe_end(offsets, held_s, above_j)
    left_out = tuple(sorted(set(fronts) - set(boards)))
    ordered = (ends_s[order], held_s[order], above_j[order], power_w[order])
    return FrontColumns(boards, offsets, *ordered, idle_w, *figures, left_out)


def iterate_by_length(offsets: Ints) -> Iterator[Ints]:
    """Yield the point indices of all boards with equally many points, shape (boards, points).

    Work within boards becomes work along rows, whatever the lengths.
    """
    counts = np.diff(offsets)
    for count in np.unique(counts):
        yield offsets[:-1][counts == count][:, None] + np.arange(count)


def running_minimum(values: Floats, offsets: Ints) -> Floats:
    """Return the running minimum of ``values`` within each board, shape (m,)."""
    counts = np.diff(offsets)
    if len(counts) and counts.min() == counts.max():
        return np.minimum.accumulate(values.reshape(-1, int(counts[0])), axis=1).ravel()
    lowest = values.copy()
    for rows in iterate_by_length(offsets):
        lowest[rows] = np.minimum.accumulate(values[rows], axis=1)
    return lowest


def _stack_points(fronts: Sequence[Front], count: int) -> tuple[Floats, Floats, Floats]:
    """Return seconds, joules and standard deviations of all points, each front's MAXN after its points."""
    points = chain.from_iterable((*front.points, front.maxn) for front in fronts)
    kind = np.dtype([("work_s", "f8"), ("work_j", "f8"), ("sd", "f8")])
    table = np.fromiter(map(attrgetter("work_s", "work_j", "time_sd_log"), points), kind, count)
    return table["work_s"].copy(), table["work_j"].copy(), table["sd"].copy()


def _has_plausible_uploads(fronts: Sequence[Front]) -> NDArray[np.bool_]:
    """Return which fronts have an upload that can be priced with another encoding, shape (n,)."""
    uploads = [(f.link_s, f.up_s, f.latency_s, f.up_share, f.encode_s, f.encode_j, f.fixed_share) for f in fronts]
    figures = np.array(uploads, dtype=np.float64).reshape(-1, 7)
    link_s, up_s, _, up_share, _, _, fixed_share = figures.T
    marks = _is_plausible(figures).all(axis=1) & (up_s <= link_s) & (up_share > 0.0) & (fixed_share <= 1.0)
    marks &= np.array([all(map(_is_possible_offer, front.narrow)) for front in fronts], np.bool_)
    with np.errstate(over="ignore"):
        return marks & _is_plausible(up_s / np.where(marks, up_share, 1.0))


def _is_possible_offer(offer: NarrowOffer) -> bool:
    return 0.0 < offer.width < 1.0 and 1.0 <= NARROW_RANGE * offer.work <= NARROW_RANGE**2 and 0.0 <= offer.sent <= 1.0


def _is_plausible(values: Floats) -> NDArray[np.bool_]:
    marks: NDArray[np.bool_] = (values >= 0.0) & (values <= MAX_FIGURE)
    return marks


def _compute_offsets(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _order_by_safe_end(offsets: Ints, held_s: Floats, above_j: Floats) -> Ints:
    """Return the order of all points that sorts each board's by ``held_s``, equal ones by ``above_j``."""
    order = np.arange(len(held_s))
    for rows in iterate_by_length(offsets):
        order[rows] = np.take_along_axis(rows, np.lexsort((above_j[rows], held_s[rows]), axis=-1), axis=1)
    return order


def find_least_energy_point(front: Front, deadline_s: float) -> FrontPoint:
    """Return the point of least energy above idling that ends by ``deadline_s``, or the fastest point if none does."""
    latest_s = deadline_s * (1.0 + LIMIT_ROUNDING)
    points = front.points or (front.maxn,)
    in_time = [point for point in points if front.link_s + point.work_s <= latest_s]
    if not in_time:
        return min(points, key=lambda point: (point.work_s, point.work_j))
    return min(in_time, key=lambda point: (point.work_j - front.idle_w * point.work_s, point.work_s))


def board_round_energy_j(front: Front, point: FrontPoint, round_s: float) -> float:
    """Return the energy of a board in a round, in joules: the work, and idling for the rest of the round (no radio).

    Args:
        front: The board's front, for its link time and idle power.
        point: The point of the front at which the board works.
        round_s: Length of the round in seconds. A board that ends later is counted until its own end.
    """
    length_s = max(round_s, front.link_s + point.work_s)
    return point.work_j + front.idle_w * (length_s - point.work_s)


def board_maxn_energy_j(front: Front, round_s: float) -> float:
    """Return the energy in joules of a board that works and waits at MAXN for a round of ``round_s`` seconds."""
    length_s = max(round_s, front.link_s + front.maxn.work_s)
    return front.maxn.work_j + front.maxn_idle_w * (length_s - front.maxn.work_s)
