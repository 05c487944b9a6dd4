"""Arrivals: their mean rate is the one asked for, a seed fixes them, and a slip in a field is told by name."""

import itertools
import math

import pytest

from fedge.worker.arrivals import Arrivals, arrival_times, parse_arrivals
from fedge.worker.refusal import BadField

CHANGING = ((10.0, 2.0), (5.0, 20.0), (5.0, 0.0))
ALL = [
    Arrivals("constant", 6.0),
    Arrivals("poisson", 6.0, 3),
    Arrivals("bursts", 6.0, 3),
    Arrivals("dynamic", 6.0, 3, rates=CHANGING),
]


def first(arrivals, count, begin_s=0.0):
    return list(itertools.islice(arrival_times(arrivals, begin_s), count))


def within(arrivals, end_s):
    return list(itertools.takewhile(lambda at_s: at_s <= end_s, arrival_times(arrivals)))


@pytest.mark.parametrize("arrivals", ALL, ids=lambda one: one.kind)
def test_the_mean_rate_is_the_one_asked_for(arrivals):
    # Of bursts there are 2,000, of 6 s * 4 * their exponential length each: 3 % is three standard deviations.
    assert len(within(arrivals, 20000.0)) / 20000.0 == pytest.approx(6.0, rel=0.03)


@pytest.mark.parametrize("arrivals", ALL, ids=lambda one: one.kind)
def test_times_increase_from_their_begin_on(arrivals):
    found = first(arrivals, 2000, begin_s=7.0)
    assert found == sorted(found)
    assert found[0] > 7.0
    assert found == pytest.approx([7.0 + one for one in first(arrivals, 2000)])


@pytest.mark.parametrize("arrivals", ALL[1:], ids=lambda one: one.kind)
def test_a_seed_fixes_the_times_and_another_gives_others(arrivals):
    assert first(arrivals, 50) == first(arrivals, 50)
    assert first(arrivals, 50) != first(arrivals._replace(seed=4), 50)


def test_constant_arrivals_come_evenly():
    assert first(Arrivals("constant", 4.0), 4) == [0.25, 0.5, 0.75, 1.0]


def test_random_gaps_are_exponential():
    found = first(Arrivals("poisson", 2.0, 1), 20000)
    gaps = sorted(after - before for before, after in zip([0.0, *found], found))
    assert gaps[10000] == pytest.approx(math.log(2.0) / 2.0, rel=0.03)
    assert gaps[18000] == pytest.approx(math.log(10.0) / 2.0, rel=0.03)


def test_bursts_vary_more_than_chance():
    def spread(arrivals):
        counts = [0] * 2000
        for at_s in within(arrivals, 2000.0 - 1e-9):
            counts[int(at_s)] += 1
        mean = sum(counts) / 2000.0
        return sum((one - mean) ** 2 for one in counts) / 2000.0 / mean

    assert spread(Arrivals("poisson", 6.0, 3)) == pytest.approx(1.0, abs=0.15)
    assert spread(Arrivals("bursts", 6.0, 3)) > 2.0


def test_changing_rates_hold_each_in_its_time_and_repeat():
    counts = [0, 0, 0]
    for at_s in within(ALL[3], 20000.0):
        place_s = at_s % 20.0
        counts[0 if place_s < 10.0 else 1 if place_s < 15.0 else 2] += 1
    assert counts[0] / 10000.0 == pytest.approx(2.0, rel=0.05)
    assert counts[1] / 5000.0 == pytest.approx(20.0, rel=0.05)
    assert counts[2] == 0


def test_fields_become_arrivals():
    assert parse_arrivals({"rate_hz": 5}) == Arrivals("poisson", 5.0)
    assert parse_arrivals({"kind": "constant", "rate_hz": 5, "seed": 2}) == Arrivals("constant", 5.0, 2)
    bursts = parse_arrivals({"kind": "bursts", "rate_hz": 5, "burst_factor": 2, "burst_s": 3})
    assert bursts == Arrivals("bursts", 5.0, burst_factor=2.0, burst_s=3.0)
    dynamic = parse_arrivals({"kind": "dynamic", "rates": [list(one) for one in CHANGING], "seed": 3})
    assert dynamic == ALL[3]
    assert parse_arrivals({"kind": "dynamic", "rates": CHANGING, "rate_hz": 6}).rate_hz == 6.0


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, "rate_hz"),
        ({"rate_hz": 0}, "rate_hz"),
        ({"rate_hz": float("inf")}, "rate_hz"),
        ({"rate_hz": 1, "kind": "often"}, "kind"),
        ({"rate_hz": 1, "kind": ["often"]}, "kind"),
        ({"rate_hz": 1, "seed": -1}, "seed"),
        ({"rate_hz": 1, "rate": 2}, "arrivals"),
        ({"rate_hz": 1, "kind": "bursts", "burst_factor": 11}, "burst_factor"),
        ({"rate_hz": 1, "kind": "bursts", "burst_factor": 0.5}, "burst_factor"),
        ({"rate_hz": 1, "kind": "bursts", "quiet_s": 0}, "quiet_s"),
        ({"rate_hz": 1, "kind": "bursts", "burst_s": 1e-9}, "burst_s"),
        ({"rate_hz": 10001}, "rate_hz"),
        ({"rate_hz": 8000, "kind": "bursts", "burst_factor": 6}, "burst_factor"),
        ({"kind": "dynamic", "rates": [[1, 20000]]}, "rates"),
        ({"kind": "dynamic", "rates": [[1, 1e6], [1e6, 0]]}, r"rates\[0\]"),
        ({"kind": "dynamic", "rates": [[1, 2], [1e-12, 1]]}, r"rates\[1\]"),
        ({"kind": "dynamic"}, "rates"),
        ({"kind": "dynamic", "rates": [[1, 0]]}, "rates"),
        ({"kind": "dynamic", "rates": [[1, 2, 3]]}, r"rates\[0\]"),
        ({"kind": "dynamic", "rates": [[1, 2], [0, 1]]}, r"rates\[1\]"),
        ({"kind": "dynamic", "rates": [[1, 2], [1, 4]], "rate_hz": 4}, "rate_hz"),
    ],
)
def test_a_slip_is_told_by_its_field(fields, where):
    with pytest.raises(BadField, match=where + ": got"):
        parse_arrivals(fields)
