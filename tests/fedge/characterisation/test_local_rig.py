"""This machine as a rig: every point measured for real, refusals, and what a program's file becomes."""

import importlib.util
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.rig import COURSE, RigContract

from fedge.characterisation.image_storage import ImageDataSet, Mount, find_mount
from fedge.characterisation.local_rig import ProgramRun, build_local_rig, build_measurement
from fedge.characterisation.machine_control import LinuxMachine, LinuxSession, SystemSample
from fedge.characterisation.point_measurement import MeasurementRig, PointMeasurement
from fedge.characterisation.sweep_plan import CharacterisationPlan, Images, StoragePlan, SweepPoint, WorkloadPlan
from fedge.errors import BoardError
from fedge.types import PowerMode

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 60.0
WORKLOAD = WorkloadPlan(
    name="tiny", model="digits-cnn", input=(3, 32, 32), classes=10, images=Images(count=32, width=64, height=48)
)
POINT = SweepPoint("here", "tiny", batch_size=8, workers=1)
ENDLESS = """
import sys
from pathlib import Path
from fedge.characterisation.local_rig import build_local_rig
from fedge.characterisation.sweep_plan import CharacterisationPlan, Images, MeasurementSchedule
from fedge.characterisation.sweep_plan import SweepPoint, WorkloadPlan
images = Images(count=32, width=64, height=48)
workload = WorkloadPlan(name="tiny", model="digits-cnn", input=(3, 32, 32), classes=10, images=images)
rig = build_local_rig(CharacterisationPlan("p", ("here",), {}, {}, MeasurementSchedule(), ()), Path(sys.argv[1]))
told = lambda text: print(text, flush=True)
rig.measure(SweepPoint("here", "tiny", batch_size=8, workers=2), workload, MeasurementSchedule(epochs=10**4), told)
"""


