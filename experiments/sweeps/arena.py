"""The arena: a sweep's variants by three protocols, with paired differences to its first variant.

Quality under a budget: the accuracy of the last model that was ready within the budgets of seconds and joules.
Cost to a target: seconds and joules until it is reached (``loaded_runs``). Robustness: the same two in a second
sweep, of the same variants on a disturbed fleet. Joules are of the whole fleet, boards at rest included. Runs of one
seed have the same fleet, data and noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.report.run.loaded_runs import TARGET_WINDOW, Course, build_course, find_cost
from experiments.sweeps.sweep_summary import is_sweep, read_summary
from fedge.confidence_interval import ConfidenceInterval, mean_interval, paired_interval
from fedge.errors import BadInput
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import RoundRow


@dataclass(frozen=True, slots=True)
class ArenaFigure:
    """A figure of a variant over the seeds, and its paired difference to the first variant (None for that one).

    Costs are compared by their logarithm, so that the difference is that of a ratio.
    """

    mean: ConfidenceInterval | None
    difference: ConfidenceInterval | None
    reached: int


@dataclass(frozen=True, slots=True)
class ArenaRow:
    """A variant's figures by protocol: accuracy within the budgets, seconds and joules to the target.

    ``cost`` is that of the joules by the given signal; without one nothing is reached.
    """

    label: str
    seeds: int
    quality: ArenaFigure
    seconds: ArenaFigure
    joules: ArenaFigure
    cost: ArenaFigure


@dataclass(frozen=True, slots=True)
class ArenaResult:
    """Target, budgets, and the variants' rows; ``disturbed`` are those of the second sweep.

    The target and the rows' qualities are of the figure of merit ``metric``.
    """

    target: float
    budget_s: float
    budget_j: float
    rows: tuple[ArenaRow, ...]
    disturbed: tuple[ArenaRow, ...] = ()
    metric: str = "accuracy"


Courses = Mapping[str, Mapping[int, Course]]
"""Runs by variant and seed, the variants in the sweep's order."""


def read_courses(folder: Path) -> Courses:
    """Read the finished runs of a sweep.

    Raises:
        BadInput: There is no sweep with finished runs that have an accuracy in every round.
    """
    if not is_sweep(folder):
        right = f"the folder of a finished sweep; `fedge sweep FILE --folder {folder}` makes one"
        raise BadInput(str(folder), "no sweep", right)
    courses = {
        variant.label: {seed: read_course(folder / point) for seed, point in variant.points.items()}
        for variant in read_summary(folder).variants
    }
    if not all(course.accuracy for runs in courses.values() for course in runs.values()) or not any(courses.values()):
        right = "a sweep with finished points whose server evaluates every model"
        raise BadInput(str(folder), "runs without an accuracy", right)
    return courses


def read_course(folder: Path) -> Course:
    """Read a run's course; it is empty if a model was not evaluated."""
    rows = read_rows(folder, RoundRow)
    is_evaluated = all(row.accuracy is not None for row in rows)
    return build_course(rows if is_evaluated else ())


def judge_variants(
    courses: Courses,
    *,
    target: float | None = None,
    budget_s: float | None = None,
    budget_j: float | None = None,
    disturbed: Courses | None = None,
    metric: str = "accuracy",
) -> ArenaResult:
    """Judge the variants by all protocols.

    Args:
        courses: The runs.
        target: Accuracy, 0 to 1, or value of another metric; None for the least of any run's last three, which all
            reach.
        budget_s: Seconds; None for those of the shortest run, which all have used up.
        budget_j: Joules; None for those of the run of least energy.
        disturbed: The runs of the second sweep, judged by the same numbers.
        metric: The runs' figure of merit, of which the target is a value.

    Raises:
        BadInput: If the target is an accuracy above 1 or below 0.
    """
    if target is not None and metric == "accuracy" and not 0.0 <= target <= 1.0:
        raise BadInput("--target-accuracy", f"{target:g}", "from 0 to 1, such as 0.9")
    runs = [course for of_variant in courses.values() for course in of_variant.values()]
    target = min(min(course.accuracy[-TARGET_WINDOW:]) for course in runs) if target is None else target
    budget_s = min(course.seconds[-1] for course in runs) if budget_s is None else budget_s
    budget_j = min(course.joules[-1] for course in runs) if budget_j is None else budget_j
    judged = [_judge(one, target, budget_s, budget_j) for one in (courses, disturbed or {})]
    return ArenaResult(target, budget_s, budget_j, rows=judged[0], disturbed=judged[1], metric=metric)


def _judge(courses: Courses, target: float, budget_s: float, budget_j: float) -> tuple[ArenaRow, ...]:
    rows, first = list[ArenaRow](), tuple[Mapping[int, float | None], ...]()
    for label, runs in courses.items():
        costs = {seed: find_cost(course, target) for seed, course in runs.items()}
        figures: tuple[Mapping[int, float | None], ...] = (
            {seed: find_quality(course, budget_s, budget_j) for seed, course in runs.items()},
            {seed: None if cost is None else cost[0] for seed, cost in costs.items()},
            {seed: None if cost is None else cost[1] for seed, cost in costs.items()},
            {seed: None if cost is None else cost[2] for seed, cost in costs.items()},
        )
        quality, seconds, joules, cost = (
            _compare(own, first[k] if first else None, logarithms=k > 0) for k, own in enumerate(figures)
        )
        rows.append(ArenaRow(label, len(runs), quality=quality, seconds=seconds, joules=joules, cost=cost))
        first = first or figures
    return tuple(rows)


def _compare(
    own: Mapping[int, float | None], first: Mapping[int, float | None] | None, *, logarithms: bool
) -> ArenaFigure:
    difference = None
    if first is not None:
        both = (_take_logarithms(own), _take_logarithms(first)) if logarithms else (own, first)
        difference = paired_interval(*both)
    reached = sum(value is not None for value in own.values())
    return ArenaFigure(mean_interval([*own.values()]), difference, reached)


def _take_logarithms(values: Mapping[int, float | None]) -> dict[int, float | None]:
    return {seed: math.log(value) if value else None for seed, value in values.items()}


def find_quality(course: Course, budget_s: float, budget_j: float) -> float:
    """Return the accuracy of the last model within both budgets; 0 without one."""
    spent = zip(course.accuracy, course.seconds, course.joules, strict=True)
    return next((a for a, s, j in reversed([*spent]) if s <= budget_s and j <= budget_j), 0.0)
