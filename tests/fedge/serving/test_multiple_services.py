"""Batch sizes of several services: one alone is Fulcrum's, and what is said to hold does, played by the interleaver."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.serving.job_pair import JobPair
from fedge.serving.trial_search import ServingProblem, evaluate_choices
from fedge.studies.serving.interleaving_advice import SimulatedPlan, SimulatedService, simulate_plan
from fedge.studies.serving.serving_planner import MeasuredServiceDemand, evaluate_combinations
from fedge.types import Modes
from fedge.worker.arrivals import Arrivals

SIZES = (1, 4, 16, 32, 64)


def demand(name: str, rate_hz: float, latency_s: float, base_s: float, each_s: float) -> MeasuredServiceDemand:
    """A service whose batches take ``base_s`` and ``each_s`` per request, in one mode."""
    seconds = np.array([[base_s + each_s * size] for size in SIZES])
    return MeasuredServiceDemand(name, rate_hz, latency_s, SIZES, seconds, np.full_like(seconds, 20.0))


@settings(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.floats(0.05, 2.0),
    st.floats(20.0, 120.0),
    st.floats(15.0, 45.0),
    st.booleans(),
)
def test_a_service_alone_is_judged_by_the_rules_of_fulcrum(
    seed: int, latency_s: float, rate_hz: float, power_w: float, trains: bool
) -> None:
    rng = np.random.default_rng(seed)
    infer_s = np.sort(rng.uniform(0.005, 1.0, (5, 12)), axis=0)
    infer_w, train_s, train_w = rng.uniform(10, 50, (5, 12)), rng.uniform(0.02, 0.3, 12), rng.uniform(10, 50, 12)
    none = np.empty(0)
    pair = JobPair(
        Modes(np.ones((12, 4))), SIZES, train_s if trains else none, train_w if trains else none, infer_s, infer_w
    )
    truth = evaluate_choices(ServingProblem("concurrent" if trains else "infer", power_w, latency_s, rate_hz), pair)
    service = MeasuredServiceDemand("it", rate_hz, latency_s, SIZES, infer_s, infer_w)
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
def test_what_is_said_to_hold_is_held_by_the_interleaver_and_trains_as_much(
    asked: list[MeasuredServiceDemand], train_s: float
) -> None:
    asked = [
        MeasuredServiceDemand(f"s{i}", one.rate_hz, one.latency_s, SIZES, one.infer_s, one.infer_w)
        for i, one in enumerate(asked)
    ]
    found = evaluate_combinations(asked, np.array([train_s]), np.array([20.0]))
    holding = [c for c in range(len(found.places)) if found.holds[c, 0]]
    for c in holding[:: max(1, len(holding) // 3)]:
        trains = found.steps_per_s[c, 0] > 0
        served = tuple(
            SimulatedService(
                one.name, SIZES[p], one.latency_s, Arrivals("constant", one.rate_hz), float(one.infer_s[p, 0])
            )
            for one, p in zip(asked, found.places[c], strict=True)
        )
        seen = simulate_plan(SimulatedPlan(served, train_s if trains else None), 30.0)
        assert [(one.late, one.dropped) for one in seen.services] == [(0, 0)] * len(asked)
        if len(asked) > 1:  # one alone lets a minibatch run past its window as long as its budget allows it
            for one, needed in zip(seen.services, found.needed_s[:, c, 0], strict=True):
                assert one.worst_s <= needed + 1e-6
        assert seen.steps_per_s >= 0.95 * found.steps_per_s[c, 0]


def test_every_combination_of_batch_sizes_is_there_once() -> None:
    two = [demand("a", 30.0, 1.0, 0.01, 0.001), demand("b", 60.0, 1.0, 0.01, 0.001)]
    found = evaluate_combinations(two)
    assert found.places == tuple(itertools.product(range(5), range(5)))
    assert found.needed_s.shape == (2, 25, 1)
    assert not found.steps.any()
    assert not found.steps_per_s.any()


def test_where_a_minibatch_is_too_long_the_services_stand_but_nothing_is_trained() -> None:
    two = [demand("a", 30.0, 0.4, 0.01, 0.001), demand("b", 60.0, 0.4, 0.01, 0.001)]
    found = evaluate_combinations(two, np.array([0.5]), np.array([30.0]))
    assert found.holds.any()
    assert not found.steps.any()
    assert not found.steps_per_s.any()


def test_no_service_or_more_than_three_are_refused() -> None:
    for count in (0, 4):
        with pytest.raises(BadInput, match="1 to 3"):
            evaluate_combinations([demand("a", 30.0, 1.0, 0.01, 0.001)] * count)
