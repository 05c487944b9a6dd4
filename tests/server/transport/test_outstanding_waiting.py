"""How long real boards are waited for follows from what earlier replies took, and never beyond a reply's limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.transport.outstanding import (
    ALLOWANCE_FACTOR,
    INITIAL_ALLOWANCE_S,
    MAX_OVERHEADS,
    MIN_ALLOWANCE_S,
    reply_allowance_s,
    reply_wait_s,
)

OVERHEADS = st.lists(st.floats(0.0, 1e4), max_size=2 * MAX_OVERHEADS)


def test_before_any_reply_a_slow_start_is_allowed_for() -> None:
    assert reply_allowance_s([]) == INITIAL_ALLOWANCE_S


def test_the_largest_of_the_newest_counts_with_a_margin() -> None:
    assert reply_allowance_s([6.0, 20.0, 11.0]) == ALLOWANCE_FACTOR * 20.0
    assert reply_allowance_s([1000.0, *[20.0] * MAX_OVERHEADS]) == ALLOWANCE_FACTOR * 20.0
    assert reply_allowance_s([0.1]) == MIN_ALLOWANCE_S


@given(OVERHEADS.filter(bool), st.floats(0.0, 1e4))
def test_a_reply_that_takes_no_longer_than_those_before_is_waited_for(seen: list[float], within_s: float) -> None:
    newest = seen[-MAX_OVERHEADS:]

    assert reply_wait_s(1e9, within_s, seen) >= within_s + max(newest)


@given(OVERHEADS, st.one_of(st.none(), st.floats(0.0, 1e4)), st.floats(1.0, 1e4))
def test_no_wait_is_longer_than_a_reply_may_take(seen: list[float], within_s: float | None, timeout_s: float) -> None:
    assert reply_wait_s(timeout_s, within_s, seen) <= timeout_s
    assert reply_wait_s(timeout_s, None, seen) == pytest.approx(timeout_s)
