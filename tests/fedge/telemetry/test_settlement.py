"""A round's books: who is late, when the round ends, and where every joule went."""

import dataclasses
import math

import pytest
from contracts.reports import IDLE_W, LINK, LOW, MAXN_IDLE_W, answer, front, report, report_of_three_parts
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.battery import BatteryCharge
from fedge.experiment import BatterySpec, LateReplySpec
from fedge.telemetry.client_rows import RoundStart, _compute_moved_mb
from fedge.telemetry.round_columns import CompletedWork
from fedge.telemetry.settlement import (
    NO_CUTOFF,
    RealCutoff,
    compute_real_cutoff,
    round_row,
    settle_round,
)
from fedge.wire import ReplyMessage

OPEN = RoundStart(round=1, start_s=100.0, deadline_s=30.0, idle_w={"a": IDLE_W, "b": IDLE_W})
BUSY = LINK.down_s + LINK.up_s


def test_the_round_lasts_until_the_straggler_is_done():
    settled = settle_round(OPEN, {"a": answer("a", 10.0), "b": answer("b", 25.0)}, LateReplySpec())

    assert settled.end_s == pytest.approx(100.0 + 25.0 + BUSY)
    assert settled.accepted == ("a", "b")
    assert round_row(settled, (0.1, 0.9)).straggler == "b"


def test_the_measured_rate_of_a_real_boards_link_is_in_its_row():
    measured, emulated = answer("a", 10.0), answer("b", 25.0)
    assert measured.report is not None
    measured = dataclasses.replace(measured, report=dataclasses.replace(measured.report, link_mbps=12.5))
    settled = settle_round(OPEN, {"a": measured, "b": emulated}, LateReplySpec())
    assert [row.link_mbps for row in settled.clients] == [12.5, None]


@given(st.lists(st.tuples(st.floats(0.1, 200.0), st.floats(0.5, 60.0)), min_size=1, max_size=6), st.booleans())
def test_a_boards_time_and_energy_always_add_up(work, drop):
    answers = {f"b{i}": answer(f"b{i}", *w) for i, w in enumerate(work)}
    settled = settle_round(OPEN, answers, LateReplySpec(action="drop" if drop else "accept", grace=0.0))
    round_s = settled.end_s - settled.start_s

    for row in settled.clients:
        assert row.end_s <= settled.end_s + 1e-9
        assert row.down_s + row.work_s + row.up_s + row.wait_s == pytest.approx(round_s)
        assert row.energy_j == pytest.approx(row.work_j + row.radio_j + row.idle_w * (round_s - row.work_s))
        assert (row.board in settled.accepted) == (row.status == "done")


def test_the_oracle_takes_the_cheapest_mode_that_fits_the_rounds_length():
    answers = {"a": answer("a", 10.0, truth=front()), "b": answer("b", 25.0, truth=front(2.0))}
    settled = settle_round(OPEN, answers, LateReplySpec())
    row = round_row(settled, (0.1, 0.9))
    a, b = settled.clients

    # a has 25 s for its work and takes LOW (80 J in 20 s); b has 25 s as well, which only MAXN (20 s) meets.
    assert (a.oracle_work_s, b.oracle_work_s) == (20.0, 20.0)
    assert row.oracle_energy_j == pytest.approx(
        80.0 + IDLE_W * (27.0 - 20.0) + 180.0 + IDLE_W * (27.0 - 20.0) + 2 * LINK.radio_j
    )
    assert row.maxn_round_s == pytest.approx(20.0 + BUSY)
    assert row.maxn_parked_energy_j == pytest.approx(90.0 + IDLE_W * 12.0 + 180.0 + IDLE_W * 2.0 + 2 * LINK.radio_j)
    assert row.maxn_energy_j == pytest.approx(90.0 + MAXN_IDLE_W * 12.0 + 180.0 + MAXN_IDLE_W * 2.0 + 2 * LINK.radio_j)


def test_a_board_that_failed_before_any_work_counts_in_the_comparisons_with_what_it_drew():
    answers = {"a": answer("a", 10.0, truth=front()), "b": ReplyMessage("b", error="out of memory")}
    settled = settle_round(OPEN, answers, LateReplySpec())
    row = round_row(settled, (0.1, 0.9))
    alone = round_row(settle_round(OPEN, {"a": answers["a"]}, LateReplySpec()), (0.1, 0.9))

    assert settled.clients[1].energy_j == pytest.approx(IDLE_W * row.round_s) == pytest.approx(IDLE_W * 12.0)
    for quantity in ("oracle_energy_j", "maxn_energy_j", "maxn_parked_energy_j"):
        assert getattr(row, quantity) == pytest.approx(getattr(alone, quantity) + IDLE_W * 12.0)


