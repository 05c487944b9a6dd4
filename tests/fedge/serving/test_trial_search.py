"""The best choice is that of brute force; a search measures what it asks for, each trial once."""

import itertools
import math

import numpy as np
import pytest
from contracts.jobs import pair
from contracts.strategy import FAMILIES, made_up_pair, made_up_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.serving.job_pair import JobPair
from fedge.serving.trial_search import (
    ProblemFamily,
    ServingProblem,
    Trial,
    TrialReading,
    TrialSearch,
    TrialSearchResult,
    default_problems,
    evaluate_choices,
    find_best_choice,
    find_best_trial,
    holds_limits,
    measure_from_table,
    meets_latency,
    parse_problems,
    request_trial,
    run_search,
    trial_cost,
)
from fedge.types import Modes

VALUES = ((2, 8), (500.0, 2000.0), (300.0, 900.0), (800.0, 3200.0))


def tried(pair: JobPair, family: ProblemFamily) -> dict[Trial, TrialReading]:
    places = range(len(pair.batch_sizes)) if family != "train" else (None,)
    measure = measure_from_table(pair)
    return {t: measure(t) for t in (Trial(row, place) for row in range(len(pair.modes)) for place in places)}


@given(seed=st.integers(0, 10**6), family=st.sampled_from(FAMILIES))
@settings(max_examples=80)
def test_all_choices_at_once_are_judged_as_one_by_one(seed, family):
    pair, problem = made_up_pair(seed, family, VALUES), made_up_problem(seed, family)
    every, each = evaluate_choices(problem, pair), tried(pair, family)

    for trial, seen in each.items():
        at = trial.batch or 0, trial.row
        size = None if trial.batch is None else pair.batch_sizes[trial.batch]
        assert every.feasible[at] == holds_limits(problem, size, seen)
        if family == "concurrent":
            assert every.steps[at] == -trial_cost(problem, size, seen)[0]
    top, found = find_best_choice(problem, pair), find_best_trial(problem, pair.batch_sizes, each)
    assert (top is None) == (found is None)
    if top is not None and found is not None:
        sizes = [None if one.batch is None else pair.batch_sizes[one.batch] for one in (top, found)]
        seen = [each[Trial(one.row, one.batch)] for one in (top, found)]
        assert trial_cost(problem, sizes[0], seen[0]) == trial_cost(problem, sizes[1], seen[1])


def test_a_limit_that_is_met_exactly_holds_and_one_that_is_missed_by_a_hair_does_not():
    seen = TrialReading(0.25, 20.0, 0.25, 30.0)

    assert holds_limits(ServingProblem("concurrent", 30.0, 0.75, 2.0), 1, seen)
    assert not holds_limits(ServingProblem("concurrent", 29.99, 0.75, 2.0), 1, seen)
    assert not holds_limits(ServingProblem("concurrent", 30.0, 0.7499, 2.0), 1, seen)
    assert meets_latency(ServingProblem("infer", 30.0, 9.0, 4.0), 1, seen)
    assert not meets_latency(ServingProblem("infer", 30.0, 9.0, 4.001), 1, seen)


def test_power_is_that_of_the_job_that_draws_more_and_of_the_one_that_there_is():
    nan = math.nan
    watts = [
        TrialReading(1.0, 20.0, 1.0, 30.0).power_w,
        TrialReading(1.0, 20.0, nan, nan).power_w,
        TrialReading(nan, nan, 1.0, 30.0).power_w,
    ]

    assert watts == [30.0, 20.0, 30.0]


def test_of_equal_minibatches_the_shorter_batch_is_best_and_nothing_feasible_is_none():
    knobs = Modes(np.array(list(itertools.product((2.0, 4.0), (1.0,), (1.0,), (1.0,)))))
    ones = np.ones(2)
    pair = JobPair(knobs, (8,), 0.3 * ones, 20.0 * ones, np.array([[0.39, 0.2]]), np.array([[20.0, 20.0]]))

    choice = find_best_choice(ServingProblem("concurrent", 25.0, 2.0, 8.0), pair)

    assert evaluate_choices(ServingProblem("concurrent", 25.0, 2.0, 8.0), pair).steps.tolist() == [[2.0, 2.0]]
    assert (choice.row, choice.batch) == (1, 0)
    assert find_best_choice(ServingProblem("concurrent", 19.0, 2.0, 8.0), pair) is None


