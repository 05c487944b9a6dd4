"""Small random fronts and fleets for tests of the planner, and what a round of one of them costs, literally."""

import math
from collections.abc import Iterator, Mapping
from itertools import product

from hypothesis import strategies as st

from fedge.types import Front, FrontPoint, PowerMode

MODE = PowerMode(4, 1000.0, 500.0, 1600.0)
RADIO_W = 0.5


def a_front(
    rows: list[tuple[float, float]],
    idle_w: float = 1.0,
    link_s: float = 0.0,
    spreads: tuple[float, ...] = (),
    maxn_idle_w: float | None = None,
) -> Front:
    """Points of (seconds, watts), not only Pareto-minimal ones; MAXN is the fastest, and waits at more power."""
    padded = (*spreads, *(0.0,) * len(rows))
    points = tuple(FrontPoint(MODE, t, w * t, sd) for (t, w), sd in zip(sorted(rows), padded, strict=False))
    maxn_w = 1.25 * idle_w if maxn_idle_w is None else maxn_idle_w
    return Front(points, points[0], idle_w, link_s, maxn_w, radio_j=RADIO_W * link_s)


quarters = st.integers(1, 40).map(lambda k: k / 4)
rows = st.lists(st.tuples(quarters, quarters), min_size=1, max_size=5)
idle = st.integers(0, 8).map(lambda k: k / 4)
links = st.integers(0, 12).map(lambda k: k / 4)
certain_front = st.builds(a_front, rows, idle, links)
spreads = st.lists(st.sampled_from([0.0, 0.1, 0.5]), min_size=5, max_size=5).map(tuple)
some_front = st.builds(a_front, rows, idle, links, spreads)


def fleets(front: st.SearchStrategy[Front], most: int = 4) -> st.SearchStrategy[dict[str, Front]]:
    return st.lists(front, min_size=1, max_size=most).map(lambda found: {f"b{i}": f for i, f in enumerate(found)})


def end_s(front: Front, point: FrontPoint, z: float = 0.0) -> float:
    return front.link_s + point.work_s * math.exp(z * point.time_sd_log)


def above_j(front: Front, point: FrontPoint) -> float:
    """Joules of the work above idle, and of the radio."""
    return front.radio_j + point.work_j - front.idle_w * point.work_s


def in_reach(front: Front, deadline_s: float, z: float) -> list[FrontPoint]:
    """The points that end in time with the margin; else the fastest, if it is expected to; of equals the surest."""
    points = (*front.points, front.maxn)
    held = [p for p in points if end_s(front, p, z) <= deadline_s]
    fastest = min(points, key=lambda p: (end_s(front, p), end_s(front, p, z), above_j(front, p)))
    return held or ([fastest] if end_s(front, fastest) <= deadline_s else [])


def deadlines(fronts: Mapping[str, Front], z: float) -> list[float]:
    """Every deadline at which anything changes."""
    return sorted({end_s(f, p, margin) for f in fronts.values() for p in f.points for margin in (0.0, z)})


def rounds(fronts: Mapping[str, Front], deadline_s: float, z: float) -> Iterator[tuple[float, float]]:
    """Joules and watts of every round in which each board works in some point within reach."""
    offers = [in_reach(front, deadline_s, z) for front in fronts.values()]
    for points in product(*offers):
        joules = sum(above_j(f, p) + f.idle_w * deadline_s for f, p in zip(fronts.values(), points, strict=True))
        yield joules, sum(p.work_j / p.work_s for p in points)


def maxn_round(fronts: Mapping[str, Front]) -> tuple[float, float]:
    """Length and joules with every board working and waiting at MAXN, as expected."""
    length_s = max(end_s(f, f.maxn) for f in fronts.values())
    waiting = {name: f.maxn_idle_w * (length_s - f.maxn.work_s) for name, f in fronts.items()}
    return length_s, sum(f.radio_j + f.maxn.work_j + waiting[name] for name, f in fronts.items())
