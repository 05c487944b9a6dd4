"""A plan is played before it is given: with random arrivals the first choice that holds at the 99th percentile."""

import pytest
from contracts.jobs import SIZES, pair

from fedge.serving.strategies import SearchContext
from fedge.serving.trial_search import ServingProblem
from fedge.studies.serving.interleaving_advice import (
    SimulatedService,
    find_holding_choice,
    search_with_strategy,
    simulate_plan,
    simulated_duration_s,
)
from fedge.studies.serving.serving_planner import MeasuredServiceDemand, ServingJobs, enumerate_choices
from fedge.worker.arrivals import Arrivals

PAIR = pair()


def jobs(rate_hz: float, latency_s: float) -> ServingJobs:
    service = MeasuredServiceDemand("it", rate_hz, latency_s, SIZES, PAIR.infer_s, PAIR.infer_w)
    return ServingJobs(PAIR.modes, (service,), PAIR.train_s, PAIR.train_w)


def test_what_is_played_is_counted_exactly():
    served = SimulatedService("it", 4, 0.5, Arrivals("constant", 40.0), 0.02)
    seen = simulate_plan([served], 0.03, 30.0)
    (told,) = seen.services
    assert (told.late, told.dropped, told.violations) == (0, 0, 0.0)
    assert told.requests == pytest.approx(30.0 * 40.0, abs=8)
    assert told.mean_batch == pytest.approx(4.0, abs=0.1)
    assert told.busy == pytest.approx(0.2, abs=0.01)
    assert seen.steps_per_s == pytest.approx(0.8 / 0.03, rel=0.05)
    assert told.p50_s <= told.p95_s <= told.p99_s <= told.worst_s <= 0.5
    assert seen.holds


def test_a_service_that_cannot_keep_up_does_not_hold():
    served = SimulatedService("it", 1, 0.1, Arrivals("poisson", 100.0), 0.02)
    seen = simulate_plan([served], None, 20.0)
    assert not seen.holds
    assert seen.services[0].violations > 50.0
    assert seen.steps_per_s == 0.0


def test_even_arrivals_are_held_by_the_best_choice():
    found = enumerate_choices(jobs(60.0, 0.5))
    order = found.rank_places(30.0)
    one = find_holding_choice(found, order, [Arrivals("constant", 60.0)])
    assert one.holds
    assert one.tried == 1
    assert one.option == found.build_option(order[0])
    assert one.simulation.steps_per_s >= one.option.steps_per_s * 0.98


def test_where_the_best_choice_breaks_the_next_one_that_holds_is_taken():
    # Bursts at the edge of what the modes keep up with: slow modes that are best for even arrivals fall behind.
    found = enumerate_choices(jobs(100.0, 0.2))
    order = found.rank_places(34.0)
    one = find_holding_choice(found, order, [Arrivals("bursts", 100.0, 1, 4.0, 1.0, 9.0)])
    assert one.tried > 1
    assert one.option != found.build_option(order[0])


def test_nothing_is_played_where_nothing_holds_or_is_served():
    found = enumerate_choices(jobs(60.0, 0.5))
    assert find_holding_choice(found, [], [Arrivals("constant", 60.0)]) is None
    alone = enumerate_choices(ServingJobs(PAIR.modes, (), PAIR.train_s, PAIR.train_w))
    assert find_holding_choice(alone, alone.rank_places(30.0), []) is None


def test_slow_services_are_played_for_longer_within_bounds():
    assert simulated_duration_s(jobs(1000.0, 0.5)) == 60.0
    assert simulated_duration_s(jobs(50.0, 0.5)) == 100.0
    assert simulated_duration_s(jobs(0.1, 0.5)) == 600.0


def test_what_a_strategy_would_profile_is_told_in_its_order():
    problem = ServingProblem("concurrent", 28.0, 0.5, 60.0)
    search = search_with_strategy("gmd", SearchContext(PAIR.modes, SIZES), PAIR, problem)
    assert search.trials[0].mode == PAIR.modes[35]
    assert len(search.trials) == search.worth.tried == len(set(search.trials))
    assert search.chosen in search.trials
    assert search.worth.solved