def seen_of(trial: Trial) -> TrialReading:
    return TrialReading(float(trial.row), 0.0, 0.0, 0.0)


def test_what_is_asked_again_is_told_from_memory_and_counted_once():
    measured = []

    def search() -> TrialSearch:
        first = yield (Trial(3), Trial(1), Trial(3))
        assert [seen.train_s for seen in first] == [3.0, 1.0, 3.0]
        again = yield from request_trial(Trial(1))
        assert again.train_s == 1.0
        yield ()
        return Trial(1)

    found = run_search(search(), lambda trial: measured.append(trial) or seen_of(trial))

    assert found == TrialSearchResult(Trial(1), (Trial(3), Trial(1)))
    assert measured == [Trial(3), Trial(1)]


def test_a_search_may_answer_without_a_trial():
    def search() -> TrialSearch:
        return None
        yield ()

    assert run_search(search(), seen_of) == TrialSearchResult(None, ())


def test_a_table_says_nothing_of_a_job_that_there_is_none_of():
    both, alone, served = pair(), pair(infers=False), pair(trains=False)

    seen = measure_from_table(both)(Trial(5, 2))
    assert (seen.train_s, seen.infer_w) == (both.train_s[5], both.infer_w[2, 5])
    assert math.isnan(measure_from_table(alone)(Trial(5)).infer_s)
    assert measure_from_table(alone)(Trial(5)).power_w == alone.train_w[5]
    assert math.isnan(measure_from_table(served)(Trial(5, 0)).train_w)


@pytest.mark.parametrize(("family", "count"), [("train", 41), ("infer", 5863), ("concurrent", 6560)])
def test_the_grids_are_as_large_as_published_and_hold_no_problem_twice(family, count):
    problems = default_problems(family)

    assert len(problems) == len(set(problems)) == count
    assert {problem.family for problem in problems} == {family}
    assert {problem.power_w for problem in problems} == {float(watts) for watts in range(10, 51)}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (("both", 30.0), "one of train, infer, concurrent"),
        (("train", 0.0), "problem.power_w: got 0.0"),
        (("train", float("nan")), "problem.power_w: got nan"),
        (("train", 30.0, 0.5, 60.0), "with training alone"),
        (("infer", 30.0), "problem.latency_s: got None"),
        (("concurrent", 30.0, 0.5), "problem.rate_hz: got None"),
        (("concurrent", 30.0, 0.5, float("inf")), "problem.rate_hz: got inf"),
    ],
)
def test_a_problem_without_the_limits_of_its_family_is_refused(fields, words):
    with pytest.raises(BadInput) as error:
        ServingProblem(*fields)
    assert words in str(error.value)


def test_without_a_family_a_rate_decides():
    given = [{"power_w": 30}, {"power_w": "30", "latency_s": 0.5, "rate_hz": 60}, {"family": "infer", **LIMITS}]

    assert parse_problems(given, "file") == (
        ServingProblem("train", 30.0),
        ServingProblem("concurrent", 30.0, 0.5, 60.0),
        ServingProblem("infer", 30.0, 0.5, 60.0),
    )


LIMITS = {"power_w": 30, "latency_s": 0.5, "rate_hz": 60}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"power_w": 30}, "file: got dict; a list"),
        ([], "file: got an empty list"),
        ([{"rate_hz": 3}], "file: problem 1: got {'rate_hz': 3}; a mapping with family, power_w"),
        ([{**LIMITS, "power_w": None}], "file: problem 1: got {'power_w': None, "),
        ([LIMITS, 7], "file: problem 2: got 7"),
        ([{**LIMITS, "power_w": "much"}], "numbers"),
        ([{**LIMITS, "rate_hz": -1}], "file: problem 1, problem.rate_hz: got -1.0"),
        ([{**LIMITS, "family": ["train"]}], "one of train"),
    ],
)
def test_what_is_no_list_of_problems_is_refused_with_its_place(entries, words):
    with pytest.raises(BadInput) as error:
        parse_problems(entries, "file")
    assert words in str(error.value)
