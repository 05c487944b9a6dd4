"""A sweep's journal: what was written is read back, what fits goes on, what does not is refused by name."""

import dataclasses
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from characterised.fake import FakeRig, fake_plan, fake_seen

from experiments.cli.predict_commands import fit_to_file
from fedge.analysis.cost_calibration import calibrate_tables
from fedge.characterisation.point_measurement import EpochSummary, MinibatchTimes, PointMeasurement, SensorTrace
from fedge.characterisation.profiling_journal import profiling_record_path
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.characterisation.sweep_run import SweepRun
from fedge.characterisation.sweep_store import (
    JOURNAL_FILE,
    NO_MODE,
    NO_POWER,
    SweepResult,
    open_journal,
    read_result,
    split_points,
    write_tables,
)
from fedge.devices.board_kinds import build_kind, build_surface
from fedge.devices.catalogue import find
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry, WorkloadSpec, list_boards
from fedge.knowledge.model_training import ModelFitOptions
from fedge.modes import build_grid
from fedge.types import PowerMode

SOFTWARE = {"fake-1": {"fake": "1"}}


def sweep(out, plan, rig=None):
    rig = rig or FakeRig()
    with open_journal(out) as journal:
        journal.begin(plan, dict.fromkeys(plan.boards, rig.software))
        campaign = SweepRun(plan, dict.fromkeys(plan.boards, rig), journal)
        while campaign.remaining_points:
            campaign.run_next()
    return rig


def lines(out):
    return [json.loads(line) for line in (out / JOURNAL_FILE).read_text().splitlines()]


def test_what_was_seen_is_read_back_exactly_with_its_arrays_and_labels(tmp_path):
    plan = fake_plan()
    sweep(tmp_path / "out", plan)

    result = read_result(tmp_path / "out")

    assert result.plan == plan
    assert [one.point for one in result.points] == list(plan.points)
    for one in result.points:
        seen = fake_seen(one.point)
        for name in ("epochs", "label", "power_label", "source", "seconds", "notes", "parameters"):
            assert getattr(one, name) == getattr(seen, name)
        for there, wanted in (
            (one.read_minibatches(), seen.read_minibatches()),
            (one.read_sensor_trace(), seen.read_sensor_trace()),
        ):
            for name in wanted.__slots__:
                np.testing.assert_array_equal(getattr(there, name), getattr(wanted, name))
                assert getattr(there, name).dtype == getattr(wanted, name).dtype


def test_numpys_numbers_are_written_as_numbers(tmp_path):
    plan = fake_plan()
    seen = fake_seen(plan.points[0])
    epoch = dataclasses.replace(seen.epochs[0], steps=np.int64(3), e2e_s=np.float64(1.5), throttled=np.bool_(True))
    with open_journal(tmp_path / "out") as journal:
        journal.begin(plan, SOFTWARE)
        journal.finish(dataclasses.replace(seen, epochs=(epoch,), seconds=np.float64(2.5)))

    (back,) = read_result(tmp_path / "out").points

    assert back.epochs == (dataclasses.replace(seen.epochs[0], steps=3, e2e_s=1.5, throttled=True),)
    assert type(back.epochs[0].steps) is int


def test_the_same_plan_measures_nothing_twice_and_writes_no_line(tmp_path):
    sweep(tmp_path / "out", fake_plan())
    before = (tmp_path / "out" / JOURNAL_FILE).read_bytes()

    again = sweep(tmp_path / "out", fake_plan())

    assert again.measured == []
    assert (tmp_path / "out" / JOURNAL_FILE).read_bytes() == before


@pytest.mark.parametrize(
    "more", [{"workers": (0, 1, 2, 4)}, {"repeats": 3}, {"batches": (4, 8, 16), "repeats": 5}], ids=str
)
def test_a_plan_that_only_gains_points_goes_on_with_what_was_done(tmp_path, more):
    small, large = fake_plan(), fake_plan(**more)
    sweep(tmp_path / "out", small)

    rig = sweep(tmp_path / "out", large)

    assert set(rig.measured) == set(large.points) - set(small.points)
    result = read_result(tmp_path / "out")
    assert result.plan == large
    assert [one.point for one in result.points] == list(large.points)
    with pytest.raises(BadInput, match=r"a point that the plan no longer has|repeats"):
        sweep(tmp_path / "out", small)


