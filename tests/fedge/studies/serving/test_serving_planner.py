"""The plan for a person: the best choice, what limits it, what would hold where nothing does."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from contracts.jobs import SIZES, pair
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.serving.job_pair import JobPair
from fedge.serving.trial_search import ServingProblem, evaluate_choices
from fedge.serving.trial_search import find_best_choice as best_choice
from fedge.studies.serving.interleaving_advice import SimulatedService, simulate_plan
from fedge.studies.serving.serving_planner import (
    MeasuredServiceDemand,
    ServingJobs,
    enumerate_choices,
    evaluate_combinations,
    find_best_option,
    find_binding_limits,
    find_nearest_limits,
    is_better,
    list_runners_up,
    vary_limits,
)
from fedge.types import Modes
from fedge.worker.arrivals import Arrivals

PAIR = pair()


def build_demand(rate_hz: float = 60.0, latency_s: float = 0.5, name: str = "it") -> MeasuredServiceDemand:
    return MeasuredServiceDemand(name, rate_hz, latency_s, SIZES, PAIR.infer_s, PAIR.infer_w)


def jobs(*services: MeasuredServiceDemand, trains: bool = True) -> ServingJobs:
    return ServingJobs(PAIR.modes, services, PAIR.train_s if trains else None, PAIR.train_w if trains else None)


limits = st.tuples(st.floats(14.0, 40.0), st.floats(0.05, 1.0), st.floats(10.0, 200.0))


@given(limits, st.booleans())
def test_with_one_service_the_choice_is_the_optimum_of_the_problem(limit, trains):
    power_w, latency_s, rate_hz = limit
    truth = best_choice(
        ServingProblem("concurrent" if trains else "infer", power_w, latency_s, rate_hz), pair(trains=trains)
    )
    found = find_best_option(jobs(build_demand(rate_hz, latency_s), trains=trains), power_w)
    assert (found is None) == (truth is None)
    if found is None or truth is None:
        return
    assert truth.batch is not None
    assert found.infer_s[0] == pytest.approx(PAIR.infer_s[truth.batch, truth.row])
    if trains:
        left_s = SIZES[truth.batch] / rate_hz - PAIR.infer_s[truth.batch, truth.row]
        assert found.steps == max(0, left_s // PAIR.train_s[truth.row])


@settings(max_examples=30)
@given(limits)
def test_where_nothing_holds_moving_a_limit_as_told_makes_something_hold(limit):
    power_w, latency_s, rate_hz = limit
    asked = jobs(build_demand(rate_hz, latency_s))
    if find_best_option(asked, power_w) is not None:
        return
    moves = find_nearest_limits(asked, power_w)
    assert [abs(move.factor - 1) > 0 for move in moves] == [True] * len(moves)
    for move in moves:
        eased = move.needed * (1 + 1e-9)
        if move.limit == "power":
            assert find_best_option(asked, eased) is not None
            assert find_best_option(asked, move.needed * 0.999) is None
        elif move.limit == "latency":
            assert find_best_option(jobs(build_demand(rate_hz, eased)), power_w) is not None
            assert find_best_option(jobs(build_demand(rate_hz, move.needed * 0.999)), power_w) is None
        elif move.limit == "rate":
            assert find_best_option(jobs(build_demand(move.needed, latency_s)), power_w) is not None
        else:
            assert (
                find_best_option(jobs(build_demand(rate_hz, latency_s * move.factor * (1 + 1e-9))), eased) is not None
            )


def test_a_limit_that_binds_is_named_and_one_that_does_not_is_not():
    tight = jobs(build_demand(60.0, 0.9))
    chosen = find_best_option(tight, 20.0)
    assert chosen is not None
    assert find_binding_limits(tight, 20.0, chosen) == ["power"]
    free = find_best_option(tight, 500.0)
    assert free is not None
    assert "power" not in find_binding_limits(tight, 500.0, free)


def test_more_power_never_gives_less_and_neighbours_show_it():
    asked = jobs(build_demand())
    now = find_best_option(asked, 24.0)
    assert now is not None
    by_factor = {one.factor: one.option for one in vary_limits(asked, 24.0) if one.limit == "power"}
    assert by_factor.keys() == {0.8, 0.9, 1.1, 1.25}
    for factor, option in by_factor.items():
        if option is not None:
            assert (option.steps >= now.steps) if factor > 1 else (option.steps <= now.steps)


def test_runners_up_hold_the_limits_too_and_none_is_better():
    asked = jobs(build_demand())
    found = enumerate_choices(asked)
    order = found.rank_places(28.0)
    others = list_runners_up(found, order)
    assert others
    for option in others:
        assert option.power_w <= 28.0
        assert option.latency_s[0] <= 0.5
        assert not is_better(asked, option, found.build_option(order[0]))
    assert (
        len({(option.row, option.batch_sizes) for option in [found.build_option(order[0]), *others]}) == len(others) + 1
    )


def test_training_alone_takes_the_fastest_mode_within_the_power():
    found = find_best_option(jobs(), 25.0)
    assert found.train_s == PAIR.train_s[PAIR.train_w <= 25.0].min()
    assert (found.batch_sizes, found.latency_s, found.share) == ((), (), 0.0)
    assert [move.limit for move in find_nearest_limits(jobs(), 5.0)] == ["power"]


def test_two_services_are_chosen_by_minibatches_per_second():
    asked = jobs(build_demand(30.0, 1.0, "a"), build_demand(60.0, 0.6, "b"))
    found = enumerate_choices(asked)
    chosen = find_best_option(asked, 30.0)
    holds = found.choices.holds & (found.choices.power_w <= 30.0)
    assert chosen.steps_per_s == found.choices.steps_per_s[holds].max() > 0
    assert len(chosen.batch_sizes) == len(chosen.latency_s) == 2


def test_batches_that_pile_up_are_no_reason_to_ease_a_limit_without_end():
    modes = Modes(np.array([[4.0, 1000.0, 500.0, 1600.0]]))
    busy = [
        MeasuredServiceDemand(name, rate_hz, 1.0, (1,), np.array([[infer_s]]), np.array([[10.0]]))
        for name, rate_hz, infer_s in (("a", 100.0, 0.00995), ("b", 0.01, 0.4))
    ]
    asked = ServingJobs(modes, tuple(busy), None, None)

    assert enumerate_choices(asked).choices.keeps_up.all()
    assert "latency" not in [move.limit for move in find_nearest_limits(asked, 20.0)]


def test_where_batches_pile_up_within_the_power_limit_alone_both_limits_are_eased():
    modes = Modes(np.array([[4.0, 1000.0, 500.0, 1600.0], [4.0, 1000.0, 1000.0, 1600.0]]))
    busy = [
        MeasuredServiceDemand(name, rate_hz, 0.01, (1,), np.array([infer_s]), np.array([[10.0, 30.0]]))
        for name, rate_hz, infer_s in (("a", 100.0, [0.00995, 0.002]), ("b", 0.01, [0.4, 0.2]))
    ]

    (move,) = find_nearest_limits(ServingJobs(modes, tuple(busy), None, None), 20.0)

    assert move.limit == "both"
    assert 20.0 < move.needed < np.inf


def test_a_board_that_cannot_keep_up_in_any_mode_is_told_from_one_that_is_late():
    flooded = jobs(build_demand(1e6, 0.5))
    assert find_best_option(flooded, 100.0) is None
    assert find_nearest_limits(flooded, 100.0) == []
    late = replace(flooded, services=(build_demand(60.0, 0.001),))
    assert next(move.limit for move in find_nearest_limits(late, 100.0)) == "latency"


ALL_SIZES = (1, 4, 16, 32, 64)


def demand(name: str, rate_hz: float, latency_s: float, base_s: float, each_s: float) -> MeasuredServiceDemand:
    """A service whose batches take ``base_s`` and ``each_s`` per request, in one mode."""
    seconds = np.array([[base_s + each_s * size] for size in ALL_SIZES])
    return MeasuredServiceDemand(name, rate_hz, latency_s, ALL_SIZES, seconds, np.full_like(seconds, 20.0))


@settings(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.floats(0.05, 2.0),
    st.floats(20.0, 120.0),
    st.floats(15.0, 45.0),
    st.booleans(),
)
def test_a_service_alone_is_judged_by_the_rules_of_fulcrum(seed, latency_s, rate_hz, power_w, trains):
    rng = np.random.default_rng(seed)
    infer_s = np.sort(rng.uniform(0.005, 1.0, (5, 12)), axis=0)
    infer_w, train_s, train_w = rng.uniform(10, 50, (5, 12)), rng.uniform(0.02, 0.3, 12), rng.uniform(10, 50, 12)
    none = np.empty(0)
    pair = JobPair(
        Modes(np.ones((12, 4))), ALL_SIZES, train_s if trains else none, train_w if trains else none, infer_s, infer_w
    )
    truth = evaluate_choices(ServingProblem("concurrent" if trains else "infer", power_w, latency_s, rate_hz), pair)
    service = MeasuredServiceDemand("it", rate_hz, latency_s, ALL_SIZES, infer_s, infer_w)
    found = evaluate_combinations([service], *((train_s, train_w) if trains else ()))
    assert (found.holds & (found.power_w <= power_w) == truth.feasible).all()
    # Beyond the limits both rules say something, but nobody asks.
    assert found.steps[truth.feasible] == pytest.approx(truth.steps[truth.feasible])
    assert found.steps_per_s[truth.feasible] == pytest.approx(truth.steps_per_s[truth.feasible])


services = st.builds(
    demand,
    st.just(""),
    st.floats(5.0, 120.0),
    st.floats(0.1, 3.0),
    st.floats(0.002, 0.05),
    st.floats(0.0005, 0.006),
)


@settings(max_examples=25)
@given(st.lists(services, min_size=1, max_size=3), st.floats(0.01, 0.3))
def test_what_is_said_to_hold_is_held_by_the_interleaver_and_trains_as_much(asked, train_s):
    asked = [
        MeasuredServiceDemand(f"s{i}", one.rate_hz, one.latency_s, ALL_SIZES, one.infer_s, one.infer_w)
        for i, one in enumerate(asked)
    ]
    found = evaluate_combinations(asked, np.array([train_s]), np.array([20.0]))
    holding = [c for c in range(len(found.places)) if found.holds[c, 0]]
    for c in holding[:: max(1, len(holding) // 3)]:
        trains = found.steps_per_s[c, 0] > 0
        served = tuple(
            SimulatedService(
                one.name, ALL_SIZES[p], one.latency_s, Arrivals("constant", one.rate_hz), float(one.infer_s[p, 0])
            )
            for one, p in zip(asked, found.places[c], strict=True)
        )
        seen = simulate_plan(served, train_s if trains else None, 30.0)
        assert [(one.late, one.dropped) for one in seen.services] == [(0, 0)] * len(asked)
        if len(asked) > 1:  # one alone lets a minibatch run past its window as long as its budget allows it
            for one, needed in zip(seen.services, found.needed_s[:, c, 0], strict=True):
                assert one.worst_s <= needed + 1e-6
        assert seen.steps_per_s >= 0.95 * found.steps_per_s[c, 0]


def test_every_combination_of_batch_sizes_is_there_once():
    two = [demand("a", 30.0, 1.0, 0.01, 0.001), demand("b", 60.0, 1.0, 0.01, 0.001)]
    found = evaluate_combinations(two)
    assert found.places == tuple(itertools.product(range(5), range(5)))
    assert found.needed_s.shape == (2, 25, 1)
    assert not found.steps.any()
    assert not found.steps_per_s.any()


def test_where_a_minibatch_is_too_long_the_services_stand_but_nothing_is_trained():
    two = [demand("a", 30.0, 0.4, 0.01, 0.001), demand("b", 60.0, 0.4, 0.01, 0.001)]
    found = evaluate_combinations(two, np.array([0.5]), np.array([30.0]))
    assert found.holds.any()
    assert not found.steps.any()
    assert not found.steps_per_s.any()


def test_no_service_or_more_than_three_are_refused():
    for count in (0, 4):
        with pytest.raises(BadInput, match="1 to 3"):
            evaluate_combinations([demand("a", 30.0, 1.0, 0.01, 0.001)] * count)