@pytest.mark.parametrize("asked_steps", [10, 11])
def test_the_whole_work_of_a_refused_client_is_compared_with_maxn_and_a_part_of_it_is_not(asked_steps):
    said = dataclasses.replace(report("a", 10.0, truth=front(), steps=10), asked_steps=asked_steps)
    refused = ReplyMessage("a", error="refused: too far off", report=said)
    settled = settle_round(OPEN, {"a": refused, "b": answer("b", 25.0, truth=front())}, LateReplySpec())
    row, fleet = settled.clients[0], round_row(settled, None)

    assert (row.status, row.error, fleet.refused) == ("failed", "refused: too far off", 1)
    assert (row.maxn_energy_j is None) == (fleet.maxn_energy_j is None) == (asked_steps == 11)
    if asked_steps == 10:
        assert fleet.maxn_energy_j == pytest.approx(row.maxn_energy_j + settled.clients[1].maxn_energy_j)


def test_a_cancelled_board_is_booked_until_enough_others_are_done():
    answers = {"a": answer("a", 10.0, truth=front()), "b": answer("b", 25.0, truth=front(2.0))}
    settled = settle_round(dataclasses.replace(OPEN, wanted=1), answers, LateReplySpec())
    b = settled.clients[1]

    assert (settled.end_s, settled.accepted) == (112.0, ("a",))
    assert (b.status, b.end_s, b.loss, b.staleness) == ("cancelled", 112.0, None, None)
    assert (b.work_s, b.up_s, b.wait_s) == (11.5, 0.0, 0.0)
    assert b.steps == int(10 * 11.5 / 25.0)
    assert (settled.clients[0].moved_mb, b.moved_mb) == (80.0, 50.0)
    assert b.energy_j == pytest.approx(11.5 * 9.0 + 0.25 * LINK.radio_j + 0.5 * IDLE_W)
    # What MAXN would have taken for work that was not done is no comparison.
    assert round_row(settled, (0.1, 0.9)).maxn_energy_j is None


@pytest.mark.parametrize(
    ("down_s", "spent_down_s", "spent_up_s", "moved_mb"),
    [(0.5, 0.25, 0.0, 25.0), (0.5, 0.5, 0.75, 65.0), (0.0, 0.0, 0.75, 65.0), (0.5, 0.5, 1.5, 80.0)],
)
def test_a_client_that_is_cut_off_during_a_transfer_has_moved_a_part(down_s, spent_down_s, spent_up_s, moved_mb):
    link = dataclasses.replace(LINK, down_s=down_s)
    spent = CompletedWork(spent_down_s, work_s=0.0, up_s=spent_up_s, work_j=0.0, radio_j=0.0, parts=())

    assert _compute_moved_mb(link, spent) == moved_mb


def test_a_late_reply_that_joins_later_is_booked_until_it_is_done():
    answers = {"a": answer("a", 10.0), "b": answer("b", 60.0)}
    settled = settle_round(OPEN, answers, LateReplySpec(action="discount", grace=0.1))
    b = settled.clients[1]

    assert (settled.end_s, settled.joining, settled.until_s["b"]) == (133.0, ("b",), 162.0)
    assert (b.status, b.end_s, b.work_s, b.wait_s) == ("late", 162.0, 60.0, 0.0)
    assert b.energy_j == pytest.approx(60.0 * 9.0 + LINK.radio_j + BUSY * IDLE_W)
    assert b.error == "took 62.0 s; the cut-off was 33.0 s; its result joins a later round"


def test_partial_work_says_how_much_was_asked_and_is_not_compared_with_maxn():
    said = dataclasses.replace(report("a", 10.0, truth=front(), steps=6), asked_steps=10)
    settled = settle_round(OPEN, {"a": ReplyMessage("a", report=said)}, LateReplySpec(action="partial"))

    assert (settled.clients[0].steps, settled.clients[0].asked_steps) == (6, 10)
    assert settled.clients[0].maxn_energy_j is None


def test_a_second_mode_is_told_and_counted():
    said = report("a", 10.0)
    said = dataclasses.replace(said, mixed=dataclasses.replace(said.measured, mode=LOW, steps=4))
    row = settle_round(OPEN, {"a": ReplyMessage("a", report=said)}, LateReplySpec()).clients[0]

    assert (row.mix_mode, row.mix_steps, row.steps) == (str(LOW), 4, 14)
    assert row.work_s == pytest.approx(10.0 + 4.0)


def test_a_board_that_leaves_before_the_cut_off_failed_and_one_that_leaves_after_it_was_late():
    late = LateReplySpec(action="drop", grace=0.1)
    for leaves_s, status, error in ((120.0, "failed", "went away after 20.0 s"), (140.0, "late", "took 40.0 s")):
        opening = dataclasses.replace(OPEN, leaves_s={"b": leaves_s})
        settled = settle_round(opening, {"a": answer("a", 10.0), "b": answer("b", 60.0)}, late)
        b = settled.clients[1]

        assert b.status == status
        assert str(b.error).startswith(error)
        assert settled.joining == ()


