"""Every policy is judged by what it minimises, and by nothing where it minimises nothing."""

import dataclasses
import itertools

import pytest
from contracts.reports import LOW, MAXN
from contracts.true_board import IDLE_W, STEPS, SURFACE, TRUTH, in_mode, report_of, row_of, true_front
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.emulated_board import MODE_SWITCH_S, WARM_UP_STEPS
from fedge.experiment import PolicySpec
from fedge.studies.fleet.fleet_costs import (
    FleetCost,
    PresetWork,
    RoundClients,
    compute_objective,
    find_best_presets,
    max_round_s,
    stack_presets,
)
from fedge.studies.fleet.round_comparison import TrueBoards, compare_round, compute_true_cost, find_least_energy_work
from fedge.types import Front, FrontPoint

SPENT, SPENT_AT_MAXN = FleetCost(30.0, {"a": 60.0, "b": 40.0}, {}), FleetCost(20.0, {"a": 100.0, "b": 100.0}, {})


@pytest.mark.parametrize(
    ("policy", "aim"),
    [
        (PolicySpec(name="balanced"), 0.5 * 1.5 + 0.5 * 0.5),
        (PolicySpec(name="balanced", time_weight=0.25), 0.25 * 1.5 + 0.75 * 0.5),
        (PolicySpec(name="least-energy"), 100.0),
        (PolicySpec(name="fastest"), 30.0),
        (PolicySpec(name="maxn"), None),
    ],
)
def test_a_policy_is_judged_by_what_it_minimises(policy, aim):
    assert compute_objective(policy, SPENT, SPENT_AT_MAXN) == aim


def test_a_round_may_be_as_long_as_the_deadline_and_the_slowdown_allow():
    assert max_round_s(PolicySpec(max_slowdown=1.5), 20.0) == 30.0
    assert max_round_s(PolicySpec(max_slowdown=1.5, deadline_s=25.0), 20.0) == 25.0


def test_a_round_is_worth_what_its_modes_really_cost_whatever_was_measured():
    parts = in_mode(LOW, 5), in_mode(MAXN, 15, first=False, changed=True)
    lucky = in_mode(LOW, 5, 0.5), in_mode(MAXN, 15, 3.0, first=False, changed=True)
    link = report_of("a", *parts).link

    for told in (parts, lucky):
        spent = compute_true_cost(
            {"a": report_of("a", *told), "b": report_of("b", in_mode(LOW, 20))}, {"a": TRUTH, "b": TRUTH}
        )

        work_s = (5 + WARM_UP_STEPS) * 2.0 + 15 * 1.0 + MODE_SWITCH_S
        round_s = link.down_s + link.up_s + (20 + WARM_UP_STEPS) * 2.0
        energy_j = (
            (5 + WARM_UP_STEPS) * 2.0 * 4.0 + (15 + MODE_SWITCH_S) * 10.0 + IDLE_W * (round_s - work_s) + link.radio_j
        )
        assert spent.round_s == pytest.approx(round_s)
        assert spent.energies_j["a"] == pytest.approx(energy_j)
        assert spent.busy_s["a"] == pytest.approx(link.down_s + link.up_s + work_s)


def test_waiting_low_saves_the_difference_of_the_two_idle_powers_outside_the_work():
    fronts = {"a": true_front(), "b": true_front(2.0)}
    radio_j = {"a": 1.0, "b": 2.0}

    boards = TrueBoards(dict.fromkeys(fronts, TRUTH), fronts, fronts, radio_j)
    high, low = boards.cost_at_maxn(waits_low=False), boards.cost_at_maxn(waits_low=True)

    assert high.round_s == low.round_s == fronts["b"].link_s + fronts["b"].maxn.work_s
    for board, front in fronts.items():
        resting_s = high.round_s - front.maxn.work_s
        assert high.energies_j[board] == pytest.approx(radio_j[board] + front.maxn.work_j + 3.0 * resting_s)
        assert high.energies_j[board] - low.energies_j[board] == pytest.approx((3.0 - 2.0) * resting_s)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=3),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 10),
)
def test_the_best_presets_are_those_of_trying_all(fleet_of, limit_s):
    options = {
        f"b{i}": [PresetWork(float(t), float(t * (p + idle)), float(idle)) for t, p, idle in of_board]
        for i, of_board in enumerate(fleet_of)
    }

    def aim(spent: FleetCost) -> float:
        return spent.energy_j

    clients = RoundClients.from_boards(dict.fromkeys(options, 0.0), dict.fromkeys(options, 0.0))
    found = find_best_presets(clients, stack_presets(list(options.values())), float(limit_s), aim)

    limit = max(float(limit_s), *(min(o.work_s for o in of_board) for of_board in options.values()))
    energies_j = []
    for picked in itertools.product(*options.values()):
        round_s = max(option.work_s for option in picked)
        if round_s <= limit:
            energies_j.append(sum(o.work_j + o.idle_w * (round_s - o.work_s) for o in picked))
    assert found.energy_j == pytest.approx(min(energies_j))
    assert found.round_s <= limit


