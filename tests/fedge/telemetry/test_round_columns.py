"""Who counts in a round, when it ends, and what a client has spent by then."""

import dataclasses
import math

import numpy as np
import pytest
from contracts.reports import report, report_of_three_parts
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.battery import BatteryCharge, stack_batteries
from fedge.experiment import BatterySpec, LateReplySpec
from fedge.telemetry.round_columns import (
    RoundVerdict,
    WorkEnds,
    classify_clients,
    compute_completed_work,
    compute_cutoff_s,
    find_ends,
    get_completed_work,
    settle_columns,
    spend,
    stack_reports,
)
from fedge.telemetry.settlement import RealCutoff, has_enough_replies
from fedge.telemetry.store_records import Status
from fedge.types import LinkUse, RoundReport


def stepwise(said: RoundReport, until_s: float) -> tuple[float, float, list[int]]:
    """Seconds, joules and minibatches of the work by ``until_s``, in slices of 1/64 s; the oracle."""
    slice_s, joules, worked_s, at_s = 1 / 64, 0.0, 0.0, said.link.down_s
    steps = [0] * len(said.parts)
    for place, part in enumerate(said.parts):
        into_s = 0.0
        while into_s < part.work_s and at_s < until_s:
            into_s, at_s = into_s + slice_s, at_s + slice_s
            joules, worked_s = joules + part.power_w * slice_s, worked_s + slice_s
            warm_s = part.warm_up_s + (part.switch_s or 0.0)
            steps[place] = sum(warm_s + part.step_s * (i + 1) <= into_s for i in range(part.steps))
    return worked_s, joules, steps


@given(st.integers(0, 60 * 64).map(lambda slices: slices / 64))
def test_what_was_done_by_a_time_is_what_the_parts_took_one_after_the_other(until_s):
    spent = compute_completed_work(report_of_three_parts(), until_s)
    worked_s, joules, steps = stepwise(report_of_three_parts(), until_s)

    assert spent.work_s == pytest.approx(worked_s)
    assert sum(part.work_s for part in spent.parts) == pytest.approx(worked_s)
    assert spent.work_j == pytest.approx(joules)
    assert [part.steps for part in spent.parts] == steps


@given(st.lists(st.floats(0.0, 70.0), min_size=3, max_size=3))
def test_a_clients_figures_are_its_own_whoever_else_is_in_the_columns(until_s):
    reports = [report("a", 30.0), report_of_three_parts(), None]
    together = spend(stack_reports(reports, [2.0] * 3), np.array(until_s))

    for row, one in enumerate(reports[:2]):
        assert one is not None
        assert get_completed_work(one, together, row) == compute_completed_work(one, until_s[row])
    assert together.work_j[2] == together.radio_j[2] == 0.0


def test_a_report_without_transfers_is_settled():
    silent = dataclasses.replace(report("a", 30.0), link=LinkUse(0.0, 0.0, 0.0))

    assert compute_completed_work(silent, 15.0).radio_j == 0.0


Endings = dict[str, tuple[float, bool]]
"""Seconds until each board's end, and whether it failed then."""
ENDINGS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(1, 12).map(float), st.sampled_from([False, False, False, True])),
    min_size=1,
)


def classify(
    endings: Endings, cut_s: float | None, wanted: int | None, empty_s: float
) -> tuple[RoundVerdict, dict[str, Status]]:
    """The verdict, and each board's status; a board that never ends was cut off."""
    names = sorted(endings)
    at_s, error = (np.array([endings[name][place] for name in names]) for place in (0, 1))
    ends = WorkEnds(at_s.astype(float), error=error.astype(bool), flat=np.zeros(len(names), dtype=bool))
    verdict = classify_clients(ends, cut_s, wanted, empty_s)
    return verdict, dict(zip(names, verdict.list_statuses(), strict=True))


def test_only_drop_and_discount_go_on_without_those_who_are_late():
    cuts = {
        a: compute_cutoff_s(LateReplySpec(action=a, grace=0.5), 10.0) for a in ("accept", "drop", "discount", "partial")
    }

    assert cuts == {"accept": None, "drop": 15.0, "discount": 15.0, "partial": None}