def test_a_board_more_goes_on_too(tmp_path):
    small = fake_plan()
    there = tuple(dataclasses.replace(point, board="fake-2") for point in small.points)
    sweep(tmp_path / "out", small)

    rig = sweep(tmp_path / "out", dataclasses.replace(small, boards=("fake-1", "fake-2"), points=small.points + there))

    assert set(rig.measured) == set(there)
    assert [set(line["software"]) for line in lines(tmp_path / "out") if "software" in line] == [
        {"fake-1"},
        {"fake-1", "fake-2"},
    ]


NET = WorkloadPlan(
    name="net",
    model="lenet5",
    input=(1, 28, 28),
    classes=10,
    images=Images(count=32, width=28, height=28, channels=1, source="memory"),
)


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        ({"name": "other"}, "name", ["'fake'", "'other'"]),
        ({"seed": 1}, "seed", ["0", "1"]),
        ({"course": MeasurementSchedule(epochs=3, repeats=2)}, "course.epochs", ["2", "3"]),
        ({"course": MeasurementSchedule(epochs=2, repeats=1)}, "course.repeats", ["2", "1"]),
        ({"workloads": {"net": NET}}, "workloads.net.images.count", ["got 64", "32 was asked"]),
        ({"workloads": {}}, "workloads.net", ["no longer has"]),
        (
            {"storages": {"default": StoragePlan(name="default", path="/x")}},
            "storages.default.path",
            ["got None", "'/x' was asked"],
        ),
        ({"points": fake_plan().points[1:]}, "points", ["no longer has", "fake-1"]),
    ],
)
def test_another_plan_is_refused_with_the_difference_and_nothing_is_touched(tmp_path, change, where, words):
    out = tmp_path / "out"
    sweep(out, fake_plan())
    before = (out / JOURNAL_FILE).read_bytes()

    with pytest.raises(BadInput) as refused:
        sweep(out, fake_plan(**change))

    assert refused.value.where == f"{out / JOURNAL_FILE}: {where}"
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert (out / JOURNAL_FILE).read_bytes() == before


def test_other_software_is_refused(tmp_path):
    sweep(tmp_path / "out", fake_plan())

    with pytest.raises(BadInput, match=r"fake-1: fake: got 1; 2 is here now"):
        sweep(tmp_path / "out", fake_plan(), FakeRig(software={"fake": "2"}))
    with pytest.raises(BadInput, match=r"fake-1: torch: got nothing; 3 is here now"):
        sweep(tmp_path / "out", fake_plan(), FakeRig(software={"fake": "1", "torch": "3"}))


