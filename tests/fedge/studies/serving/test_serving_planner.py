"""The plan for a person: the best choice, what limits it, what would hold where nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contracts.jobs import SIZES, pair
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.serving.trial_search import ServingProblem
from fedge.serving.trial_search import find_best_choice as best_choice
from fedge.studies.serving.serving_planner import (
    MeasuredServiceDemand,
    ServingJobs,
    enumerate_choices,
    find_best_option,
    find_binding_limits,
    find_nearest_limits,
    is_better,
    list_runners_up,
    vary_limits,
)

PAIR = pair()


def demand(rate_hz: float = 60.0, latency_s: float = 0.5, name: str = "it") -> MeasuredServiceDemand:
    return MeasuredServiceDemand(name, rate_hz, latency_s, SIZES, PAIR.infer_s, PAIR.infer_w)


def jobs(*services: MeasuredServiceDemand, trains: bool = True) -> ServingJobs:
    return ServingJobs(PAIR.modes, services, PAIR.train_s if trains else None, PAIR.train_w if trains else None)


limits = st.tuples(st.floats(14.0, 40.0), st.floats(0.05, 1.0), st.floats(10.0, 200.0))


@given(limits, st.booleans())
def test_with_one_service_the_choice_is_the_optimum_of_the_problem(
    limit: tuple[float, float, float], trains: bool
) -> None:
    power_w, latency_s, rate_hz = limit
    truth = best_choice(
        ServingProblem("concurrent" if trains else "infer", power_w, latency_s, rate_hz), pair(trains=trains)
    )
    found = find_best_option(jobs(demand(rate_hz, latency_s), trains=trains), power_w)
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
def test_where_nothing_holds_moving_a_limit_as_told_makes_something_hold(limit: tuple[float, float, float]) -> None:
    power_w, latency_s, rate_hz = limit
    asked = jobs(demand(rate_hz, latency_s))
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
            assert find_best_option(jobs(demand(rate_hz, eased)), power_w) is not None
            assert find_best_option(jobs(demand(rate_hz, move.needed * 0.999)), power_w) is None
        elif move.limit == "rate":
            assert find_best_option(jobs(demand(move.needed, latency_s)), power_w) is not None
        else:
            assert find_best_option(jobs(demand(rate_hz, latency_s * move.factor * (1 + 1e-9))), eased) is not None


def test_a_limit_that_binds_is_named_and_one_that_does_not_is_not() -> None:
    tight = jobs(demand(60.0, 0.9))
    chosen = find_best_option(tight, 20.0)
    assert chosen is not None
    assert find_binding_limits(tight, 20.0, chosen) == ["power"]
    free = find_best_option(tight, 500.0)
    assert free is not None
    assert "power" not in find_binding_limits(tight, 500.0, free)


def test_more_power_never_gives_less_and_neighbours_show_it() -> None:
    asked = jobs(demand())
    now = find_best_option(asked, 24.0)
    assert now is not None
    by_factor = {one.factor: one.option for one in vary_limits(asked, 24.0) if one.limit == "power"}
    assert by_factor.keys() == {0.8, 0.9, 1.1, 1.25}
    for factor, option in by_factor.items():
        if option is not None:
            assert (option.steps >= now.steps) if factor > 1 else (option.steps <= now.steps)


def test_runners_up_hold_the_limits_too_and_none_is_better() -> None:
    asked = jobs(demand())
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


def test_training_alone_takes_the_fastest_mode_within_the_power() -> None:
    found = find_best_option(jobs(), 25.0)
    assert found is not None
    assert found.train_s == PAIR.train_s[PAIR.train_w <= 25.0].min()
    assert (found.batch_sizes, found.latency_s, found.share) == ((), (), 0.0)
    assert [move.limit for move in find_nearest_limits(jobs(), 5.0)] == ["power"]


def test_two_services_are_chosen_by_minibatches_per_second() -> None:
    asked = jobs(demand(30.0, 1.0, "a"), demand(60.0, 0.6, "b"))
    found = enumerate_choices(asked)
    chosen = find_best_option(asked, 30.0)
    assert chosen is not None
    holds = found.choices.holds & (found.choices.power_w <= 30.0)
    assert chosen.steps_per_s == found.choices.steps_per_s[holds].max() > 0
    assert len(chosen.batch_sizes) == len(chosen.latency_s) == 2


def test_a_board_that_cannot_keep_up_in_any_mode_is_told_from_one_that_is_late() -> None:
    flooded = jobs(demand(1e6, 0.5))
    assert find_best_option(flooded, 100.0) is None
    assert find_nearest_limits(flooded, 100.0) == []
    late = replace(flooded, services=(demand(60.0, 0.001),))
    assert next(move.limit for move in find_nearest_limits(late, 100.0)) == "latency"
