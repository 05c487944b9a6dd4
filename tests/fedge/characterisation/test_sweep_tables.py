"""A sweep's points as tables: what a row is, what has none, and who reads them as they are."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

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
from fedge.characterisation.sweep_store import SweepResult
from fedge.characterisation.sweep_tables import NO_MODE, NO_POWER, list_omitted_points, write_tables
from fedge.devices.board_kinds import build_kind, build_surface
from fedge.devices.catalogue import find
from fedge.devices.tables.mode_table import read_mode_table
from fedge.experiment import Experiment, FleetEntry, WorkloadSpec, list_boards
from fedge.knowledge.model_training import ModelFitOptions
from fedge.modes import build_grid
from fedge.types import PowerMode

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
    assert [why for _, why in list_omitted_points(result)] == [NO_POWER, NO_MODE]
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
