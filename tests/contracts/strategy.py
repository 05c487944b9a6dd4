"""What every strategy does; a test class inherits it and names the strategy. And made-up pairs of jobs to search."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from contracts.boards import coefficients

from fedge.devices.tables.mode_table import ProfileTable, read_mode_table
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.serving.job_pair import JobPair
from fedge.serving.strategies import SearchContext, SearchStrategy, strategy_for
from fedge.serving.trial_search import BATCH_SIZES as SERVED_SIZES
from fedge.serving.trial_search import (
    FAMILIES,
    ProblemFamily,
    ServingProblem,
    Trial,
    TrialSearchResult,
    evaluate_choices,
    find_best_choice,
    holds_limits,
    measure_from_table,
    run_search,
)
from fedge.types import Modes

BATCH_SIZES = (1, 4, 16)
VALUES = ((2, 4, 8), (500.0, 1000.0, 1500.0, 2000.0), (300.0, 600.0, 900.0), (800.0, 1600.0, 3200.0))


def made_up_pair(
    seed: int,
    family: ProblemFamily,
    values: tuple[tuple[float, ...], ...] = VALUES,
    batch_sizes: tuple[int, ...] = BATCH_SIZES,
) -> JobPair:
    """Jobs that are quicker and draw more the higher a knob is, each with its own weights and 3 % scatter."""
    rng = np.random.default_rng(seed)
    knobs = np.array(list(itertools.product(*values)), dtype=np.float64)
    share = knobs / knobs.max(axis=0)

    def job(scale_s: float) -> tuple[np.ndarray, np.ndarray]:
        weights = rng.dirichlet(np.ones(4), 2)
        scatter = np.exp(0.03 * rng.standard_normal((2, len(knobs))))
        return scale_s * (1 / share) @ weights[0] * scatter[0], (6 + 30 * share @ weights[1]) * scatter[1]

    none = np.empty(0)
    train_s, train_w = job(rng.uniform(0.02, 0.2)) if family != "infer" else (none, none)
    per_sample_s = rng.uniform(0.001, 0.006)
    served = [job(0.008 + per_sample_s * size) for size in batch_sizes] if family != "train" else []
    infer_s, infer_w = (np.array([one[i] for one in served]).reshape(len(served), len(knobs)) for i in (0, 1))
    return JobPair(Modes(knobs), batch_sizes if served else (), train_s, train_w, infer_s, infer_w)


def made_up_problem(seed: int, family: ProblemFamily) -> ServingProblem:
    """Some of them have no solution."""
    rng = np.random.default_rng([seed, 7])
    if family == "train":
        return ServingProblem(family, float(rng.uniform(8, 40)))
    return ServingProblem(family, float(rng.uniform(8, 40)), float(rng.uniform(0.03, 1.0)), float(rng.uniform(5, 120)))


def ground_of(pair: JobPair, *, seed: int = 0, reuse: bool = False) -> SearchContext:
    """What a strategy is told beforehand: another workload's coefficients."""
    known = PriorKnowledge(pair.modes[len(pair.modes) - 1], (coefficients(),), idle_w=6.0, seed=seed)
    infer = tuple(known for _ in pair.batch_sizes)
    return SearchContext(pair.modes, pair.batch_sizes, known if pair.has_training else None, infer, reuse, seed)


@dataclass(frozen=True)
class Searched:
    pair: JobPair
    problem: ServingProblem
    found: TrialSearchResult


def search_pair(strategy: SearchStrategy, pair: JobPair, problem: ServingProblem) -> TrialSearchResult:
    return run_search(strategy.search(problem), measure_from_table(pair))


def measured_tables(root: Path, train: str | None, infer: str | None) -> tuple[ProfileTable | None, list[ProfileTable]]:
    """What the AGX Orin was measured at for these workloads; inference at every batch size."""
    orin = root / "agx-orin"
    served = [read_mode_table(orin / "infer" / f"{infer}.csv", batch_size=b) for b in SERVED_SIZES] if infer else []
    return read_mode_table(orin / "train" / f"{train}.csv") if train else None, served


