"""The batch size of a service is the largest that keeps its budget and keeps up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.serving.side_by_side import BATCH_SIZES, find_largest_batch, find_least_latency_s, peak_latency_s

SECONDS = {1: 0.02, 4: 0.04, 16: 0.1}


@pytest.mark.parametrize(
    ("seconds", "step_s", "rate_hz", "latency_s", "size"),
    [
        (SECONDS, 0.05, 40.0, 0.6, 16),  # 16 / 40 + 0.05 + 0.1 = 0.55 s
        (SECONDS, 0.05, 40.0, 0.5, 4),  # 4 / 40 + 0.05 + 0.04 = 0.19 s
        (SECONDS, 0.2, 40.0, 0.6, 4),  # the training step counts
        (SECONDS, 0.05, 40.0, 0.05, None),
        (SECONDS, 0.05, 1.0, 0.1, 1),  # a request that is served alone does not wait for others
        ({1: 0.02}, 0.0, 40.0, 1.0, 1),  # needs 0.8 of the time
        ({1: 0.02}, 0.0, 50.0, 1.0, None),  # needs all of it
    ],
)
def test_the_largest_batch_that_meets_the_budget_and_keeps_up_is_taken(seconds, step_s, rate_hz, latency_s, size):
    assert find_largest_batch(seconds, step_s, rate_hz, latency_s) == size


def test_the_least_budget_is_that_of_the_shortest_batch_if_it_keeps_up():
    assert find_least_latency_s(SECONDS, 0.05, 40.0) == 0.05 + 0.02
    assert find_least_latency_s({1: 0.02}, 0.05, 100.0) is None


@given(
    st.dictionaries(st.sampled_from(BATCH_SIZES), st.floats(1e-4, 1.0), min_size=1),
    st.floats(0.0, 1.0),
    st.floats(0.1, 500.0),
    st.floats(1e-3, 5.0),
)
def test_a_size_is_found_just_where_the_least_budget_is_kept(seconds, step_s, rate_hz, latency_s):
    least_s = find_least_latency_s(seconds, step_s, rate_hz)
    chosen = find_largest_batch(seconds, step_s, rate_hz, latency_s)

    assert (chosen is not None) == (least_s is not None and least_s <= latency_s)
    if chosen is not None:
        assert peak_latency_s(chosen, seconds[chosen], step_s, rate_hz) <= latency_s
