"""A campaign asks every point once a start: skipped ones each time, failed ones once more, finished ones never."""

from dataclasses import replace

import pytest
from characterised.fake import FakeRig, fake_plan, fake_seen

from fedge.characterisation.point_measurement import estimate_point_s, estimate_remaining_s
from fedge.characterisation.sweep_plan import MeasurementSchedule
from fedge.characterisation.sweep_run import SweepRun, idle_before_repeat_s
from fedge.characterisation.sweep_store import JOURNAL_FILE, open_journal, read_result


def start(out, plan, rig):
    """One start; what it came to, in its order."""
    with open_journal(out) as journal:
        journal.begin(plan, {"fake-1": rig.software})
        campaign = SweepRun(plan, {"fake-1": rig}, journal)
        found = []
        while campaign.remaining_points:
            found.append(campaign.run_next())
        return found


def test_a_skipped_point_has_its_reason_and_is_asked_again_at_the_next_start(tmp_path):
    plan, out = fake_plan(), tmp_path / "out"
    point = plan.points[2]
    assert set(start(out, plan, FakeRig(refused={point.key: "no root"}))) == {None}
    assert read_result(out).skipped == ((point, "no root"),)
    size = (out / JOURNAL_FILE).stat().st_size

    assert start(out, plan, FakeRig(refused={point.key: "no root"})) == [None]
    assert (out / JOURNAL_FILE).stat().st_size == size
    start(out, plan, FakeRig(refused={point.key: "no disk"}))
    assert read_result(out).skipped == ((point, "no disk"),)

    rig = FakeRig()
    start(out, plan, rig)
    assert rig.measured == [point]
    assert read_result(out).skipped == ()
    assert len(read_result(out).points) == len(plan.points)


def test_a_failed_point_is_tried_once_more_at_the_next_start_and_then_left(tmp_path):
    plan, out = fake_plan(), tmp_path / "out"
    point = plan.points[1]
    assert start(out, plan, FakeRig(failing={point.key: 9}))[1] == "it fell over"
    assert read_result(out).failed == ((point, "it fell over"),)
    again = FakeRig(failing={point.key: 9})
    start(out, plan, again)
    assert again.measured == [point]
    last = FakeRig()
    start(out, plan, last)
    assert last.measured == []
    assert read_result(out).failed == ((point, "it fell over"),)


def test_between_repeats_the_board_rests_until_the_last_one_began_long_enough_ago(tmp_path):
    plan = fake_plan(repeats=3, course=MeasurementSchedule(epochs=2, repeats=3, every_s=100.0))
    rig = FakeRig(took_s=10.0)  # six points a repeat
    start(tmp_path / "out", plan, rig)
    assert rig.rested == [40.0, 40.0]
    slow = FakeRig(took_s=20.0)
    start(tmp_path / "slow", plan, slow)
    assert slow.rested == []


def test_a_start_in_the_middle_of_a_repeat_does_not_rest_again(tmp_path):
    plan = fake_plan(repeats=2, course=MeasurementSchedule(epochs=2, repeats=2, every_s=100.0))
    with open_journal(tmp_path / "out") as journal:
        journal.begin(plan, {"fake-1": {"fake": "1"}})
        for point in plan.points[:7]:
            assert idle_before_repeat_s(point, plan, journal) == (40.0 if point is plan.points[6] else 0.0)
            journal.finish(fake_seen(point))
        assert idle_before_repeat_s(plan.points[7], plan, journal) == 0.0
    rig = FakeRig()
    start(tmp_path / "out", plan, rig)
    assert rig.rested == []
    assert rig.measured == list(plan.points[7:])


def test_what_is_left_takes_as_long_as_what_is_done_with_the_rests(tmp_path):
    plan = fake_plan(repeats=3)
    assert estimate_remaining_s([9.0, 11.0], plan.points[:6], MeasurementSchedule()) == pytest.approx(60.0)
    assert estimate_remaining_s([10.0], plan.points[6:], MeasurementSchedule(every_s=1000.0)) == pytest.approx(
        1000.0 + 60.0
    )


def test_an_emulated_point_is_looked_at_for_some_minibatches():
    plan = fake_plan()
    point = replace(plan.points[0], batch_size=1)
    one = fake_seen(point, epochs=1).epochs[0].e2e_s
    seconds = estimate_point_s(FakeRig(), point, plan.workloads["net"], MeasurementSchedule(epochs=3))
    assert seconds == pytest.approx(3 * one * 64 / 50)
    assert (
        estimate_point_s(FakeRig(failing={point.key: 1}), point, plan.workloads["net"], MeasurementSchedule()) is None
    )
