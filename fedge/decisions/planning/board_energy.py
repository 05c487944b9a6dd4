"""One board's point of least energy at a given deadline, and its energy in a round, also at MAXN."""

from __future__ import annotations

from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.types import Front, FrontPoint


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
