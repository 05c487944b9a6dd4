"""The coordinator's plan: the one round deadline that balances the fleet's time and energy, from the boards' fronts.

Symbols: board i has idle power p_i, link l_i and points k of work t_ik and energy e_ik, of which a_ik = e_ik - p_i t_ik
is above idling. A round of length R costs E(R) = sum_i [p_i R + min_k {a_ik : l_i + t_ik <= R}].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedge.choice.picking import ROUNDING
from fedge.types import Floats, Front, FrontPoint


@dataclass(frozen=True, slots=True)
class DeadlinePlan:
    """A planned round: its deadline, and its length and energy as shares of the same round with every board at MAXN.

    ``straggler`` is the board whose fastest mode ends last: no round can be shorter.
    """

    deadline_s: float
    round_s_rel: float
    energy_rel: float
    straggler: str


def plan_deadline(fronts: Mapping[str, Front], time_weight: float, max_slowdown: float | None) -> DeadlinePlan:
    """The deadline D of least w D/D_maxn + (1-w) E(D)/E_maxn, at most ``max_slowdown`` times D_maxn; exact.

    Never below what the slowest board can do: a shorter deadline would not shorten the round, only waste the others'
    slack. When even that is beyond ``max_slowdown``, it is the deadline. The shorter of equally good deadlines wins.
    O(n log n) in all the fronts' points. Raises ``ValueError`` without a front.
    """
    if not fronts:
        raise ValueError("a deadline needs at least one board's front")
    boards = sorted(fronts)
    fastest_s = {board: _ends_s(fronts[board]).min() for board in boards}
    straggler = max(boards, key=lambda board: fastest_s[board])
    maxn_s = max(front.link_s + front.maxn.work_s for front in fronts.values())
    maxn_j = sum(maxn_energy_j(fronts[board], maxn_s) for board in boards)
    cap_s = np.inf if max_slowdown is None else max_slowdown * maxn_s
    deadlines_s, energies_j = _energy_by_deadline([fronts[b] for b in boards], float(fastest_s[straggler]), cap_s)
    score = time_weight * deadlines_s / maxn_s + (1.0 - time_weight) * energies_j / maxn_j
    best = int(np.argmin(score))
    return DeadlinePlan(
        float(deadlines_s[best]), float(deadlines_s[best] / maxn_s), float(energies_j[best] / maxn_j), straggler
    )


def least_energy_at(front: Front, deadline_s: float) -> FrontPoint:
    """The point of least energy above idling that ends by ``deadline_s``; the fastest point when none does."""
    latest_s = deadline_s * (1.0 + ROUNDING)
    points = _points(front)
    in_time = [point for point in points if front.link_s + point.work_s <= latest_s]
    if not in_time:
        return min(points, key=lambda point: (point.work_s, point.work_j))
    return min(in_time, key=lambda point: (point.work_j - front.idle_w * point.work_s, point.work_s))


def round_energy_j(front: Front, point: FrontPoint, round_s: float) -> float:
    """Joules over a round of ``round_s``: the work, and idling while fetching, sending and waiting (no radio).

    A board that is done later than ``round_s`` is counted until it is done.
    """
    length_s = max(round_s, front.link_s + point.work_s)
    return point.work_j + front.idle_w * (length_s - point.work_s)


def maxn_energy_j(front: Front, round_s: float) -> float:
    """Joules over a round of ``round_s`` of a board that works and waits at MAXN (no radio)."""
    length_s = max(round_s, front.link_s + front.maxn.work_s)
    return front.maxn.work_j + front.maxn_idle_w * (length_s - front.maxn.work_s)


def _energy_by_deadline(fronts: list[Front], floor_s: float, cap_s: float) -> tuple[Floats, Floats]:
    """Every deadline worth a look, ascending from ``floor_s``, and the fleet's joules at it.

    Between two boards' ends E(R) only grows (by idling), so only ends, and the floor, can be best.
    """
    idle_w = sum(front.idle_w for front in fronts)
    start_j, later_s, later_j = 0.0, [], []
    for front in fronts:
        ends_s, above_j = _staircase(front)
        first = int(np.searchsorted(ends_s, floor_s, side="right"))
        start_j += above_j[first - 1]
        last = int(np.searchsorted(ends_s, cap_s, side="right"))
        later_s.append(ends_s[first:last])
        later_j.append(np.diff(above_j)[first - 1 : max(last, first) - 1])
    saved_s, saved_j = np.concatenate(later_s), np.concatenate(later_j)
    order = np.argsort(saved_s, kind="stable")
    deadlines_s = np.concatenate([[floor_s], saved_s[order]])
    energies_j: Floats = idle_w * deadlines_s + start_j + np.concatenate([[0.0], np.cumsum(saved_j[order])])
    return deadlines_s, energies_j


def _staircase(front: Front) -> tuple[Floats, Floats]:
    """Ends, ascending, and the least joules above idling of all points that end by then."""
    ends_s = _ends_s(front)
    above_j = np.array([point.work_j - front.idle_w * point.work_s for point in _points(front)])
    order = np.argsort(ends_s, kind="stable")
    lowest: Floats = np.minimum.accumulate(above_j[order])
    return ends_s[order], lowest


def _ends_s(front: Front) -> Floats:
    ends: Floats = front.link_s + np.array([point.work_s for point in _points(front)])
    return ends


def _points(front: Front) -> tuple[FrontPoint, ...]:
    return front.points or (front.maxn,)