def compare_with_optimum(
    strategy: SearchStrategy, pair: JobPair, problems: Iterable[ServingProblem], most: int
) -> tuple[int, list[float]]:
    """How many problems can be solved, and what each that is solved loses; NaN where the best choice has no steps.

    Every search makes ``most`` trials at most, finds nothing where nothing holds, and what it finds holds.
    """
    losses, solvable = [], 0
    for problem in problems:
        found, optimum = search_pair(strategy, pair, problem), find_best_choice(problem, pair)
        assert len(found.tried) <= most
        if optimum is None:
            assert found.choice is None
            continue
        solvable += 1
        if found.choice is None:
            continue
        every = evaluate_choices(problem, pair)
        at, top = ((one.batch or 0, one.row) for one in (found.choice, optimum))
        assert every.feasible[at]
        if problem.family == "infer":
            losses.append(float(every.infer_s[at] / every.infer_s[top] - 1))
        else:
            losses.append(float(1 - every.steps[at] / every.steps[top]) if every.steps[top] > 0 else np.nan)
    return solvable, losses


@cache
def each(name: str, seeds: range, family: ProblemFamily) -> list[Searched]:
    """What a strategy finds for some pairs and problems; searched once, whatever is then asked of it."""
    found = []
    for seed in seeds:
        pair = made_up_pair(seed, family)
        strategy = strategy_for(name, ground_of(pair, seed=seed))
        for problem in (made_up_problem(10 * seed + i, family) for i in range(4)):
            found.append(Searched(pair, problem, search_pair(strategy, pair, problem)))
    return found


class StrategyContract:
    """``name`` names the strategy; ``verifies`` says that whatever it chooses was tried and holds the limits."""

    name: str
    verifies = True
    seeds = range(3)

    def each(self, family: ProblemFamily) -> list[Searched]:
        return each(self.name, self.seeds, family)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_it_tries_only_what_there_is_and_each_trial_once(self, family):
        for one in self.each(family):
            places = range(len(one.pair.batch_sizes)) if family != "train" else (None,)
            assert all(trial.row in range(len(one.pair.modes)) for trial in one.found.tried)
            assert all(trial.batch in places for trial in one.found.tried)
            assert len(set(one.found.tried)) == len(one.found.tried) > 0

    @pytest.mark.parametrize("family", FAMILIES)
    def test_what_it_chooses_is_there_and_was_tried_and_holds_if_it_says_so(self, family):
        choices = 0
        for one in self.each(family):
            if (choice := one.found.choice) is None:
                continue
            choices += 1
            assert choice.row in range(len(one.pair.modes))
            assert (choice.batch is None) == (family == "train")
            if self.verifies:
                assert (choice.row, choice.batch) in {(trial.row, trial.batch) for trial in one.found.tried}
                assert evaluate_choices(one.problem, one.pair).feasible[choice.batch or 0, choice.row]
        assert choices > 0

    @pytest.mark.parametrize("family", FAMILIES)
    def test_it_finds_nothing_better_than_the_optimum(self, family):
        for one in self.each(family):
            optimum, choice = find_best_choice(one.problem, one.pair), one.found.choice
            every = evaluate_choices(one.problem, one.pair)
            if choice is None or not every.feasible[choice.batch or 0, choice.row]:
                continue
            at, top = (choice.batch or 0, choice.row), (optimum.batch or 0, optimum.row)
            assert every.steps[at] <= every.steps[top]
            if every.steps[at] == every.steps[top]:
                assert every.infer_s[at] >= every.infer_s[top]

    @pytest.mark.parametrize("family", FAMILIES)
    def test_a_budget_below_every_mode_leads_to_no_choice(self, family):
        pair = made_up_pair(1, family)
        limits = (None, None) if family == "train" else (1.0, 20.0)
        problem = ServingProblem(family, 0.5, *limits)

        assert search_pair(strategy_for(self.name, ground_of(pair)), pair, problem).choice is None

    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_same_seed_leads_to_the_same_search(self, family):
        pair, problem = made_up_pair(2, family), made_up_problem(3, family)
        once, again = (search_pair(strategy_for(self.name, ground_of(pair, seed=5)), pair, problem) for _ in range(2))

        assert once == again

    @pytest.mark.parametrize("family", FAMILIES)
    def test_what_it_chooses_after_other_problems_holds_the_limits_too(self, family):
        pair = made_up_pair(4, family)
        strategy, measure = strategy_for(self.name, ground_of(pair, reuse=True)), measure_from_table(pair)
        for seed in range(4):
            problem = made_up_problem(seed, family)
            choice = run_search(strategy.search(problem), measure).choice
            if choice is not None and self.verifies:
                size = None if choice.batch is None else pair.batch_sizes[choice.batch]
                seen = measure(Trial(choice.row, choice.batch))
                assert holds_limits(problem, size, seen)
