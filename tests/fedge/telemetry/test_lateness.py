"""Who counts in a round follows from when boards end, and from nothing else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.experiment import LateReplySpec
from fedge.telemetry.lateness import (
    NO_CUTOFF,
    Completion,
    RealCutoff,
    classify_clients,
    compute_cutoff_s,
    compute_real_cutoff,
    has_enough_replies,
)

ENDINGS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.builds(Completion, st.integers(1, 12).map(float), st.sampled_from([None, None, None, "went away"])),
    min_size=1,
)


def test_without_a_deadline_nobody_is_late() -> None:
    assert all(
        compute_cutoff_s(LateReplySpec(action=action), None) is None
        for action in ("accept", "drop", "discount", "partial")
    )


def test_only_drop_and_discount_go_on_without_those_who_are_late() -> None:
    cuts = {
        a: compute_cutoff_s(LateReplySpec(action=a, grace=0.5), 10.0) for a in ("accept", "drop", "discount", "partial")
    }

    assert cuts == {"accept": None, "drop": 15.0, "discount": 15.0, "partial": None}


@given(ENDINGS, st.sampled_from([None, 3.0, 6.5, 20.0]), st.sampled_from([None, 1, 2, 3]))
def test_everybody_is_judged_by_when_the_round_ends(
    endings: dict[str, Completion], cut_s: float | None, wanted: int | None
) -> None:
    verdict = classify_clients(endings, cut_s, wanted, 0.0)
    done = {board for board, status in verdict.status.items() if status == "done"}

    assert verdict.status.keys() == endings.keys()
    assert cut_s is None or verdict.round_s <= cut_s
    for board, status in verdict.status.items():
        ending = endings[board]
        if status in ("done", "failed"):
            assert ending.at_s <= verdict.round_s
            assert (ending.error is None) == (status == "done")
        elif status == "late":
            assert verdict.round_s == cut_s < ending.at_s
        else:
            assert len(done) == wanted
            assert all((endings[other].at_s, other) < (ending.at_s, board) for other in done)


@given(ENDINGS, st.sampled_from([None, 3.0, 6.5]), st.sampled_from([None, 1, 2]))
def test_the_order_in_which_boards_are_told_changes_nothing(
    endings: dict[str, Completion], cut_s: float | None, wanted: int | None
) -> None:
    turned = dict(reversed(endings.items()))

    assert classify_clients(endings, cut_s, wanted, 0.0) == classify_clients(turned, cut_s, wanted, 0.0)


def test_of_equally_fast_boards_the_first_by_name_counts() -> None:
    verdict = classify_clients({"b": Completion(5.0), "a": Completion(5.0)}, None, 1, 0.0)

    assert (verdict.round_s, verdict.status) == (5.0, {"a": "done", "b": "cancelled"})


def test_the_round_waits_for_a_board_until_it_is_known_to_have_failed() -> None:
    verdict = classify_clients({"a": Completion(5.0), "b": Completion(9.0, "went away")}, None, None, 0.0)

    assert (verdict.round_s, verdict.status["b"]) == (9.0, "failed")


def test_a_round_of_no_board_is_as_long_as_planned() -> None:
    assert classify_clients({}, None, None, 7.0).round_s == pytest.approx(7.0)


ACTIONS = ("accept", "drop", "discount", "partial")


def test_real_boards_are_given_up_when_their_reply_would_not_count_in_this_round() -> None:
    cuts = {a: compute_real_cutoff(LateReplySpec(action=a, grace=0.5), 10.0, None) for a in ACTIONS}

    assert cuts == {
        "accept": NO_CUTOFF,
        "drop": RealCutoff(15.0, 15.0, None, 15.0),
        "discount": RealCutoff(15.0, None, None, 15.0),
        "partial": NO_CUTOFF,
    }


def test_with_over_commitment_a_board_that_would_be_awaited_stops_itself_too() -> None:
    cuts = {a: compute_real_cutoff(LateReplySpec(action=a, grace=0.5), 10.0, 3) for a in ACTIONS}

    assert cuts["accept"] == RealCutoff(15.0, 15.0, 3, None)
    assert cuts["drop"] == RealCutoff(15.0, 15.0, 3, 15.0)
    assert cuts["partial"] == RealCutoff(None, None, 3, None)


def test_without_a_deadline_no_real_board_is_given_up() -> None:
    for action in ACTIONS:
        assert compute_real_cutoff(LateReplySpec(action=action), None, None) == NO_CUTOFF
        assert compute_real_cutoff(LateReplySpec(action=action), None, 2) == RealCutoff(wanted=2)


@given(ENDINGS, st.sampled_from([None, 3.0, 6.5, 20.0]), st.sampled_from([1, 2, 3]))
def test_a_round_goes_on_without_the_others_just_when_as_many_as_are_wanted_would_count(
    endings: dict[str, Completion], cut_s: float | None, wanted: int
) -> None:
    good = {board: ending for board, ending in endings.items() if ending.error is None}
    missing = {board: Completion(math.inf) for board in "xyz"}
    verdict = classify_clients(good | missing, cut_s, wanted, 7.0)
    done = sum(status == "done" for status in verdict.status.values())

    assert has_enough_replies(RealCutoff(wanted=wanted, counts_s=cut_s), [ending.at_s for ending in good.values()]) == (
        done == wanted
    )
    assert not has_enough_replies(RealCutoff(counts_s=cut_s), [ending.at_s for ending in good.values()])


CUT_OFF = st.sets(st.sampled_from("abcdefghxyz"), min_size=1)


@given(ENDINGS, CUT_OFF, st.sampled_from([None, 3.0, 20.0]), st.sampled_from([None, 2]))
def test_a_board_that_was_cut_off_never_counts_and_never_fails(
    endings: dict[str, Completion], cut_off: set[str], cut_s: float | None, wanted: int | None
) -> None:
    verdict = classify_clients(endings | {board: Completion(math.inf) for board in cut_off}, cut_s, wanted, 7.0)

    assert math.isfinite(verdict.round_s)
    enough = wanted is not None and sum(status == "done" for status in verdict.status.values()) == wanted
    assert {verdict.status[board] for board in cut_off} == {"cancelled" if enough else "late"}
    if not enough:
        assert verdict.round_s == cut_s or (cut_s is None and verdict.round_s >= 7.0)
