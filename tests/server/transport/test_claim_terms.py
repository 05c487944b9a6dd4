"""A board is kept for its run over the usual pause between rounds, and not much longer."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from fedge.types import RoundGoal
from fedge.wire import RequestMessage
from server.transport.claim_terms import (
    CLAIM_FACTOR,
    CLAIM_MARGIN_S,
    INITIAL_CLAIM_S,
    MIN_CLAIM_S,
    ClaimTerms,
    claim_duration_s,
)
from server.transport.client_port import OutgoingRequest

SECONDS = st.floats(0.1, 1e5)
MAYBE_S = st.one_of(st.none(), SECONDS)


@given(MAYBE_S, MAYBE_S, SECONDS)
def test_no_claim_outlasts_a_reply_by_more_than_the_margin(
    round_s: float | None, planned_s: float | None, timeout_s: float
) -> None:
    assert 0.0 < claim_duration_s(round_s, planned_s, timeout_s) <= timeout_s + CLAIM_MARGIN_S


@given(MAYBE_S, SECONDS, st.floats(600.0, 1e5))
def test_a_claim_outlasts_the_next_round_as_far_as_a_reply_may_take(
    round_s: float | None, planned_s: float, timeout_s: float
) -> None:
    stands = claim_duration_s(round_s, planned_s, timeout_s)

    assert all(stands >= min(CLAIM_FACTOR * known, timeout_s) for known in (round_s, planned_s) if known is not None)
    assert stands >= MIN_CLAIM_S


def test_the_last_rounds_length_and_the_plan_both_count() -> None:
    claiming = ClaimTerms("digits (run-1, abcd)", 600.0)
    front = OutgoingRequest(RequestMessage("front"))
    train = OutgoingRequest(RequestMessage("train", 1, goal=RoundGoal("balanced", 50, deadline_s=70.0)))
    plain = dataclasses.replace(train, ask=RequestMessage("train", 1))

    claiming.begin_round(1000.0)
    first = [claiming.add_to_request(each).ask.claim_s for each in (front, train, plain)]
    claiming.begin_round(1100.0)
    second = [claiming.add_to_request(each).ask.claim_s for each in (front, train, plain)]

    assert first == [INITIAL_CLAIM_S, 3 * 70.0, INITIAL_CLAIM_S]
    assert second == [300.0, 300.0, 300.0]
    assert claiming.add_to_request(train).ask.run == "digits (run-1, abcd)"
