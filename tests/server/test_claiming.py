"""A board is kept for its run over the usual pause between rounds, and not much longer."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from fedge.types import Goal
from fedge.wire import Ask
from server.claiming import FACTOR, FIRST_S, LEAST_S, MARGIN_S, Claiming, stands_s
from server.port import Question

SECONDS = st.floats(0.1, 1e5)
MAYBE_S = st.one_of(st.none(), SECONDS)


@given(MAYBE_S, MAYBE_S, SECONDS)
def test_no_claim_outlasts_a_reply_by_more_than_the_margin(
    round_s: float | None, planned_s: float | None, timeout_s: float
) -> None:
    assert 0.0 < stands_s(round_s, planned_s, timeout_s) <= timeout_s + MARGIN_S


@given(MAYBE_S, SECONDS, st.floats(600.0, 1e5))
def test_a_claim_outlasts_the_next_round_as_far_as_a_reply_may_take(
    round_s: float | None, planned_s: float, timeout_s: float
) -> None:
    stands = stands_s(round_s, planned_s, timeout_s)

    assert all(stands >= min(FACTOR * known, timeout_s) for known in (round_s, planned_s) if known is not None)
    assert stands >= LEAST_S


def test_the_last_rounds_length_and_the_plan_both_count() -> None:
    claiming = Claiming("digits (run-1, abcd)", 600.0)
    front = Question(Ask("front"))
    train = Question(Ask("train", 1, goal=Goal("balanced", 50, deadline_s=70.0)))
    plain = dataclasses.replace(train, ask=Ask("train", 1))

    claiming.round_begins(1000.0)
    first = [claiming.on(each).ask.claim_s for each in (front, train, plain)]
    claiming.round_begins(1100.0)
    second = [claiming.on(each).ask.claim_s for each in (front, train, plain)]

    assert first == [FIRST_S, 3 * 70.0, FIRST_S]
    assert second == [300.0, 300.0, 300.0]
    assert claiming.on(train).ask.run == "digits (run-1, abcd)"
