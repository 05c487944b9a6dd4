"""Interleaving by example: what comes next, the plan's minibatches per window, overload, failure and what is told."""

import json
import math
import random

import pytest
from interleaver_simulation import Play

from fedge.worker.arrivals import Arrivals, arrival_times
from fedge.worker.inference_interleaver import (
    ADMIT_LIMIT,
    BatchTimes,
    DurationEstimate,
    HostedService,
    Interleaver,
    PendingBatch,
    RecentDurations,
    Request,
    ServiceFailed,
    ServiceStatistics,
    compute_caution,
    decide_next_action,
)

INF = math.inf


def constant(rate_hz):
    return arrival_times(Arrivals("constant", rate_hz))


def one(name="a", full=False, deadline_s=1.0, batch_s=0.1, fills_s=INF):
    return PendingBatch(name, full, deadline_s, batch_s, fills_s)


FULL = one("a", full=True, deadline_s=9.0, batch_s=0.5)
CHAIN = [one("a", deadline_s=1.0, batch_s=0.4), one("b", deadline_s=1.1, batch_s=0.4)]


@pytest.mark.parametrize(
    ("now_s", "next_s", "waiting", "expected"),
    [
        (5.0, 0.1, [], ("go", "", INF)),
        (0.0, 0.9, [one()], ("go", "", 0.9)),
        (0.0, 0.91, [one()], ("serve", "a", 0.0)),
        (0.0, 0.1, [one(full=True, deadline_s=100.0)], ("serve", "a", 0.0)),
        (0.0, 1.0, [one(fills_s=0.5)], ("hold", "", 0.9)),
        (0.0, 1.0, [one(fills_s=0.95)], ("serve", "a", 0.0)),
        (0.0, 1.0, [one("a", deadline_s=0.9), one("b", deadline_s=0.5)], ("serve", "b", 0.0)),
        (0.0, 0.1, [FULL, one("b", full=True, deadline_s=5.0)], ("serve", "b", 0.0)),
        (0.0, 0.1, [FULL, one("b", deadline_s=0.61)], ("serve", "a", 0.0)),
        (0.0, 0.1, [FULL, one("b", deadline_s=0.59)], ("serve", "b", 0.0)),
        (0.0, 0.1, [FULL, one("b", deadline_s=0.65), one("c", deadline_s=0.69)], ("serve", "b", 0.0)),
        (0.0, 0.3, CHAIN, ("go", "", pytest.approx(0.3))),
        (0.0, 0.31, CHAIN, ("serve", "a", 0.0)),
        (0.0, 0.0, [one()], ("go", "", 0.9)),
        (0.9, 0.0, [one()], ("serve", "a", 0.9)),
    ],
)
def test_the_next_action_is_the_one_that_keeps_the_deadlines(now_s, next_s, waiting, expected):
    assert decide_next_action(now_s, next_s, waiting) == expected


@pytest.mark.parametrize("when_late", ["serve", "drop"])
def test_late_requests_are_served_late_or_dropped_as_the_service_says(when_late):
    service = HostedService("a", 4, 0.5, when_late=when_late, most_waiting=100)
    play = Play([service], {"a": constant(60.0)}, lambda *_: 0.08, 0.03)
    play.train(300.0)
    told = play.loop.get_statistics()["a"]
    assert told.late > 0.9 * told.served if when_late == "serve" else told.late == 0
    assert told.dropped == len(play.dropped) > 0
    assert told.waiting <= 100
    assert told.served > 10000


def test_nobody_is_waited_for_once_a_stop_is_said():
    looks = []
    play = Play([HostedService("a", 1, 10.0)], {"a": constant(100.0)}, lambda *_: 0.02, 0.03)
    play.now_s = 5.0
    play.loop.serve_before_step(lambda: looks.append(1) or len(looks) > 3)
    assert len(play.done) == 3
    play.loop.serve_while_idle(100.0, lambda: True)
    assert len(play.done) == 3


