"""The active explorer takes the mode that lowers the predictor's uncertainty most, and its designs beat chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients, grid, made_up_table
from contracts.explorer import ExplorerContract, Make, known, measured
from contracts.predictor import measured as measured_at
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.costs.cost_priors import build_priors
from fedge.devices.catalogue import load_catalogue
from fedge.modes import build_grid as board_grid
from fedge.modes import find_mode_index
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.predictors.blended_predictor import BlendedPredictor
from fedge.predictors.explorers import DEFAULT_EXPLORER, active_explorer, load_explorer
from fedge.predictors.explorers.active_explorer import ActiveExplorer, _ActiveDesign
from fedge.predictors.explorers.simple_explorers import RandomExplorer
from fedge.types import Floats, Measurement, Modes


class TestActiveExplorer(ExplorerContract):
    @pytest.fixture
    def make(self) -> Make:
        return ActiveExplorer


def test_it_is_the_default():
    assert isinstance(load_explorer(DEFAULT_EXPLORER, grid(), known()), ActiveExplorer)


def uncertainty(covariances: list[tuple[float, Floats, float]], rows: list[int]) -> float:
    """Literal: the sum of log predictive variances after measuring ``rows``, by inverting a matrix."""
    total = 0.0
    for weight, covariance, noise_var in covariances:
        across = covariance[:, rows]
        seen = covariance[np.ix_(rows, rows)] + noise_var * np.eye(len(rows))
        after = covariance - across @ np.linalg.solve(seen, across.T)
        total += weight * float(np.log(np.diag(after) + noise_var).sum())
    return total


@given(seed=st.integers(0, 10**6), size=st.integers(2, 12), told=st.integers(0, 3), kinds=st.integers(1, 3))
@settings(max_examples=60)
def test_every_step_takes_the_mode_after_which_least_is_left_unknown(seed, size, told, kinds):
    rng = np.random.default_rng(seed)
    told = min(told, size - 1)
    covariances = []
    for _ in range(kinds):
        factor = rng.standard_normal((size, size)) * rng.uniform(0.05, 1.0)
        covariances.append((float(rng.uniform(0.1, 2.0)), factor @ factor.T, float(rng.uniform(1e-3, 0.1))))
    design = _ActiveDesign([(weight, covariance.copy(), noise_var) for weight, covariance, noise_var in covariances])
    taken = [*range(told)]
    for row in taken:
        design.condition_on(row)

    for _ in range(size - told):
        row = design.choose_next(first=told)

        left = {i: uncertainty(covariances, [*taken, i]) for i in range(told, size) if i not in taken}
        assert left[row] <= min(left.values()) + 1e-6 * (1 + abs(min(left.values())))
        taken.append(row)

    assert sorted(taken) == [*range(size)]


def test_a_profile_of_an_unknown_board_starts_with_the_top_and_nearly_the_bottom():
    modes = grid()
    three = ActiveExplorer(modes, known()).ask(3).knobs

    assert three[0].tolist() == modes.knobs.max(axis=0).tolist()
    assert (three[1] <= np.quantile(modes.knobs, 0.34, axis=0)).sum() >= 3
    assert three[2, :2].tolist() == modes.knobs.max(axis=0)[:2].tolist()
    assert three[2, 3] == modes.knobs[:, 3].min()


@pytest.mark.parametrize("count", [3, 5])
def test_a_profile_that_measured_maxn_first_goes_on_with_the_same_design(count):
    modes = grid()
    alone, after_maxn = ActiveExplorer(modes, known()), ActiveExplorer(modes, known())
    after_maxn.tell([Measurement(MAXN, 40, 0.1, 20.0)])

    assert [MAXN, *after_maxn.ask(count - 1)] == list(alone.ask(count))


def test_with_another_measurement_the_uncertainty_alone_decides():
    few = Modes(grid().knobs[::5])
    told = [Measurement(few[40], 40, 0.1, 20.0)]
    at_once, one_by_one = ActiveExplorer(few, known()), ActiveExplorer(few, known())
    at_once.tell(told)
    one_by_one.tell(told)

    assert next(iter(at_once.ask(3))) == next(iter(one_by_one.ask(1)))


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_short_design_is_the_beginning_of_a_long_one(seed):
    five, twenty = (list(ActiveExplorer(grid(), known(seed)).ask(count)) for count in (5, 20))

    assert five == twenty[:5]


def test_no_global_random_state_decides():
    np.random.seed(1)  # noqa: NPY002
    first = list(ActiveExplorer(grid(), known()).ask(5))
    np.random.seed(2)  # noqa: NPY002

    assert list(ActiveExplorer(grid(), known()).ask(5)) == first


def test_a_mode_beside_one_that_was_told_is_not_worth_asking():
    few = Modes(grid().knobs[::5])
    best = ActiveExplorer(few, known()).ask(1)[0]
    beside = replace(best, cpu_mhz=1.001 * best.cpu_mhz, gpu_mhz=1.001 * best.gpu_mhz)
    explorer = ActiveExplorer(few, known())

    explorer.tell([Measurement(beside, 40, 0.1, 20.0)])

    assert best not in list(explorer.ask(10))


def test_what_was_read_does_not_matter_only_where():
    few = Modes(grid().knobs[::5])
    asked = []
    for step in (0.01, 10.0):
        explorer = ActiveExplorer(few, known())
        explorer.tell([Measurement(few[i], 40, step, 20.0) for i in (0, 40, 80)])
        asked.append(list(explorer.ask(5)))

    assert asked[0] == asked[1]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_candidates_are_all_asked_for(size):
    few = Modes(grid().knobs[-size:])

    assert {*ActiveExplorer(few, known()).ask(10)} == {*few}


@pytest.mark.parametrize("knob", range(4))
def test_boards_of_which_only_one_knob_can_be_set_are_explored_at_both_ends(knob):
    values = 7 if knob == 0 else 12  # whole cores
    top = np.tile(grid().knobs[-1], (values, 1))
    top[:, knob] = np.linspace(top[0, knob] / 4, top[0, knob], values)

    asked = ActiveExplorer(Modes(top), known()).ask(4)

    assert len({*asked}) == 4
    assert asked.knobs[:, knob].min() <= np.quantile(top[:, knob], 0.3)
    assert asked.knobs[:, knob].max() >= np.quantile(top[:, knob], 0.7)


def test_a_reference_alone_is_enough():
    explorer = ActiveExplorer(grid(), PriorKnowledge(MAXN, references=(made_up_table(),)))

    assert len({*explorer.ask(10)}) == 10


def errors(explorer: type[ActiveExplorer | RandomExplorer], seed: int, count: int) -> tuple[float, float]:
    """Error of time and power over all modes after ``count`` modes of the explorer's choice, on a made-up board."""
    modes = grid()
    rng = np.random.default_rng(seed)
    truth = another_workload(rng)
    noise = 0.01 * rng.standard_normal((2, len(modes)))
    seconds, watts = (
        compute_step_s(truth, MAXN, modes) * np.exp(noise[0]),
        compute_power_w(truth, MAXN, modes) * np.exp(noise[1]),
    )
    knowledge = PriorKnowledge(MAXN, (coefficients(),), idle_w=12.0, seed=seed)
    rows = [find_mode_index(modes, mode) or 0 for mode in explorer(modes, knowledge).ask(count)]
    said = BlendedPredictor(knowledge).fit(measured_at(modes, seconds, watts, rows)).predict(modes)
    return float(np.mean(np.abs(said.step_s / seconds - 1))), float(np.mean(np.abs(said.power_w / watts - 1)))