def test_only_one_process_writes_and_a_folder_of_something_else_is_left_alone(tmp_path):
    with open_journal(tmp_path / "out"), pytest.raises(BadInput, match="another `fedge characterise` writes"):
        open_journal(tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(BadInput, match="holds something else"):
        open_journal(tmp_path / "other")
    with pytest.raises(BadInput, match=r"thesis\.tex, which is a file"):
        open_journal(tmp_path / "other" / "thesis.tex")
    with pytest.raises(BadInput, match="without a journal"):
        read_result(tmp_path / "other")


@pytest.mark.parametrize("damage", ["{}", "[1]", "no", '{"event": "done"}', '{"event": "begin", "version": 99}'])
def test_a_line_that_makes_no_sense_is_named(tmp_path, damage):
    sweep(tmp_path / "out", fake_plan())
    path = tmp_path / "out" / JOURNAL_FILE
    for place in (0, 2):
        whole = path.read_text().splitlines(keepends=True)
        whole[place] = damage + "\n"
        (tmp_path / "out" / JOURNAL_FILE).write_text("".join(whole))
        with pytest.raises(BadInput, match=f"line {place + 1}: got a line that makes no sense"):
            read_result(tmp_path / "out")
        sweep(tmp_path / f"again{place}", fake_plan())
        path.write_bytes((tmp_path / f"again{place}" / JOURNAL_FILE).read_bytes())


@pytest.mark.parametrize("what", ["gone", "cut", "another"])
def test_a_damaged_array_file_is_named_when_it_is_read(tmp_path, what):
    sweep(tmp_path / "out", fake_plan())
    one = read_result(tmp_path / "out").points[0]
    path = tmp_path / "out" / "minibatches" / f"{one.point.key}.parquet"
    if what == "gone":
        path.unlink()
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.write_bytes((tmp_path / "out" / "strips" / path.name).read_bytes())

    got = "no such file" if what == "gone" else "a file that cannot be read"
    with pytest.raises(BadInput, match=f"{one.point.key}.parquet: got {got}"):
        one.read_minibatches()


class Crash(BaseException):
    """The process ends here."""


def crash_after(monkeypatch, count):
    """Every call that changes the disk counts; the one after ``count`` does not happen, nor any later one."""
    calls = 0
    originals = {
        name: getattr(os, name) for name in ("write", "fsync", "replace", "rename", "unlink", "ftruncate", "open")
    }
    for name, original in originals.items():

        def counted(*given, name=name, original=original):
            nonlocal calls
            calls += 1
            if calls > count:
                if name == "write" and calls == count + 1:
                    original(given[0], bytes(given[1])[: len(given[1]) // 2])
                raise Crash(name)
            return original(*given)

        monkeypatch.setattr(os, name, counted)
    return lambda: calls


def test_ended_before_any_single_change_of_the_disk_it_goes_on_without_repeating_or_losing(tmp_path, monkeypatch):
    plan = fake_plan(workers=(0, 1), batches=(8,), repeats=1)
    sweep(tmp_path / "whole", plan)
    crashes = 0
    for count in range(200):
        out = tmp_path / str(count)
        first = FakeRig()
        with monkeypatch.context() as patched:
            crash_after(patched, count)
            try:
                sweep(out, plan, first)
                break
            except Crash:
                crashes += 1
        done = (
            {one.point for one in read_result(out).points}
            if (out / JOURNAL_FILE).exists() and lines_whole(out)
            else set()
        )
        second = sweep(out, plan, FakeRig())
        assert set(second.measured) == set(plan.points) - done
        assert [one.point for one in read_result(out).points] == list(plan.points)
        assert len(read_result(out).points[0].read_minibatches()) == 8
        assert lines(out) == lines(tmp_path / "whole")
        assert not list(out.rglob(".*.part"))
    assert crashes > 15


def lines_whole(out):
    return b"\n" in (out / JOURNAL_FILE).read_bytes()


def test_a_point_is_skipped_or_failed_by_what_happened_last(tmp_path):
    plan = fake_plan()
    first, second = plan.points[:2]
    with open_journal(tmp_path / "out") as journal:
        journal.begin(plan, SOFTWARE)
        journal.skip(first, "no root")
        journal.fail(first, "it fell over")
        journal.fail(second, "it fell over")
        journal.skip(second, "no disk")
        for past in (journal.past, read_result(tmp_path / "out")):
            skipped, failed = past.skipped, past.failed
            assert list(skipped.values() if isinstance(skipped, dict) else skipped) == [(second, "no disk")]
            assert list(failed.values() if isinstance(failed, dict) else failed) == [(first, "it fell over")]


NAME = "resnet18-imagenet"
STEPS = 6
NONE = SensorTrace(*(np.zeros(0) for _ in range(7)))
SPEC = find("agx-xavier")
PLAN = CharacterisationPlan(
    name="made-up",
    boards=("agx-xavier-1",),
    workloads={
        NAME: WorkloadPlan(
            name=NAME, model="resnet18", input=(3, 224, 224), classes=10, images=Images(count=96, width=500, height=375)
        )
    },
    storages={"nvme": StoragePlan(name="nvme", model="nvme")},
    course=MeasurementSchedule(epochs=3, discard=1),
    points=(),
)


def _point(mode: PowerMode | None, **knobs: object) -> SweepPoint:
    return replace(SweepPoint("agx-xavier-1", NAME, mode, workers=2, storage="nvme"), **knobs)


def _finished(point: SweepPoint, step_s: float, power_w: float | None = 10.0) -> PointMeasurement:
    """Three epochs, of which the first is twice as slow, and each one's first minibatch ten times as slow."""
    steps = np.tile([10.0, 0.5, 1.5, 0.5, 1.5, 1.0], 3) * step_s
    steps[:STEPS] *= 2.0
    none = np.zeros(3 * STEPS)
    epoch, step = np.repeat(np.arange(3), STEPS), np.tile(np.arange(STEPS), 3)
    minibatches = MinibatchTimes(epoch, step, np.cumsum(steps), none, none, none, none, steps, none, steps)
    epochs = tuple(_epoch(i, float(steps[epoch == i].sum()), power_w) for i in range(3))
    label = None if power_w is None else "estimated"
    arrays = (lambda: minibatches, epochs, lambda: NONE)
    return PointMeasurement(point, *arrays, "estimated", "made up", 1.0, power_label=label)


def _epoch(epoch: int, e2e_s: float, power_w: float | None) -> EpochSummary:
    joules = None if power_w is None else (1 + (epoch == 0)) * power_w * e2e_s
    return EpochSummary(epoch, STEPS, e2e_s, 0.0, 0.0, 0.0, 0.0, e2e_s, 0.0, joules, power_w)


def _result(folder: Path, *points: PointMeasurement) -> SweepResult:
    return SweepResult(PLAN, folder, points, (), ())


def _swept(folder: Path) -> SweepResult:
    """Forty modes of what boards of this kind do."""
    kind = build_kind(list_boards(Experiment(fleet=(FleetEntry(device=SPEC.name),)))[0], WorkloadSpec(cost=NAME))
    modes = build_grid(SPEC, (2, 4, 8), SPEC.cpu_mhz[3::9], SPEC.gpu_mhz[2::5], SPEC.mem_mhz[-3:])
    rows = [kind.average.find_row(mode) for mode in modes]
    made = [
        _finished(_point(mode), float(kind.average.step_s[row]), float(kind.average.power_w[row]))
        for mode, row in zip(modes, rows, strict=True)
    ]
    return _result(folder, *made)


def test_a_row_is_the_mean_minibatch_and_the_power_of_the_epochs_that_count(tmp_path):
    slow, fast = PowerMode(2, 1190.4, 675.75, 1333), SPEC.maxn

    (path,) = write_tables(_result(tmp_path, _finished(_point(fast), 0.2, 12.0), _finished(_point(slow), 0.5, 7.0)))

    table = read_mode_table(path)
    assert (table.device, table.workload, table.batch_size) == ("agx-xavier", NAME, 16)
    assert list(table.modes) == [slow, fast]
    np.testing.assert_allclose(table.step_s, [0.5, 0.2], rtol=1e-9)
    np.testing.assert_allclose(table.power_w, [7.0, 12.0], rtol=1e-9)


def test_every_loader_setting_and_kind_has_a_table_and_batch_sizes_share_one(tmp_path):
    top = SPEC.maxn
    points = [_point(top), _point(top, workers=0), _point(top, kind="infer"), _point(top, batch_size=32)]

    paths = write_tables(_result(tmp_path, *(_finished(point, 0.2) for point in points)))

    names = [str(path.relative_to(tmp_path / "tables")) for path in paths]
    assert names == [
        f"agx-xavier-1_workers-2_prefetch-2_nvme_dropped/agx-xavier/train/{NAME}.csv",
        f"agx-xavier-1_workers-0_nvme_dropped/agx-xavier/train/{NAME}.csv",
        f"agx-xavier-1_workers-2_prefetch-2_nvme_dropped/agx-xavier/infer/{NAME}.csv",
    ]
    assert read_mode_table(paths[0], batch_size=32).batch_size == 32


def test_points_without_power_or_mode_give_no_row_and_are_named(tmp_path):
    other = PowerMode(4, 1190.4, 675.75, 1333)
    result = _result(
        tmp_path,
        _finished(_point(SPEC.maxn), 0.2),
        _finished(_point(other), 0.2, power_w=None),
        _finished(_point(None), 0.2),
    )

    (path,) = write_tables(result)

    record = json.loads(profiling_record_path(path).read_text())
    assert [why for _, why in split_points(result)[1]] == [NO_POWER, NO_MODE]
    assert [one["reason"] for one in record["left_out"]] == [NO_POWER, NO_MODE]
    assert (record["label"], record["power_label"], len(record["modes"])) == ("estimated", "estimated", 1)


def test_predictors_calibration_and_emulated_boards_read_a_table_as_it_is(tmp_path, capsys):
    (path,) = write_tables(_swept(tmp_path))

    fit_to_file(ModelFitOptions(table=path, modes=12), tmp_path / "model", as_json=True)
    (calibrated,) = calibrate_tables([path])
    experiment = Experiment(
        fleet=(FleetEntry(device=SPEC.name, truth=f"table:{path}"),), workload=WorkloadSpec(cost=NAME)
    )
    (board,) = list_boards(experiment)
    kind = build_kind(board, experiment.workload)

    assert json.loads(capsys.readouterr().out)["file"] == str(tmp_path / "model")
    assert (calibrated.device, calibrated.workload, calibrated.kind) == (SPEC.name, NAME, "train")
    assert calibrated.time_mape < 0.05
    assert kind.truth_label == "estimated"  # an emulated board made the table
    np.testing.assert_array_equal(build_surface(board, kind, 1).step_s, read_mode_table(path).step_s)