def test_what_was_done_is_told_in_all_and_since_the_last_look():
    play = Play([HostedService("a", 4, 0.5)], {"a": constant(20.0)}, lambda *_: 0.05, 0.03)
    play.train(10.0)
    first = play.loop.take_statistics()["a"]
    play.train(30.0)
    second, both = play.loop.take_statistics()["a"], play.loop.get_statistics()["a"]
    for field in ("requests", "served", "late", "dropped", "batches"):
        assert getattr(first, field) + getattr(second, field) == getattr(both, field)
    assert first.busy_s + second.busy_s == pytest.approx(both.busy_s)
    assert play.loop.take_statistics()["a"].requests == 0
    assert ServiceStatistics.from_data(json.loads(json.dumps(both.as_data()))) == both


def test_a_failing_service_is_told_and_the_others_go_on():
    def infer(service, requests):
        if service.name == "bad" and requests[0].arrived_s > 1.0:
            raise ServiceFailed("memory ran out")
        clock[0] += 0.01

    clock, gone = [0.0], []
    services = [HostedService("bad", 2, 0.5), HostedService("good", 2, 0.5)]
    arrivals = {"bad": constant(10.0), "good": constant(10.0)}

    def wait(seconds):
        clock[0] += seconds

    loop = Interleaver(services, arrivals, infer, lambda: clock[0], wait, drop=lambda *one: gone.append(one))
    loop.serve_while_idle(10.0)
    told = loop.get_statistics()
    assert told["bad"].failed == "memory ran out"
    assert told["good"].failed == ""
    assert told["good"].served >= 98
    assert told["bad"].requests == told["bad"].served + told["bad"].dropped <= 14
    assert not loop.push("bad", [1], clock[0])


def loop_of(service, arrivals=None, infer=print, now_s=lambda: 1.0, drop=lambda *_: None):
    """A loop of one service on a clock that stands."""
    return Interleaver([service], {} if arrivals is None else {"a": arrivals}, infer, now_s, wait_s=print, drop=drop)


def test_requests_from_outside_are_taken_all_or_none():
    seen = []
    loop = loop_of(HostedService("a", 2, 0.5, most_waiting=3), infer=lambda _, batch: seen.extend(batch))
    assert loop.push("a", ["x", "y"], 0.5)
    assert not loop.push("a", ["z", "z"], 0.6)
    assert loop.push("a", ["z"], 0.7)
    assert not loop.push("b", ["z"], 0.7)
    loop.serve_before_step()
    assert seen == [Request(0.5, "x"), Request(0.5, "y")]


def test_a_service_that_makes_its_own_requests_can_go_at_any_time():
    gone = []
    loop = loop_of(HostedService("a", 99, 5.0), constant(10.0), drop=lambda _, some: gone.extend(some))
    loop.serve_before_step()
    assert loop.push("a", ["x"], 0.5)
    told = loop.remove("a")
    assert (told.requests, told.dropped, told.waiting) == (11, 11, 0)
    assert len(gone) == 11
    loop.add(HostedService("a", 9, 5.0), constant(10.0))
    assert loop.remove("a").dropped == 10  # although nobody had looked yet


def test_a_flood_of_requests_is_let_in_piece_by_piece():
    largest, clock = [], [0.0]
    service = HostedService("a", 1, 5.0, most_waiting=10)
    loop = loop_of(service, constant(1e4), now_s=lambda: clock[0], drop=lambda _, some: largest.append(len(some)))
    loop.learn_step(0.01)
    loop.serve_before_step(lambda: True)
    clock[0] = 10.0
    loop.serve_before_step(iter([False, True, True]).__next__)
    told = loop.get_statistics()["a"]
    assert told.requests == 100000
    assert (told.dropped, told.served, told.waiting) == (99990, 1, 9)
    assert max(largest) <= ADMIT_LIMIT


def test_who_looks_during_a_batch_finds_its_requests_among_those_that_wait():
    seen = []
    loop = loop_of(HostedService("a", 2, 0.5), infer=lambda *_: seen.append(loop.get_statistics()["a"]))
    loop.push("a", ["x", "y", "z"], 0.5)
    loop.serve_before_step()
    assert [(one.requests, one.served, one.waiting) for one in seen] == [(3, 0, 3), (3, 2, 1)]
    assert loop.get_statistics()["a"].served == 3


