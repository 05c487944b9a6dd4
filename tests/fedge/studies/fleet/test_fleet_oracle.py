"""The oracle mixes modes like boards, pays for the change, and is never dearer than any split into two modes."""

from __future__ import annotations

import dataclasses

import pytest
from contracts.reports import MAXN
from contracts.true_board import IDLE_W, STEPS, SURFACE, TRUTH, true_front
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.emulated_board import MODE_SWITCH_S, WARM_UP_STEPS
from fedge.experiment import PolicySpec
from fedge.studies.fleet.fleet_costs import filter_plausible_points, find_least_energy_work, plan_oracle_work
from fedge.types import Front, FrontPoint


def front_of(points: list[tuple[int, int]]) -> Front:
    """Points of so many seconds and joules above idling for the whole work, in no order; the fastest is MAXN."""
    found = tuple(FrontPoint(MAXN, 10.0 * t, 10.0 * e + IDLE_W * 10.0 * t) for t, e in points)
    return Front(found, min(found, key=lambda point: point.work_s), IDLE_W, 2.0, 3.0)


def splits(front: Front, steps: int, room_s: float) -> list[tuple[float, float]]:
    """Seconds and joules above idling of all splits that end in time, in either order, one mode alone among them.

    The warm-up is in whichever comes first; the change is made at the power of the second.
    """
    whole = steps + WARM_UP_STEPS
    each = [(point.work_s / whole, (point.work_j - IDLE_W * point.work_s) / whole) for point in front.points]
    tried = [(whole * t, whole * e) for t, e in each]
    for t1, e1 in each:
        for t2, e2 in each:
            for count in range(1, steps):
                n1, n2 = count + WARM_UP_STEPS, steps - count
                tried.append((n1 * t1 + n2 * t2 + MODE_SWITCH_S, n1 * e1 + n2 * e2 + MODE_SWITCH_S * e2 / t2))
    return [(time_s, joules) for time_s, joules in tried if time_s <= room_s * (1 + 1e-9)]


POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 60)), min_size=1, max_size=4)


@given(POINTS, st.integers(2, 12), st.floats(1.0, 120.0))
def test_no_split_into_two_modes_that_ends_in_time_takes_less_than_the_oracle(
    points: list[tuple[int, int]], steps: int, room_s: float
) -> None:
    front = front_of(points)
    tried = splits(front, steps, room_s)

    found = find_least_energy_work(front, steps, front.link_s + room_s)

    if tried:
        above_j = found.work_j - IDLE_W * found.work_s
        finest = max(above_j, *(joules for _, joules in tried))
        assert above_j <= min(joules for _, joules in tried) + 1e-9 * finest
        assert found.work_s <= room_s * (1 + 1e-8)
    else:
        assert found.work_s == pytest.approx(min(point.work_s for point in front.points))


@given(POINTS, st.integers(1, 12), st.floats(1.0, 120.0))
def test_the_oracle_takes_no_less_than_any_shares_of_its_modes_could(
    points: list[tuple[int, int]], steps: int, room_s: float
) -> None:
    front = front_of(points)
    found = find_least_energy_work(front, steps, front.link_s + room_s)
    each = [(point.work_s, point.work_j - IDLE_W * point.work_s) for point in front.points]
    if min(t for t, _ in each) > room_s:
        return

    shares = [e1 + (e2 - e1) * (room_s - t1) / (t2 - t1) for t1, e1 in each for t2, e2 in each if t1 <= room_s < t2]
    least_j = min([e for t, e in each if t <= room_s] + shares)

    assert found.work_j - IDLE_W * found.work_s >= least_j * (1 - 1e-6)


def test_time_between_two_modes_is_filled_with_both() -> None:
    front = true_front()
    fast, slow = front.points[0], front.points[1]
    deadline_s = front.link_s + 0.5 * (fast.work_s + slow.work_s)

    found = find_least_energy_work(front, STEPS, deadline_s)

    assert fast.work_s < found.work_s <= deadline_s - front.link_s
    assert found.work_j - IDLE_W * found.work_s < fast.work_j - IDLE_W * fast.work_s


def test_each_board_mixes_at_the_deadline_that_was_planned_for_all() -> None:
    fronts = {"a": true_front(), "b": true_front(1.3)}
    policy = PolicySpec(name="least-energy", max_slowdown=1.0)

    found = plan_oracle_work(fronts, dict.fromkeys(fronts, STEPS), policy, 1e9)

    assert found["b"].work_s == pytest.approx(fronts["b"].maxn.work_s), "the slowest board has no time to spare"
    alone = [point for point in fronts["a"].points if point.work_s <= fronts["b"].maxn.work_s]
    room_s = fronts["b"].maxn.work_s
    assert found["a"].work_j + IDLE_W * (room_s - found["a"].work_s) < min(
        point.work_j + IDLE_W * (room_s - point.work_s) for point in alone
    )


def test_implausible_modes_are_not_among_the_oracles_but_maxn_always_is() -> None:
    marked = TRUTH.plausible.copy()
    marked[:2] = False
    told = filter_plausible_points(true_front(), dataclasses.replace(TRUTH, plausible=marked))

    assert [point.mode for point in told.points] == [SURFACE.modes[0], SURFACE.modes[2]]
    assert filter_plausible_points(true_front(), TRUTH) == true_front()
