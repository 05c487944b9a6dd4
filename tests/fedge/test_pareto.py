"""Pareto fronts against brute force, and the offer that a board makes from its predictions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.errors import FedgeError
from fedge.pareto import build_front, find_nearest_row, find_undominated_rows, front_mask
from fedge.types import Modes, PowerMode, Predictions

costs = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), max_size=30)


def table(step_s: list[float], power_w: list[float]) -> Predictions:
    n = len(step_s)
    knobs = np.array([[1 + i % 8, 400.0 + 10 * i, 300.0 + 5 * i, 2000.0] for i in range(n)])
    spread = np.linspace(0.0, 0.1, n)
    return Predictions(Modes(knobs), np.array(step_s), np.array(power_w), spread, spread)


def random_table(n: int, seed: int = 1) -> Predictions:
    rng = np.random.default_rng(seed)
    step_s = rng.uniform(0.05, 1.0, n)
    return table(list(step_s), list(5.0 + 2.0 / step_s * rng.uniform(1.0, 2.0, n)))


def hyperbola(n: int) -> Predictions:
    """Every mode is on the front when the board draws nothing idle: the slower, the cheaper."""
    step_s = np.linspace(0.1, 1.0, n)
    return table(list(step_s), list(step_s**-2.0))


def beaten(a: np.ndarray, b: np.ndarray, i: int) -> bool:
    """Row i is beaten by a better row, or is a later copy of an equal one."""
    for j in range(len(a)):
        at_most = a[j] <= a[i] and b[j] <= b[i]
        if at_most and (a[j] < a[i] or b[j] < b[i] or j < i):
            return True
    return False


ANY_COST = st.one_of(
    st.sampled_from([0.0, 1.0, 1.5, 2.0, np.inf, -np.inf, np.nan]), st.floats(-1e6, 1e6, allow_subnormal=False)
)


@given(st.lists(st.tuples(ANY_COST, ANY_COST), max_size=25), st.lists(st.integers(0, 24), max_size=10))
def test_the_front_of_any_costs_is_what_brute_force_finds_among_the_finite_rows(rows, copied):
    a, b = np.array([*rows, *(rows[i] for i in copied if i < len(rows))], dtype=np.float64).reshape(-1, 2).T
    finite = np.flatnonzero(np.isfinite(a) & np.isfinite(b))

    expected = {int(row) for i, row in enumerate(finite) if not beaten(a[finite], b[finite], i)}

    assert set(np.flatnonzero(front_mask(a, b)).tolist()) == expected


@given(st.integers(1, 4).flatmap(lambda k: st.lists(st.tuples(*[st.integers(0, 3)] * k), max_size=25)), st.booleans())
def test_rows_that_no_other_undercuts_in_any_cost_are_what_brute_force_finds(rows, repeated):
    table = np.array([(*row, row[-1]) if repeated else row for row in rows], dtype=np.float64)
    if not len(table):
        return
    expected = {
        i
        for i, row in enumerate(rows)
        if not any(
            all(a <= b for a, b in zip(one, row, strict=True)) and (one != row or j < i) for j, one in enumerate(rows)
        )
    }
    found = find_undominated_rows(table).tolist()
    assert set(found) == expected
    assert found == sorted(found, key=lambda i: rows[i])


@pytest.mark.parametrize("seed", range(6))
def test_the_front_of_hundreds_of_modes_is_what_brute_force_finds(seed):
    """Time and energy as of a board: one falls about as the other rises, and clocks make ties of some."""
    rng = np.random.default_rng(seed)
    a = np.round(rng.uniform(0.05, 1.0, 400), 2 if seed % 2 else 6)
    b = np.round((rng.uniform(0.5, 3.0) * a + 1.0 / a) * rng.uniform(1.0, 1.2, 400), 1 if seed % 2 else 6)
    a[rng.integers(0, 400, 5)] = np.inf

    at_most = (a[:, None] <= a) & (b[:, None] <= b)
    better = at_most & ((a[:, None] < a) | (b[:, None] < b) | (np.arange(400)[:, None] < np.arange(400)))

    np.testing.assert_array_equal(front_mask(a, b), np.isfinite(a) & ~better.any(axis=0))


@given(st.lists(st.builds(PowerMode, st.integers(0, 9), *[st.floats(0.0, 3000.0)] * 3), max_size=12))
def test_the_nearest_row_that_is_kept_is_the_one_that_is_searched_for(asked):
    modes = random_table(50).modes
    largest = modes.knobs.max(axis=0)

    for mode in [*asked, *asked[::-1]]:
        knobs = np.array([mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz])
        row = np.argmin((np.abs(modes.knobs - knobs) / largest).sum(axis=1))
        assert find_nearest_row(modes, mode) == row


@pytest.mark.parametrize("seed", range(5))
def test_an_offer_runs_from_fastest_to_cheapest_and_no_mode_beats_a_point(seed):
    predictions = random_table(200, seed)
    front = build_front(predictions, 10, 4.0, 1.5, predictions.modes[0], limit=None)
    work_s = 10 * predictions.step_s
    above_j = work_s * (predictions.power_w - 4.0)
    times = [p.work_s for p in front.points]
    aboves = [p.work_j - 4.0 * p.work_s for p in front.points]
    assert times == sorted(times)
    assert aboves == sorted(aboves, reverse=True)
    assert times[0] == work_s.min()
    assert aboves[-1] == pytest.approx(above_j.min())
    for t, a in zip(times, aboves, strict=True):
        assert not ((work_s < t - 1e-9) & (above_j < a - 1e-9)).any()


def test_an_offer_carries_its_link_idle_power_and_maxn():
    predictions = table([1.0, 0.5, 0.8], [5.0, 20.0, 30.0])
    front = build_front(predictions, 4, 2.0, 3.0, predictions.modes[2])
    assert (front.idle_w, front.link_s) == (2.0, 3.0)
    assert (front.maxn.mode, front.maxn.work_s, front.maxn.work_j) == (predictions.modes[2], 3.2, pytest.approx(96.0))
    assert [p.work_s for p in front.points] == [2.0, 4.0]


def test_what_a_board_would_draw_anyway_does_not_make_a_slow_mode_cheap():
    """By joules alone the slow mode costs more; above idling it costs less."""
    predictions = table([1.0, 2.0], [20.0, 11.0])
    assert len(build_front(predictions, 1, 0.0, 0.0, predictions.modes[0]).points) == 1
    assert len(build_front(predictions, 1, 10.0, 0.0, predictions.modes[0]).points) == 2


@pytest.mark.parametrize("limit", [2, 7, 64, 99])
def test_a_long_front_is_thinned_to_the_limit_and_keeps_both_ends(limit):
    predictions = hyperbola(100)
    full = build_front(predictions, 10, 0.0, 0.0, predictions.modes[0], limit=None).points
    thin = build_front(predictions, 10, 0.0, 0.0, predictions.modes[0], limit=limit).points
    assert len(full) == 100
    assert len(thin) == limit
    assert (thin[0], thin[-1]) == (full[0], full[-1])
    ranks = [full.index(p) for p in thin]
    assert max(np.diff(ranks)) - min(np.diff(ranks)) <= 1


def test_a_front_has_at_most_64_points_unless_told_otherwise():
    predictions = hyperbola(1000)
    assert len(build_front(predictions, 10, 0.0, 0.0, predictions.modes[0]).points) == 64


@pytest.mark.parametrize("power", [False, True])
def test_a_prediction_that_has_exploded_is_not_offered(power):
    """At idle power waiting costs as much as working, so that every slower mode would be on the front."""
    predictions = table([0.1, 0.2, 30.0, 2e10], [6.0, 5.9, 5.8, 5.7])
    front = build_front(predictions, 10, 6.0, 0.0, predictions.modes[0], power=power)
    assert [point.work_s for point in front.points] == pytest.approx([1.0, 2.0, 300.0])


def test_a_table_of_one_mode_offers_it():
    predictions = table([0.5], [10.0])
    front = build_front(predictions, 2, 1.0, 0.0, PowerMode(12, 2201.6, 1300.5, 3199.0))
    assert front.points == (front.maxn,)


def test_a_table_without_a_finite_prediction_says_so():
    predictions = table([np.nan, np.inf], [1.0, 2.0])
    with pytest.raises(FedgeError, match="none of the 2 modes has a finite prediction"):
        build_front(predictions, 1, 0.0, 0.0, predictions.modes[0])


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(8, 40)), min_size=1, max_size=18))
def test_with_power_the_offer_also_holds_every_mode_that_none_beats_in_time_and_watts(rows):
    predictions = table([t / 4 for t, _ in rows], [float(w) for _, w in rows])
    plain, both = (build_front(predictions, 8, 2.0, 1.0, predictions.modes[0], power=power) for power in (False, True))
    watts = {(t / 4 * 8, w) for t, w in rows if not any((u <= t and v < w) or (u < t and v <= w) for u, v in rows)}
    assert {(p.work_s, round(p.work_j / p.work_s, 9)) for p in both.points} >= watts
    assert set(plain.points) <= set(both.points)
    assert [p.work_s for p in both.points] == sorted(p.work_s for p in both.points)


def test_with_power_each_of_the_two_fronts_keeps_the_limit():
    predictions = random_table(500)
    found = build_front(predictions, 8, 2.0, 1.0, predictions.modes[0], power=True, limit=5)
    assert min(p.work_j / p.work_s for p in found.points) == pytest.approx(predictions.power_w.min())
    assert len(found.points) <= 10
