"""One board's front at a given deadline: its point of least energy, and the joules of the round, at MAXN too."""

from __future__ import annotations

from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.types import Front, FrontPoint


def find_least_energy_point(front: Front, deadline_s: float) -> FrontPoint:
    """The point of least energy above idling that ends by ``deadline_s``; the fastest point when none does."""
    latest_s = deadline_s * (1.0 + LIMIT_ROUNDING)
    points = front.points or (front.maxn,)
    in_time = [point for point in points if front.link_s + point.work_s <= latest_s]
    if not in_time:
        return min(points, key=lambda point: (point.work_s, point.work_j))
    return min(in_time, key=lambda point: (point.work_j - front.idle_w * point.work_s, point.work_s))


def board_round_energy_j(front: Front, point: FrontPoint, round_s: float) -> float:
    """Joules over a round of ``round_s``: the work, and idling while fetching, sending and waiting (no radio).

    A board that is done later than ``round_s`` is counted until it is done.
    """
    length_s = max(round_s, front.link_s + point.work_s)
    return point.work_j + front.idle_w * (length_s - point.work_s)


def board_maxn_energy_j(front: Front, round_s: float) -> float:
    """Joules over a round of ``round_s`` of a board that works and waits at MAXN (no radio)."""
    length_s = max(round_s, front.link_s + front.maxn.work_s)
    return front.maxn.work_j + front.maxn_idle_w * (length_s - front.maxn.work_s)