def test_slow_ones_are_counted_on_as_far_as_half_of_what_the_budget_leaves():
    step, batch = DurationEstimate(0.1, 0.2), DurationEstimate(0.1, 0.1)
    assert compute_caution(0.5, step, batch) == 1.0
    assert compute_caution(0.3, step, batch) == pytest.approx(0.5)
    assert compute_caution(0.2, step, batch) == 0.0
    assert compute_caution(0.1, step, DurationEstimate(0.1, 0.3)) == 0.0
    assert step.planned_s(0.5) == pytest.approx(0.15)


class Busy(Play):
    """On a machine where other programs cut in now and then, for longer than the whole budget."""

    def __init__(self, *given, **fields):
        self.chance, self.until_s = random.Random(1), 0.0
        super().__init__(*given, **fields, known=False)

    def _infer(self, service, requests):
        super()._infer(service, requests)
        self.now_s += self.cut_s(self.batch_s(service, len(requests)))

    def cut_s(self, seconds):
        return 0.006 if self.chance.random() < 30.0 * seconds else 0.0

    def train(self, until_s):
        while self.now_s < until_s:
            self.loop.serve_before_step()
            self.now_s += self.step_s + self.cut_s(self.step_s)
            self.steps += 1
        self.loop.end_step()


@pytest.mark.parametrize("when_late", ["serve", "drop"])
@pytest.mark.parametrize("batch_size", [4, 16])
def test_a_budget_of_two_minibatches_on_a_busy_machine_starves_neither(batch_size, when_late):
    # It wants 45 % of the machine, and other programs take 15 %.
    rate_hz = 0.45 * batch_size / 0.0003
    services = [HostedService("a", batch_size, 0.0032, when_late=when_late)]
    arrivals = {"a": arrival_times(Arrivals("poisson", rate_hz, 1))}
    play = Busy(services, arrivals, lambda _, size: 0.0003 * (0.4 + 0.6 * size / batch_size), 0.0016)
    play.train(3.0)
    told = play.loop.get_statistics()["a"]
    assert play.loop.get_time_breakdown().held_s < 0.1 * play.now_s
    assert play.steps * 0.0016 > 0.35 * play.now_s
    assert told.late + told.dropped < 0.3 * told.requests


def test_a_slow_batch_once_does_not_make_a_service_drop_everything_for_ever():
    play = Play(
        [HostedService("a", 4, 0.1, when_late="drop")], {"a": constant(40.0)}, lambda *_: 0.01, 0.01, known=False
    )
    for size in (1, 2, 4):
        play.loop.learn_batch("a", size, 5.0)
    play.train(20.0)
    told = play.loop.get_statistics()["a"]
    assert told.served > 0.9 * told.requests


def test_what_is_expected_is_the_median_and_a_high_quantile_of_what_was_seen_lately():
    recent = RecentDurations()
    assert recent.estimate == (0.0, 0.0)
    for number in range(300):
        recent.add(float(number))
    assert recent.estimate == (249.0, 297.0)
    for _ in range(99):
        recent.add(1.0)
    assert recent.estimate == (1.0, 1.0)


def test_a_batch_of_an_unknown_size_is_expected_to_take_as_long_as_a_larger_one():
    seen = BatchTimes()
    assert seen.estimate(5) == (0.0, 0.0)
    seen.add(1, 0.1)
    seen.add(16, 0.4)
    assert [seen.estimate(size).slow_s for size in (1, 2, 9, 16, 64)] == [0.1, 0.4, 0.4, 0.4, 0.4]


def test_a_training_without_requests_saves_up_no_more_than_a_tenth_of_a_second_for_a_burst():
    play = Play([HostedService("s", 1, 10.0)], {"s": iter([60.0] * 1000)}, lambda *_: 0.01, 0.01)
    play.train(65.0)
    assert sum(batch[4] == play.done[0][4] for batch in play.done) == pytest.approx(0.1 * 9 / 0.01, abs=2)
