"""Who is which board follows from what nodes said and which are up, whatever the order in which they come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.wire import Answer
from server.roll_call import HELD_S, SILENT_S, RollCall, Seat

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
    steps: list[tuple[set[int], dict[int, str]]],
) -> None:
    roll, said, now_s = RollCall(("a", "b")), dict[int, str](), 0.0
    for up, names in steps:
        roll.up = dict.fromkeys(up, "")
        before = roll.seats()
        unknown = roll.unknown(now_s)
        roll.heard(unknown, {node: Answer(names[node]) for node in unknown if node in names}, now_s)
        said |= {node: names[node] for node in unknown if node in names}
        now_s += 1.0

        seats = roll.seats()
        assert all(said[seat.node] == board and seat.node in up for board, seat in seats.items())
        assert before.items() <= seats.items()
        assert "x" not in seats
        for board in "ab":
            claimants = {node for node in unknown if names.get(node) == board}
            assert (board in seats) == (board in before or bool(claimants))


@given(STEPS)
def test_nobody_is_asked_who_has_a_seat_or_is_a_stranger_and_a_silent_node_not_at_once(
    steps: list[tuple[set[int], dict[int, str]]],
) -> None:
    roll, strangers = RollCall(("a", "b")), set[int]()
    for i, (up, names) in enumerate(steps):
        roll.up = dict.fromkeys(up, "")
        unknown = roll.unknown(float(i))
        assert not strangers & set(unknown)
        assert not {seat.node for seat in roll.seats().values()} & set(unknown)
        roll.heard(unknown, {node: Answer(names[node]) for node in unknown if node in names}, float(i))
        assert roll.unknown(float(i)) == []
        strangers |= {node for node in unknown if names.get(node) == "x"}


def roll_of(**boards: int) -> RollCall:
    roll = RollCall(tuple(boards), dict.fromkeys(boards.values(), "morning"))
    roll.heard(tuple(boards.values()), {node: Answer(board) for board, node in boards.items()}, 0.0)
    return roll


def test_a_node_that_was_started_anew_is_another_seat() -> None:
    roll = roll_of(a=11)
    before = roll.seat("a")
    roll.up = {11: "noon"}

    assert (before, roll.seat("a")) == (Seat(11, "morning"), Seat(11, "noon"))


def test_a_board_that_is_gone_says_since_when_and_nothing_of_it_once_it_is_back() -> None:
    roll = roll_of(a=11, b=12)
    roll.up = {11: "morning"}
    gone = [roll.absence("b", number, 0.0) for number in (2, 3)]
    roll.up = {11: "morning", 12: "noon"}
    back = roll.absence("b", 4, 0.0)
    roll.up = {11: "morning"}

    assert gone == ["connection lost since round 2"] * 2
    assert back is None
    assert roll.absence("b", 5, 0.0) == "connection lost since round 5"
    assert RollCall(("z",)).absence("z", 1, 0.0) == "never connected"


def test_a_silent_node_is_asked_ever_more_seldom() -> None:
    roll = RollCall(("a",), {11: ""})
    asked_s = []
    for now_s in range(0, int(8 * SILENT_S), 5):
        if roll.unknown(float(now_s)):
            asked_s.append(now_s)
            roll.heard([11], {}, float(now_s))

    assert asked_s == [0, SILENT_S, 3 * SILENT_S, 7 * SILENT_S]


@pytest.mark.parametrize(("held_s", "free_s"), [(20.0, 20.0), (9000.0, HELD_S)])
def test_a_held_board_is_left_alone_until_its_claim_ends_or_it_is_time_to_ask_again(
    held_s: float, free_s: float
) -> None:
    roll = RollCall(("a",), {11: ""})
    roll.heard([11], {11: Answer("a", error="works for another", held_s=held_s)}, 100.0)

    assert roll.absence("a", 1, 100.0 + free_s - 1.0) == "works for another"
    assert roll.ours(100.0 + free_s - 1.0) == ()
    assert roll.absence("a", 1, 100.0 + free_s) is None
    assert roll.ours(100.0 + free_s) == ("a",)