def test_a_preset_that_is_maxn_counts_only_where_maxn_may():
    reports = {"a": report_of("a", in_mode(MAXN, STEPS))}

    judged = compare_round(row_of(), reports, {"a": TRUTH}, PolicySpec(name="balanced", time_weight=1.0))

    assert judged.preset.round_s == pytest.approx(judged.maxn.round_s)
    assert judged.capped.round_s == pytest.approx(2.0 + (STEPS + WARM_UP_STEPS) * 2.0)


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
def test_no_split_into_two_modes_that_ends_in_time_takes_less_than_the_oracle(points, steps, room_s):
    front = front_of(points)
    tried = splits(front, steps, room_s)

    found = find_least_energy_work(front, steps, front.link_s + room_s)

    if tried:
        work_s, work_j, _ = found
        above_j = work_j - IDLE_W * work_s
        finest = max(above_j, *(joules for _, joules in tried))
        assert above_j <= min(joules for _, joules in tried) + 1e-9 * finest
        assert work_s <= room_s * (1 + 1e-8)
    else:
        assert found[0] == pytest.approx(min(point.work_s for point in front.points))


@given(POINTS, st.integers(1, 12), st.floats(1.0, 120.0))
def test_the_oracle_takes_no_less_than_any_shares_of_its_modes_could(points, steps, room_s):
    front = front_of(points)
    work_s, work_j, _ = find_least_energy_work(front, steps, front.link_s + room_s)
    each = [(point.work_s, point.work_j - IDLE_W * point.work_s) for point in front.points]
    if min(t for t, _ in each) > room_s:
        return

    shares = [e1 + (e2 - e1) * (room_s - t1) / (t2 - t1) for t1, e1 in each for t2, e2 in each if t1 <= room_s < t2]
    least_j = min([e for t, e in each if t <= room_s] + shares)

    assert work_j - IDLE_W * work_s >= least_j * (1 - 1e-6)


def test_each_board_mixes_at_the_deadline_that_was_planned_for_all():
    fronts = {"a": true_front(), "b": true_front(1.3)}
    policy = PolicySpec(name="least-energy", max_slowdown=1.0)

    boards = TrueBoards(dict.fromkeys(fronts, TRUTH), fronts, fronts, dict.fromkeys(fronts, 0.0))
    found = boards.plan_work(policy, 1e9, plausible=True)

    assert found["b"][0] == pytest.approx(fronts["b"].maxn.work_s), "the slowest board has no time to spare"
    alone = [point for point in fronts["a"].points if point.work_s <= fronts["b"].maxn.work_s]
    room_s = fronts["b"].maxn.work_s
    work_s, work_j, _ = found["a"]
    assert work_j + IDLE_W * (room_s - work_s) < min(point.work_j + IDLE_W * (room_s - point.work_s) for point in alone)


def test_implausible_modes_are_not_among_the_oracles_but_maxn_always_is():
    marked = TRUTH.plausible.copy()
    marked[:2] = False
    told = dataclasses.replace(TRUTH, plausible=marked).filter_plausible_points(true_front())

    assert [point.mode for point in told.points] == [SURFACE.modes[0], SURFACE.modes[2]]
    assert TRUTH.filter_plausible_points(true_front()) == true_front()