@pytest.mark.parametrize("count", [6, 10])
def test_its_designs_teach_more_than_random_ones(count):
    seeds = range(10)
    own, random = (np.mean([errors(which, s, count) for s in seeds], 0) for which in (ActiveExplorer, RandomExplorer))

    print(f"{count} modes: active {own}, random {random}")
    assert (own < 0.9 * random).all()


def test_every_mode_of_the_largest_board_may_be_a_candidate():
    specs = load_catalogue()
    spec = specs["agx-orin-64gb"]
    priors = build_priors(spec, "mobilenetv3l-gld23k", specs)
    candidates = board_grid(spec)
    knowledge = PriorKnowledge(spec.maxn, tuple(prior.coefficients for prior in priors), idle_w=spec.idle_w.value)

    explorer = ActiveExplorer(candidates, knowledge)
    asked = explorer.ask(10)
    explorer.tell(measured(asked))
    more = explorer.ask(5)

    assert len(candidates) > 15_000
    assert len({*asked, *more}) == 15


def test_more_can_be_asked_for_than_it_looks_at_by_itself(monkeypatch):
    monkeypatch.setattr(active_explorer, "MAX_POOL", 20)
    few = Modes(grid().knobs[:40])

    assert {*ActiveExplorer(few, known()).ask(40)} == {*few}
