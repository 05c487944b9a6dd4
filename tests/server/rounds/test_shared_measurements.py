"""What boards of one kind get of each other: spread over boards and modes, new modes first, nothing doubtful."""

import dataclasses
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.knowledge.recall import MAX_DONORS, MAX_MODES
from fedge.types import Measurement, PowerMode
from fedge.wire import ClientState
from server.rounds.shared_measurements import GROUPS, count_groups, divide_boards, share_measurements

COST = "resnet18-imagenet"
NANO = ("nano", "model", COST)


def mode(i: int) -> PowerMode:
    return PowerMode(4, 1000.0 + i, 900.0, 1600.0)


def seen(i: int, step_s: float = 1.0, power_w: float = 5.0, **more: object) -> Measurement:
    return dataclasses.replace(Measurement(mode(i), 10, step_s, power_w), **more)


def state(*modes: int) -> ClientState:
    return ClientState(tuple(seen(i) for i in modes))


def told(states: dict[str, ClientState], board: str = "a", limit: int = MAX_MODES) -> tuple[Measurement, ...]:
    return share_measurements(dict.fromkeys(states, NANO), states, [board], limit=limit)[board]


def test_boards_of_another_kind_share_nothing():
    states = {"a": state(1), "b": state(2)}

    for other in (("nano", "table:/a.csv", COST), ("nano", "model", "resnet50-tinyimagenet224")):
        assert share_measurements({"a": NANO, "b": other}, states, "ab") == {"a": (), "b": ()}


def test_of_a_mode_measured_three_times_an_outlier_is_not_told():
    measurements = (seen(1, 1.0), seen(1, 1.4), seen(1, 1.01))

    assert [m.step_s for m in told({"a": state(), "b": ClientState(measurements)})] == [1.01]


@pytest.mark.parametrize(
    "wrong",
    [
        {"step_s": math.nan},
        {"step_s": 0.0},
        {"power_w": math.inf},
        {"power_w": -1.0},
        {"throttled": True},
        {"mode": PowerMode(4, math.nan, 900.0, 1600.0)},
    ],
)
def test_what_is_no_number_or_was_throttled_is_not_shared(wrong):
    doubtful = dataclasses.replace(seen(1), **wrong)

    assert [m.mode for m in told({"a": state(), "b": ClientState((doubtful, seen(2)))})] == [mode(2)]


@pytest.mark.parametrize("wrong", [{"step_s": 2.0}, {"step_s": 0.5}, {"power_w": 8.0}, {"power_w": 5e-324}])
def test_two_boards_that_contradict_each_other_do_not_share_and_others_go_on(wrong):
    bad = ClientState(tuple(dataclasses.replace(seen(i), **wrong) for i in (1, 2)))
    states = {"a": state(1, 3), "b": bad, "c": state(1, 4)}

    assert {m.board for m in told(states, "a")} == {"c"}
    assert told(states, "b") == ()
    assert {m.board for m in told(states, "c")} == {"a"}


def test_in_a_large_fleet_the_boards_of_a_group_are_told_the_same_of_some_boards_of_others():
    states = {f"n{i:02d}": state(i, 100 + i) for i in range(40)}
    found = share_measurements(dict.fromkeys(states, NANO), states, states)

    members = [sorted(states)[group :: count_groups(40)] for group in range(count_groups(40))]
    groups = [{found[board] for board in boards} for boards in members]
    assert {len(told) for told in groups} == {1}
    donors = [{m.board for told in group for m in told} for group in groups]
    assert {len(names) for names in donors} == {MAX_DONORS}
    assert not any(names & set(boards) for names, boards in zip(donors, members, strict=True))


@pytest.mark.parametrize("boards", [1, 5])
def test_boards_that_take_no_part_tell_every_group(boards):
    peers = {f"peer-{i}": state(i) for i in range(6)}
    states = {f"n{i}": state() for i in range(boards)}
    found = share_measurements(dict.fromkeys(states | peers, NANO), states | peers, states, peers)

    assert all({one.board for one in told} == set(peers) for told in found.values())


def test_a_board_that_contradicts_a_donor_hears_of_another_instead():
    states = {f"n{i:02d}": state(1, 100 + i) for i in range(40)}
    before = share_measurements(dict.fromkeys(states, NANO), states, ["n00"])["n00"]
    liar = str(before[0].board)
    lies = ClientState(tuple(dataclasses.replace(one, step_s=2.0) for one in states[liar].measurements))

    after = share_measurements(dict.fromkeys(states, NANO), states | {liar: lies}, ["n00"])["n00"]

    assert liar not in {one.board for one in after}
    assert len({one.board for one in after}) == MAX_DONORS


fleets = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.integers(0, 15), max_size=20).map(lambda modes: state(*modes)), min_size=2
)


@given(states=fleets, limit=st.integers(1, 40), others=st.randoms())
def test_shares_are_as_even_as_what_there_is_allows_and_do_not_depend_on_an_order(states, limit, others):
    names = list(states)
    others.shuffle(names)
    kinds = dict.fromkeys(states, NANO)
    found = share_measurements(kinds, states, states, limit=limit)
    again = share_measurements(dict.fromkeys(names, NANO), {name: states[name] for name in names}, names, limit=limit)

    assert found == again
    assert all(share_measurements(kinds, states, [name], limit=limit) == {name: found[name]} for name in names)
    for board, told in found.items():
        group = sorted(states)[sorted(states).index(board) % GROUPS :: GROUPS]
        there = {other: len({m.mode for m in states[other].measurements}) for other in states if other not in group}
        counts = Counter(m.board for m in told)
        assert len(told) == min(limit, sum(there.values()))
        assert len({(m.board, m.mode) for m in told}) == len(told)
        for other, count in there.items():
            assert counts[other] <= count
            if counts[other] < count:
                assert counts[other] >= max(counts.values(), default=0) - 1


@pytest.mark.parametrize("shares", [1, 2, 3, 4, 7])
def test_boards_are_divided_equally_and_those_of_a_group_stay_together(shares):
    kinds = {f"{kind}-{i}": kind for kind in ("nano", "orin") for i in range(12)}

    parts = divide_boards(kinds, kinds, shares)

    assert sorted(board for part in parts for board in part) == sorted(kinds)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if GROUPS % shares == 0:
        assert {Counter(kinds[board] for board in part)["nano"] for part in parts} == {12 // shares}
        nano = sorted(kinds)[:12]
        groups = [{nano.index(board) % GROUPS for board in part if board in nano} for part in parts]
        assert sum(map(len, groups)) == GROUPS


def test_a_board_stays_in_its_share_if_others_are_not_asked():
    kinds = dict.fromkeys("abcdefgh", "nano")
    first, second = divide_boards(kinds, kinds, 2)

    assert divide_boards(kinds, [*first[1:], *second[:-1]], 2) == [first[1:], second[:-1]]