@given(ENDINGS, st.sampled_from([None, 3.0, 6.5, 20.0]), st.sampled_from([None, 1, 2, 3]))
def test_everybody_is_judged_by_when_the_round_ends(endings, cut_s, wanted):
    verdict, statuses = classify(endings, cut_s, wanted, 0.0)
    done = {board for board, status in statuses.items() if status == "done"}

    assert cut_s is None or verdict.round_s <= cut_s
    for board, status in statuses.items():
        at_s, error = endings[board]
        if status in ("done", "failed"):
            assert at_s <= verdict.round_s
            assert error == (status == "failed")
        elif status == "late":
            assert verdict.round_s == cut_s < at_s
        else:
            assert len(done) == wanted
            assert all((endings[other][0], other) < (at_s, board) for other in done)


def test_a_round_of_no_board_is_as_long_as_planned():
    silent = dict.fromkeys("ab", (math.nan, False))

    assert classify({}, None, None, 7.0)[0].round_s == 7.0
    assert classify(silent, None, None, 7.0)[0].round_s == 7.0


@given(ENDINGS, st.sampled_from([None, 3.0, 20.0]), st.sampled_from([None, 2]))
def test_a_board_that_sent_no_report_failed_and_changes_nothing_for_the_others(endings, cut_s, wanted):
    verdict, statuses = classify(endings, cut_s, wanted, 7.0)
    found, among = classify(endings | {"d2": (math.nan, False)}, cut_s, wanted, 7.0)

    assert (found.round_s, among) == (verdict.round_s, {**statuses, "d2": "failed"})


@given(ENDINGS, st.sampled_from([None, 3.0, 6.5, 20.0]), st.sampled_from([1, 2, 3]))
def test_a_round_goes_on_without_the_others_just_when_as_many_as_are_wanted_would_count(endings, cut_s, wanted):
    good = {board: (at_s, error) for board, (at_s, error) in endings.items() if not error}
    missing = dict.fromkeys("xyz", (math.inf, False))
    _, statuses = classify(good | missing, cut_s, wanted, 7.0)
    done = sum(status == "done" for status in statuses.values())
    replied_s = [at_s for at_s, _ in good.values()]

    assert has_enough_replies(RealCutoff(wanted=wanted, counts_s=cut_s), replied_s) == (done == wanted)
    assert not has_enough_replies(RealCutoff(counts_s=cut_s), replied_s)


CUT_OFF = st.sets(st.sampled_from("abcdefghxyz"), min_size=1)


@given(ENDINGS, CUT_OFF, st.sampled_from([None, 3.0, 20.0]), st.sampled_from([None, 2]))
def test_a_board_that_was_cut_off_never_counts_and_never_fails(endings, cut_off, cut_s, wanted):
    verdict, statuses = classify(endings | dict.fromkeys(cut_off, (math.inf, False)), cut_s, wanted, 7.0)

    assert math.isfinite(verdict.round_s)
    enough = wanted is not None and sum(status == "done" for status in statuses.values()) == wanted
    assert {statuses[board] for board in cut_off} == {"cancelled" if enough else "late"}
    if not enough:
        assert verdict.round_s == cut_s or (cut_s is None and verdict.round_s >= 7.0)


def test_what_a_full_battery_cannot_take_during_the_download_is_not_there_for_the_training():
    spec = BatterySpec(capacity_wh=1.0, charging_w=10.0)
    work = stack_reports([None], [2.0])
    work = dataclasses.replace(
        work, down_s=np.array([300.0]), parts_s=np.array([[200.0]]), parts_w=np.array([[25.0]]), up_s=np.array([0.0])
    )
    full = stack_batteries([BatteryCharge(spec, 3600.0)])
    ends = find_ends(work, np.array([math.inf]), full)
    settled = settle_columns(work, full, ends, late=LateReplySpec(), deadline_s=None, wanted=None)

    assert settled.batteries.left_j == pytest.approx([3600.0 - 200.0 * (25.0 - 10.0)])


@pytest.mark.parametrize(("left_j", "at_s", "flat"), [(11.0, 11.0 / 3.0, True), (13.0, 4.0, False)])
def test_the_radio_drains_a_battery_evenly_over_both_transfers(left_j, at_s, flat):
    idle = stack_reports([None], [1.0])
    work = dataclasses.replace(idle, down_s=np.array([1.0]), up_s=np.array([3.0]), radio_j=np.array([8.0]))

    ends = find_ends(work, np.array([math.inf]), stack_batteries([BatteryCharge(BatterySpec(capacity_wh=1.0), left_j)]))

    assert (ends.at_s.item(), ends.flat.item()) == (pytest.approx(at_s), flat)
