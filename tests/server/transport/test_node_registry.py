"""Who is which board follows from what nodes said and which are up, whatever the order in which they come and go."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.types import RoundGoal
from fedge.wire import ReplyMessage, RequestMessage
from server.transport.claim_terms import (
    CLAIM_FACTOR,
    CLAIM_MARGIN_S,
    INITIAL_CLAIM_S,
    MIN_CLAIM_S,
    ClaimTerms,
    claim_duration_s,
)
from server.transport.client_port import OutgoingRequest
from server.transport.node_registry import MAX_FOREIGN_CLAIM_S, SILENT_RETRY_S, NodeRegistry

NODES = range(11, 16)
STEPS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(NODES)),
        st.dictionaries(st.sampled_from(NODES), st.sampled_from("abx")),
    ),
    max_size=8,
)
"""Which nodes are up, and what those that are asked then say; the others stay silent."""


@given(STEPS)
def test_a_board_has_one_seat_at_a_node_that_is_up_and_said_so(
    steps,
):
    roll, said, now_s = NodeRegistry(("a", "b")), dict[int, str](), 0.0
    for up, names in steps:
        roll.up = dict.fromkeys(up, "")
        before = roll.list_addresses()
        unknown = roll.list_unidentified(now_s)
        roll.record_hellos(unknown, {node: ReplyMessage(names[node]) for node in unknown if node in names}, now_s)
        said |= {node: names[node] for node in unknown if node in names}
        now_s += 1.0

        seats = roll.list_addresses()
        assert all(said[seat.node] == board and seat.node in up for board, seat in seats.items())
        assert before.items() <= seats.items()
        assert "x" not in seats
        for board in "ab":
            claimants = {node for node in unknown if names.get(node) == board}
            assert (board in seats) == (board in before or bool(claimants))


@given(STEPS)
def test_nobody_is_asked_who_has_a_seat_or_is_a_stranger_and_a_silent_node_not_at_once(
    steps,
):
    roll, strangers = NodeRegistry(("a", "b")), set[int]()
    for i, (up, names) in enumerate(steps):
        roll.up = dict.fromkeys(up, "")
        unknown = roll.list_unidentified(float(i))
        assert not strangers & set(unknown)
        assert not {seat.node for seat in roll.list_addresses().values()} & set(unknown)
        roll.record_hellos(unknown, {node: ReplyMessage(names[node]) for node in unknown if node in names}, float(i))
        assert roll.list_unidentified(float(i)) == []
        strangers |= {node for node in unknown if names.get(node) == "x"}


def test_a_board_that_restarted_as_another_node_is_back_once_the_old_node_has_gone():
    roll = NodeRegistry(("a", "b"), {11: "", 12: ""})
    roll.record_hellos([11, 12], {11: ReplyMessage("a"), 12: ReplyMessage("b")}, 0.0)
    roll.up = {11: "", 12: "", 13: ""}  # 13 is b again, and Flower has not missed 12 yet
    roll.record_hellos([13], {13: ReplyMessage("b")}, 10.0)
    assert roll.list_addresses()["b"].node == 12
    assert roll.list_unidentified(10.0) == []

    roll.up = {11: "", 13: ""}
    now_s = 10.0 + SILENT_RETRY_S
    unknown = roll.list_unidentified(now_s)
    roll.record_hellos(unknown, {13: ReplyMessage("b")}, now_s)

    assert unknown == [13]
    assert roll.list_addresses()["b"].node == 13


def roll_of(**boards: int) -> NodeRegistry:
    roll = NodeRegistry(tuple(boards), dict.fromkeys(boards.values(), "morning"))
    roll.record_hellos(tuple(boards.values()), {node: ReplyMessage(board) for board, node in boards.items()}, 0.0)
    return roll


def test_a_board_that_is_gone_says_since_when_and_nothing_of_it_once_it_is_back():
    roll = roll_of(a=11, b=12)
    roll.up = {11: "morning"}
    gone = [roll.explain_absence("b", number) for number in (2, 3)]
    roll.up = {11: "morning", 12: "noon"}
    back = roll.explain_absence("b", 4)
    roll.up = {11: "morning"}

    assert gone == ["connection lost since round 2"] * 2
    assert back is None
    assert roll.explain_absence("b", 5) == "connection lost since round 5"
    assert NodeRegistry(("z",)).explain_absence("z", 1) == "never connected"


@pytest.mark.parametrize(("held_s", "free_s"), [(20.0, 20.0), (9000.0, MAX_FOREIGN_CLAIM_S)])
def test_a_held_board_is_left_alone_until_its_claim_ends_or_it_is_time_to_ask_again(held_s, free_s):
    roll = NodeRegistry(("a",), {11: ""})
    roll.record_hellos([11], {11: ReplyMessage("a", error="works for another", held_s=held_s)}, 100.0)

    assert roll.find_foreign_claim("a", 100.0 + free_s - 1.0).error == "works for another"
    assert roll.list_available(100.0 + free_s - 1.0) == ()
    assert roll.find_foreign_claim("a", 100.0 + free_s) is None
    assert roll.list_available(100.0 + free_s) == ("a",)


SECONDS = st.floats(0.1, 1e5)
MAYBE_S = st.one_of(st.none(), SECONDS)


@given(MAYBE_S, MAYBE_S, SECONDS)
def test_no_claim_outlasts_a_reply_by_more_than_the_margin(round_s, planned_s, timeout_s):
    assert 0.0 < claim_duration_s(round_s, planned_s, timeout_s) <= timeout_s + CLAIM_MARGIN_S


@given(MAYBE_S, SECONDS, st.floats(600.0, 1e5))
def test_a_claim_outlasts_the_next_round_as_far_as_a_reply_may_take(round_s, planned_s, timeout_s):
    stands = claim_duration_s(round_s, planned_s, timeout_s)

    assert all(stands >= min(CLAIM_FACTOR * known, timeout_s) for known in (round_s, planned_s) if known is not None)
    assert stands >= MIN_CLAIM_S


def test_the_last_rounds_length_and_the_plan_both_count():
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