def rig_at(folder: Path, **storages: StoragePlan) -> MeasurementRig:
    return build_local_rig(CharacterisationPlan("p", ("here",), {"tiny": WORKLOAD}, storages, COURSE, ()), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rig")
    (folder / ".measuring").mkdir()
    (folder / ".measuring/left-behind").write_text("by a killed sweep")
    return folder


@pytest.fixture(scope="module")
def rig(folder: Path) -> MeasurementRig:
    return rig_at(folder)


@pytest.fixture(scope="module")
def point() -> SweepPoint:
    return POINT


@pytest.fixture(scope="module")
def workload() -> WorkloadPlan:
    return WORKLOAD


@pytest.fixture(scope="module")
def heard() -> list[str]:
    return []


@pytest.fixture(scope="module")
def seen(rig: MeasurementRig, heard: list[str]) -> PointMeasurement:
    return rig.measure(POINT, WORKLOAD, COURSE, heard.append)


@needs_torch
@pytest.mark.slow
class TestRigHere(RigContract):
    def test_a_point_is_measured_with_all_that_was_seen(self, seen, heard, folder):
        first, second = seen.epochs
        assert (seen.read_minibatches().fetch_s > 0).all()
        if not find_mount(folder).is_in_memory:
            assert first.resident_before == pytest.approx(0.0, abs=0.05)
        assert second.resident_after == pytest.approx(1.0, abs=0.2)
        assert first.memory_mb > 100
        assert 0 < first.cpu_load <= 1
        assert len(seen.read_sensor_trace().at_s) > 5
        assert (seen.label, seen.power_label) == ("measured", None if first.energy_j is None else "measured")
        assert "torch" in seen.source
        assert find_mount(folder).device in seen.source
        assert seen.parameters["file_mb"] > 0
        assert seen.parameters["collate_s"] > 0
        assert "epoch 2 of 2, minibatch 4 of 4" in heard
        assert [path.name for path in folder.iterdir()] == ["images"]


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A sweep's process in the middle of a point, and the processes below it."""
    starter = [sys.executable, "-c", ENDLESS, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(starter, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as outer:
        assert outer.stdout is not None
        killer = threading.Timer(LIMIT_S, outer.kill)
        killer.start()
        while not outer.stdout.readline().startswith("epoch 2"):
            assert outer.poll() is None
        yield outer, below(outer.pid)
        outer.kill()
        outer.wait()
        killer.cancel()


def below(pid: int) -> list[int]:
    """The measuring program of a sweep's process; its workers come and go."""
    found = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    assert found
    return found


def group_is_gone(pgid: int) -> bool:
    """Whether no process of a group is left, within the limit."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        states = list[str]()
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == pgid and fields[0] != "Z":
                states.append(fields[0])
        if not states:
            return True
        time.sleep(0.02)
    return False


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_nothing_is_left_of_a_point_when_its_sweep_ends(how, endless, tmp_path):
    outer, (program,) = endless
    outer.send_signal(how)
    outer.wait(LIMIT_S)
    assert group_is_gone(program)
    if how == signal.SIGINT:
        assert [path.name for path in tmp_path.iterdir()] == ["images"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"mode": PowerMode(1, 1, 1, 1)}, "no power daemon"),
        ({"batch_size": 33}, "batch_size 33 is more than the 32 images"),
        ({"board": "agx-orin-1"}, "is not this machine"),
        ({"runtime": "chroot"}, "is none of bare"),
        ({"storage": "gone"}, "there is no folder"),
    ],
)
def test_what_cannot_be_measured_is_refused(changed, reason, tmp_path):
    if Path("/run/fedge/powerd.sock").exists() and "mode" in changed:
        pytest.skip("this machine sets modes")
    rig = rig_at(tmp_path, gone=StoragePlan(name="gone", path="/no/such/mount"))
    assert reason in (rig.refusal_reason(replace(POINT, **changed), WORKLOAD) or "")
    assert rig.refusal_reason(POINT, WORKLOAD) is None or find_mount(tmp_path).is_in_memory


@needs_torch
def test_the_software_is_named(tmp_path):
    assert {"fedge", "torch", "pillow", "machine", "kernel"} <= set(rig_at(tmp_path).software)


BLIND = LinuxSession()
FACTS = {"device": "cpu", "torch": "2", "threads": 1, "python": "3.11"}
TIMES = ("fetch_s", "preprocess_s", "collate_s", "stall_s", "copy_s", "compute_s", "overhead_s", "taking_s", "step_s")


class Sensed(LinuxSession):
    """A machine with sensors of its own."""

    def summarise_sensors(self, start_s: float, end_s: float) -> dict[str, Any]:
        return {"energy_j": 5 * (end_s - start_s), "gpu_load": 0.5, "temperature_c": 60.0, "throttled": True}


def written(path: Path, **changed: Any) -> Path:
    """Two epochs of two minibatches of a second each, from 100 s on; the disk's bytes are known."""
    arrays: dict[str, Any] = {name: np.full(4, 0.1 * k) for k, name in enumerate(TIMES)}
    arrays |= {"epoch": np.array([0, 0, 1, 1]), "step": np.array([0, 1, 0, 1]), "start_s": 100 + np.arange(4.0)}
    arrays |= {
        "begun_s": np.array([100.0, 102]),
        "started_s": np.array([100.1, 102.3]),
        "ended_s": np.array([102.0, 104]),
    }
    arrays |= {"resident_before": np.array([0.0, math.nan]), "resident_after": np.array([1.0, math.nan])}
    arrays |= {"read_bytes_before": np.array([0.0, 7e6]), "read_bytes_after": np.array([6e6, 7e6])}
    np.savez(path, **(arrays | changed))
    return path


def look(at_s: float, joules: float = math.nan) -> SystemSample:
    return SystemSample(at_s, 50 * (at_s - 99), 200 * (at_s - 99), 10 * (at_s - 99), 1e6 * (at_s - 99), joules, 40.0)


def built(
    path: Path, held: LinuxSession = BLIND, joules: float = math.nan, others: float | None = None
) -> PointMeasurement:
    looks = tuple(look(float(at_s), joules * (at_s - 99)) for at_s in range(99, 106))
    story = ProgramRun(path, looks, FACTS, by_rapl=not math.isnan(joules), other_cores=others, notes=("odd",))
    images = ImageDataSet(path.parent, (), None, Mount("/", "ext4", "/dev/x", "8:0"))
    return build_measurement(SweepPoint("here", "w"), story, held, LinuxMachine(), images, 98.0)


def test_an_epoch_is_the_sum_of_its_minibatches_with_what_was_seen_beside(tmp_path):
    found = built(written(tmp_path / "x.npz"))
    first, second = found.epochs
    assert (first.steps, first.e2e_s) == (2, pytest.approx(2))
    assert first.preprocess_s == pytest.approx(0.2)
    assert first.cpu_load == pytest.approx(0.25)
    assert first.memory_mb == pytest.approx(30)
    assert (first.disk_read_mb, second.disk_read_mb) == (6, 0)
    assert (first.resident_before, first.resident_after) == (0, 1)
    assert (second.resident_before, second.resident_after) == (None, None)
    assert (first.energy_j, first.power_w, found.power_label) == (None, None, None)
    assert found.read_minibatches().start_s.tolist() == [2, 3, 4, 5]
    assert found.notes == ("odd",)
    assert found.parameters["start_s"] == pytest.approx(0.3)
    assert "images on ext4 on /dev/x (8:0)" in found.source


def test_a_point_that_others_disturbed_says_so(tmp_path):
    path = written(tmp_path / "x.npz")
    assert not [note for note in built(path, others=0.1).notes if "others" in note]
    found = built(path, others=1.25)
    assert found.notes[-1].startswith("others kept 1.25 cores busy")
    assert found.parameters["others_cores"] == 1.25


def test_without_a_block_device_the_processes_say_what_was_read(tmp_path):
    unknown = np.full(2, math.nan)
    path = written(tmp_path / "x.npz", read_bytes_before=unknown, read_bytes_after=unknown)
    assert built(path).epochs[0].disk_read_mb == pytest.approx(2)


def test_a_counter_of_joules_gives_energy_and_says_of_what(tmp_path):
    found = built(written(tmp_path / "x.npz"), joules=3.0)
    assert found.epochs[0].energy_j == pytest.approx(6)
    assert found.epochs[0].power_w == pytest.approx(3)
    assert found.power_label == "measured"
    assert "power by RAPL, the processor's packages alone" in found.source


def test_the_machines_own_sensors_come_first(tmp_path):
    found = built(written(tmp_path / "x.npz"), Sensed(), joules=3.0)
    assert found.epochs[1].energy_j == pytest.approx(10)
    assert (found.epochs[1].gpu_load, found.epochs[1].temperature_c, found.epochs[1].throttled) == (0.5, 60, True)


def test_a_file_that_is_none_is_the_points_failure(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"cut off")
    with pytest.raises(BoardError, match="cannot be read"):
        built(tmp_path / "x.npz")