def test_the_rounds_row_tells_what_is_around_it():
    settled = settle_round(OPEN, {"a": answer("a", 10.0)}, LateReplySpec())
    row = round_row(settled, (0.1, 0.9), available=4, stale=1, resting_j=12.5)

    assert (row.available, row.stale, row.resting_energy_j, row.cancelled) == (4, 1, 12.5, 0)


def test_a_board_stopped_in_its_probe_is_billed_for_the_probe():
    answers = {"a": ReplyMessage("a", report=report_of_three_parts()), "b": answer("b", 10.0)}
    row = settle_round(dataclasses.replace(OPEN, wanted=1), answers, LateReplySpec()).clients[0]

    # 11.5 s of the probe at 4 W, of which 2 s were its warm-up.
    assert (row.work_s, row.work_j, row.steps) == (11.5, 46.0, 2)
    assert (row.probes, row.probe_s, row.probe_j, row.mix_steps) == (1, 11.5, 46.0, 0)


@given(st.floats(1.0, 800.0), st.floats(0.0, 3.0))
def test_an_empty_battery_gave_all_that_was_in_it_and_its_row_says_so(left_j, charging_w):
    charge = BatteryCharge(BatterySpec(capacity_wh=1.0, charging_w=charging_w), left_j)
    opening = dataclasses.replace(OPEN, charges={"a": charge})
    settled = settle_round(opening, {"a": ReplyMessage("a", report=report_of_three_parts())}, LateReplySpec())
    row, seconds = settled.clients[0], settled.end_s - settled.start_s

    assert row.energy_j <= left_j + charging_w * seconds + 1e-9
    assert settled.charges["a"].left_j == pytest.approx(left_j + charging_w * seconds - row.energy_j, abs=1e-6)
    assert row.status == "done" or "battery was empty" in (row.error or "")


CLIENTS = st.lists(
    st.tuples(
        st.floats(1.0, 80.0),  # seconds of work
        st.floats(3.0, 30.0),  # watts of work
        st.one_of(st.none(), st.floats(0.1, 100.0)),  # goes away after
        st.one_of(st.none(), st.floats(1.0, 2000.0)),  # charge in joules
        st.sampled_from([False, False, False, True]),  # sends no report
    ),
    min_size=1,
    max_size=6,
)
CHARGED = BatterySpec(capacity_wh=1.0, charging_w=1.0)
STATUSES = ("done", "late", "failed", "cancelled")
ACTIONS = ("accept", "drop", "discount", "partial")


@given(CLIENTS, st.sampled_from(ACTIONS), st.one_of(st.none(), st.integers(1, 4)))
def test_however_a_round_ends_for_a_board_its_battery_lost_what_its_row_says(clients, action, wanted):
    known = {f"b{place}": client for place, client in enumerate(clients)}
    answers = {
        name: ReplyMessage(name, error="out of memory") if silent else answer(name, work_s, power_w)
        for name, (work_s, power_w, _, _, silent) in known.items()
    }
    opening = dataclasses.replace(
        OPEN,
        idle_w=dict.fromkeys(known, IDLE_W),
        wanted=wanted,
        leaves_s={name: 100.0 + leaves for name, (_, _, leaves, _, _) in known.items() if leaves is not None},
        charges={name: BatteryCharge(CHARGED, left) for name, (*_, left, _) in known.items() if left is not None},
    )
    settled = settle_round(opening, answers, LateReplySpec.model_validate({"action": action, "grace": 0.1}))

    for row in settled.clients:
        work_s, _, leaves, left_j, silent = known[row.board]
        until_s = settled.until_s[row.board] - settled.start_s
        over_s = max(until_s, settled.end_s - settled.start_s)
        flat = row.board in settled.lost and "its battery was empty" in str(row.error)
        drawing_s = until_s if flat else over_s
        asked_j = row.work_j + row.radio_j + IDLE_W * (drawing_s - row.work_s)
        stored_j = math.inf if left_j is None else left_j + CHARGED.charging_w * drawing_s
        assert row.energy_j == pytest.approx(min(asked_j, stored_j))
        assert not flat or asked_j == pytest.approx(stored_j), "it is empty when it has given everything, not before"
        if left_j is not None:
            after_j = left_j + CHARGED.charging_w * over_s - row.energy_j
            assert settled.charges[row.board].left_j == pytest.approx(after_j, abs=1e-6)
        if row.status == "done":
            assert until_s >= work_s + BUSY - 1e-9
        if row.board in settled.lost and not flat:
            assert until_s == pytest.approx(leaves)
        assert not silent or (row.status, until_s) == ("failed", pytest.approx(over_s))
    fleet, statuses = round_row(settled, None), [row.status for row in settled.clients]
    assert fleet.selected == len(statuses)
    assert {name: getattr(fleet, name) for name in STATUSES} == {name: statuses.count(name) for name in STATUSES}


