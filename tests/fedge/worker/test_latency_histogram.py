"""The histogram: percentiles to 5 %, the late ones exactly, and the same again after merging and as data."""

import json
import random

import pytest

from fedge.worker.latency_histogram import FIRST_S, LAST_BIN, LAST_S, RATIO, LatencyHistogram, bin_index, bin_upper_s

CHANCE = random.Random(5)
SEEN = [CHANCE.lognormvariate(-3.0, 1.5) for _ in range(5000)]


def of(latencies, budget_s=0.1):
    made = LatencyHistogram(budget_s)
    for one in latencies:
        made.add(one)
    return made


@pytest.mark.parametrize("q", [0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 100.0])
def test_a_percentile_is_not_below_the_true_one_and_at_most_a_bin_above(q):
    true = sorted(SEEN)[max(0, -int(-len(SEEN) * q // 100) - 1)]
    assert true <= of(SEEN).percentile(q) * (1 + 1e-9)
    assert of(SEEN).percentile(q) <= max(true * RATIO, FIRST_S) * (1 + 1e-9)


def test_the_late_ones_and_the_worst_are_exact():
    seen = of([0.1, 0.1000001, 0.05, 7.0])
    assert (seen.count, seen.late, seen.worst_s, seen.total_s) == (4, 2, 7.0, pytest.approx(7.2500001))
    assert seen.percentile(100) == 7.0


def test_nothing_has_no_percentile():
    assert LatencyHistogram(1.0).percentile(50) is None


def test_what_is_out_of_range_is_in_the_outer_bins():
    assert bin_index(0.0) == 0
    assert bin_index(FIRST_S / 2) == 0
    assert bin_index(LAST_S * 50) == LAST_BIN
    assert of([5e4]).percentile(50) == 5e4
    assert bin_upper_s(LAST_BIN) >= LAST_S


def test_every_edge_lies_in_its_own_bin():
    assert [bin_index(bin_upper_s(place)) for place in range(LAST_BIN)] == list(range(LAST_BIN))


def test_as_data_it_comes_through_json():
    seen = of(SEEN)
    text = json.dumps(seen.as_data())
    assert LatencyHistogram.from_data(json.loads(text)) == seen
    assert len(text) < 4000
