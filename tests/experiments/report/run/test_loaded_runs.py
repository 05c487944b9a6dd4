"""The cost to a target accuracy is counted in one way: at the first round that holds it, for the whole fleet."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.report.run.loaded_runs import (
    Course,
    build_course,
    find_common_goal,
    find_cost,
    find_highest_target,
    load_run,
)
from experiments.sweeps.arena import read_course

LUCKY = Course((0.9, 0.5, 0.5, 0.9, 0.9), (1.0, 2.0, 3.0, 4.0, 5.0), (1.0, 2.0, 3.0, 4.0, 5.0))
STEADY = Course((0.5, 0.8, 0.9, 0.9, 0.9), (10.0, 20.0, 30.0, 40.0, 50.0), (1.0, 2.0, 3.0, 4.0, 5.0))


def test_the_cost_to_a_target_is_at_the_first_round_that_holds_it():
    assert find_cost(STEADY, 0.9) == (30.0, 3.0, None)
    assert find_cost(STEADY, 0.95) is None
    assert find_cost(LUCKY, 0.9) is None, "one evaluation alone is luck"


@given(st.lists(st.floats(0.0, 1.0), max_size=8))
def test_a_run_reaches_its_highest_target_and_none_above(accuracy):
    places = tuple(map(float, range(len(accuracy))))
    course = Course(tuple(accuracy), places, places)
    target = find_highest_target(course)

    assert (target is None) == (not accuracy)
    if target is not None:
        assert find_cost(course, target) is not None
        assert find_cost(course, target + 1e-9) is None


def test_the_report_and_the_arena_count_the_same_cost(make_run):
    folder = make_run(rounds=4)
    run, course = load_run(folder), read_course(folder)
    goal = find_common_goal([run])

    assert (goal.time_to_goal_s(run), goal.energy_to_goal_j(run)) == find_cost(course, goal.accuracy)[:2]


def test_boards_at_rest_and_evaluations_count(make_run):
    (first, *_) = load_run(make_run()).rounds
    row = dataclasses.replace(first, resting_energy_j=7.0, evaluation_energy_j=2.0)

    assert build_course([row]).joules == pytest.approx((first.energy_j + 9.0,))


def test_a_run_that_trains_nothing_has_no_course(make_run):
    folder = make_run(rounds=2)
    rounds = [dataclasses.replace(row, accuracy=None) for row in load_run(folder).rounds]

    assert find_highest_target(build_course(rounds)) is None
