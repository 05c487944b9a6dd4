"""A problem has exactly the limits of its family; the grids are Fulcrum's; a file of problems is read or refused."""

from __future__ import annotations

import pytest

from fedge.errors import BadInput
from fedge.serving.trial_search import ProblemFamily, ServingProblem, default_problems, parse_problems


@pytest.mark.parametrize(("family", "count"), [("train", 41), ("infer", 5863), ("concurrent", 6560)])
def test_the_grids_are_as_large_as_published_and_hold_no_problem_twice(family: ProblemFamily, count: int) -> None:
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
def test_a_problem_without_the_limits_of_its_family_is_refused(fields: tuple[object, ...], words: str) -> None:
    with pytest.raises(BadInput) as error:
        ServingProblem(*fields)  # type: ignore[arg-type]
    assert words in str(error.value)


def test_without_a_family_a_rate_decides() -> None:
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
        ([LIMITS, 7], "file: problem 2: got 7"),
        ([{**LIMITS, "power_w": "much"}], "numbers"),
        ([{**LIMITS, "rate_hz": -1}], "file: problem 1, problem.rate_hz: got -1.0"),
        ([{**LIMITS, "family": ["train"]}], "one of train"),
    ],
)
def test_what_is_no_list_of_problems_is_refused_with_its_place(entries: object, words: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_problems(entries, "file")
    assert words in str(error.value)
