"""Interleaving against everything: no request is lost, none overtakes, time adds up, and what can be held is held."""

import itertools
import math

import pytest

hypothesis = pytest.importorskip("hypothesis", reason="property tests need hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from interleaver_simulation import Play  # noqa: E402

from fedge.worker.arrivals import Arrivals, arrival_times  # noqa: E402
from fedge.worker.inference_interleaver import CREDIT_S, EPS_S, HostedService, PendingBatch, decide_next_action  # noqa: E402

MILLI = st.integers(1, 400).map(lambda one: one / 1000.0)
STEP = st.integers(5, 100).map(lambda one: one / 1000.0)


@st.composite
def queues(draw):
    names = "abcd"[: draw(st.integers(1, 4))]
    return [
        PendingBatch(name, draw(st.booleans()), draw(st.integers(0, 1500)) / 1000.0, draw(MILLI), draw(MILLI))
        for name in names
    ]


def in_time(order, begin_s):
    """Whether batches one after the other, in this order, are all ready in time."""
    for one in order:
        begin_s += one.batch_s
        if begin_s > one.deadline_s + EPS_S:
            return False
    return True


def can_be(waiting, begin_s):
    """Whether in any order at all, by trying every one."""
    return any(in_time(order, begin_s) for order in itertools.permutations(waiting))


@given(queues(), MILLI)
def test_whatever_comes_next_all_stay_in_time_if_any_order_could_have_it(waiting, next_s):
    choice = decide_next_action(0.0, next_s, waiting)
    if choice.what == "serve":
        first = [one for one in waiting if one.name == choice.name]
        rest = [one for one in waiting if one.name != choice.name]
        if can_be(waiting, 0.0):
            assert can_be(rest, first[0].batch_s)
        assert first[0].full or any(one.full for one in waiting) or not can_be(waiting, next_s)
    else:
        assert not any(one.full for one in waiting)
        assert can_be(waiting, next_s if choice.what == "go" else choice.until_s)


@st.composite
def kinds_of_arrivals(draw, rate_hz, seed):
    kind = draw(st.sampled_from(["constant", "poisson", "bursts", "dynamic"]))
    return Arrivals(kind, rate_hz, seed, rates=((0.7, 2 * rate_hz), (0.7, 0.0)) if kind == "dynamic" else ())


@st.composite
def scenes(draw):
    """Services with arrivals of any kind, from idle to hopelessly overloaded."""
    services, arrivals, batch_s = [], {}, {}
    for number, name in enumerate("abc"[: draw(st.integers(1, 3))]):
        when_late = draw(st.sampled_from(["serve", "drop"]))
        wait_s = draw(st.none() | MILLI)
        services.append(
            HostedService(name, draw(st.integers(1, 9)), draw(MILLI), wait_s, when_late, draw(st.integers(1, 50)))
        )
        rate_hz = draw(st.integers(1, 100))
        arrivals[name] = draw(kinds_of_arrivals(float(rate_hz), number))
        batch_s[name] = draw(STEP)
    return services, arrivals, batch_s, draw(STEP), draw(st.sampled_from([0.05, 0.1, 0.5]))


def played(scene):
    services, arrivals, batch_s, step_s, share = scene
    came = {name: arrival_times(one) for name, one in arrivals.items()}
    play = Play(
        services, came, lambda service, size: batch_s[service.name] * (1 + size / 8), step_s, share, known=False
    )
    play.train(2.0)
    play.loop.serve_while_idle(play.now_s + 1.0)
    play.train(play.now_s + 2.0)
    return play


@settings(max_examples=12, deadline=None)
@given(scenes())
def test_every_request_is_served_once_or_dropped_or_still_waits(scene):
    play = played(scene)
    for service in scene[0]:
        told = play.loop.get_statistics()[service.name]
        served = play.served(service.name)
        dropped = [one for name, one in play.dropped if name == service.name]
        came = list(itertools.takewhile(lambda at_s: at_s <= play.now_s, arrival_times(scene[1][service.name])))
        assert told.requests == told.served + told.dropped + told.waiting <= len(came)
        assert (told.served, told.dropped) == (len(served), len(dropped))
        seen = sorted(one.arrived_s for one in served + dropped)
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(came)
        # The last look at the door was before the last minibatch.
        assert told.requests >= sum(at_s < play.now_s - 2 * scene[3] - 1.0 for at_s in came)


@settings(max_examples=12, deadline=None)
@given(scenes())
def test_within_a_service_none_overtakes_and_none_is_served_before_it_comes(scene):
    play = played(scene)
    for service in scene[0]:
        arrived = [one.arrived_s for one in play.served(service.name)]
        assert arrived == sorted(arrived)
    for _, begin_s, _, requests, _ in play.done:
        assert all(one.arrived_s <= begin_s + EPS_S for one in requests)


@settings(max_examples=12, deadline=None)
@given(scenes())
def test_all_time_is_accounted_for(scene):
    play = played(scene)
    spent, told = play.loop.get_time_breakdown(), play.loop.get_statistics()
    assert sum(spent) == pytest.approx(play.now_s)
    assert spent.working_s == pytest.approx(play.steps * scene[3])
    assert spent.serving_s == pytest.approx(sum(one.busy_s for one in told.values()))
    assert spent.serving_s == pytest.approx(sum(end_s - begin_s for _, begin_s, end_s, _, _ in play.done))
    for service in scene[0]:
        late = [
            end_s - one.arrived_s
            for name, _, end_s, requests, _ in play.done
            if name == service.name
            for one in requests
            if end_s - one.arrived_s > service.latency_s + EPS_S
        ]
        assert told[service.name].late == len(late)


@settings(max_examples=12, deadline=None)
@given(scenes())
def test_training_never_has_less_than_its_share(scene):
    services, arrivals, batch_s, step_s, share = scene
    came = {name: arrival_times(one) for name, one in arrivals.items()}
    play = Play(services, came, lambda service, _: batch_s[service.name], step_s, share)
    play.train(8.0)
    spent = play.loop.get_time_breakdown()
    taken_s = spent.serving_s + spent.held_s
    longest_s = max([*batch_s.values(), step_s])
    owed_s = share / (1 - share) * (taken_s - longest_s) - CREDIT_S
    assert spent.working_s >= owed_s - step_s - EPS_S


@settings(max_examples=12, deadline=None)
@given(scenes())
def test_no_service_is_starved_by_another_that_can_be_served_too(scene):
    services, arrivals, _, step_s, _ = scene
    quick_s = 0.2 / sum(one.rate_hz for one in arrivals.values())  # even one by one they take a fifth of the time
    services = [one._replace(latency_s=1.0 + 4 * step_s, max_wait_s=None, most_waiting=10**6) for one in services]
    came = {name: arrival_times(one) for name, one in arrivals.items()}
    play = Play(services, came, lambda *_: quick_s, min(step_s, 0.02), 0.1)
    play.train(4.0)
    for told in play.loop.get_statistics().values():
        assert told.dropped == 0
        assert told.histogram.worst_s < 2.0 + 8 * step_s


@st.composite
def feasible(draw):
    """One service at constant times that the plan can hold: window and batch within the budget, a step beside it."""
    batch_size, rate_hz = draw(st.integers(1, 32)), float(draw(st.integers(5, 200)))
    window_s = batch_size / rate_hz
    batch_s = window_s * draw(st.integers(1, 70)) / 100
    step_s = (window_s - batch_s) * draw(st.integers(5, 100)) / 100
    latency_s = window_s + batch_s + draw(st.integers(0, 200)) / 100 * window_s
    return HostedService("a", batch_size, latency_s), rate_hz, batch_s, step_s


@settings(max_examples=35, deadline=None)
@given(feasible(), st.booleans())
def test_what_a_plan_can_hold_is_held_without_one_late(plan, planned):
    service, rate_hz, batch_s, step_s = plan
    if planned:
        service = service._replace(max_wait_s=(service.batch_size - 1) / rate_hz)
    play = Play([service], {"a": arrival_times(Arrivals("constant", rate_hz))}, lambda *_: batch_s, step_s, share=0.01)
    window_s = service.batch_size / rate_hz
    play.train(60 * window_s)
    told = play.loop.get_statistics()["a"]
    assert told.histogram.worst_s <= service.latency_s + 1e-6
    assert told.dropped == 0
    steps = math.floor((window_s - batch_s) / step_s + 1e-6)
    assert play.steps >= steps * 57