def test_only_a_late_board_whose_reply_joins_later_tells_how_its_training_went():
    answers = {"a": answer("a", 10.0), "b": answer("b", 60.0)}
    told = {
        action: settle_round(OPEN, answers, LateReplySpec(action=action, grace=0.0)).clients[1]
        for action in ("drop", "discount")
    }
    away = settle_round(
        dataclasses.replace(OPEN, leaves_s={"b": 140.0}), answers, LateReplySpec(action="discount", grace=0.0)
    )

    assert [(row.status, row.loss, row.accuracy) for row in told.values()] == [
        ("late", None, None),
        ("late", 0.5, 0.8),
    ]
    assert (away.clients[1].status, away.clients[1].loss, away.lost) == ("late", None, ("b",))


def test_a_real_board_that_stopped_itself_is_late_and_taken_to_have_idled():
    told = "cancelled after 33 s: 3 of 9 minibatches done when the round's time was over"
    answers = {"a": answer("a", 10.0), "b": ReplyMessage("b", error=told, cut=True)}
    settled = settle_round(OPEN, answers, LateReplySpec(action="drop", grace=0.1))
    b = settled.clients[1]

    assert settled.end_s - settled.start_s == pytest.approx(33.0)
    assert (b.status, b.error, b.energy_j) == ("late", told, pytest.approx(IDLE_W * 33.0))
    assert [(event.kind, event.board) for event in settled.events] == [("late", "b")]
    assert settled.accepted == ("a",)


def test_one_that_was_not_needed_any_more_is_cancelled():
    opening = dataclasses.replace(OPEN, wanted=1)
    answers = {"a": answer("a", 10.0), "b": ReplyMessage("b", error="no reply within 48 s", cut=True)}
    settled = settle_round(opening, answers, LateReplySpec(action="drop", grace=0.1))

    assert [row.status for row in settled.clients] == ["done", "cancelled"]
    assert settled.end_s - settled.start_s == pytest.approx(10.0 + BUSY)


def test_the_work_that_a_board_did_until_it_stopped_itself_is_booked():
    told = "cancelled after 33 s: 10 of 30 minibatches done when the round's time was over"
    cut = dataclasses.replace(answer("b", 25.0), error=told, cut=True)
    settled = settle_round(OPEN, {"a": answer("a", 10.0), "b": cut}, LateReplySpec(action="drop", grace=0.1))
    b = settled.clients[1]

    assert (b.status, b.error, b.steps) == ("late", told, 10)
    assert b.work_j == pytest.approx(25.0 * 9.0)
    assert settled.accepted == ("a",)
    assert settled.joining == ()
    assert settled.end_s - settled.start_s == pytest.approx(33.0)


def test_real_boards_are_given_up_when_their_reply_would_not_count_in_this_round():
    cuts = {a: compute_real_cutoff(LateReplySpec(action=a, grace=0.5), 10.0, None) for a in ACTIONS}

    assert cuts == {
        "accept": NO_CUTOFF,
        "drop": RealCutoff(15.0, 15.0, None, 15.0),
        "discount": RealCutoff(15.0, None, None, 15.0),
        "partial": NO_CUTOFF,
    }


def test_with_over_commitment_a_board_that_would_be_awaited_stops_itself_too():
    cuts = {a: compute_real_cutoff(LateReplySpec(action=a, grace=0.5), 10.0, 3) for a in ACTIONS}

    assert cuts["accept"] == RealCutoff(15.0, 15.0, 3, None)
    assert cuts["drop"] == RealCutoff(15.0, 15.0, 3, 15.0)
    assert cuts["partial"] == RealCutoff(None, None, 3, None)


def test_without_a_deadline_no_real_board_is_given_up():
    for action in ACTIONS:
        assert compute_real_cutoff(LateReplySpec(action=action), None, None) == NO_CUTOFF
        assert compute_real_cutoff(LateReplySpec(action=action), None, 2) == RealCutoff(wanted=2)


@pytest.mark.parametrize("tested", [None, (0.25, 0.75)])
def test_the_rounds_row_has_the_figures_of_the_test_set_and_its_clients_rows_the_time_of_mode_changes(tested):
    settled = settle_round(
        OPEN, {"a": ReplyMessage("a", report=report_of_three_parts()), "b": answer("b", 10.0)}, LateReplySpec()
    )
    row = round_row(settled, tested)

    assert (row.loss, row.accuracy) == (tested or (None, None))
    assert [client.switch_s for client in settled.clients] == [2.0, 0.0]
