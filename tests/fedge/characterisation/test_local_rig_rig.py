"""This machine characterised for real: files read, a network trained in a process of its own, everything looked at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from fedge.characterisation.image_storage import find_mount
from fedge.characterisation.local_rig import build_local_rig
from fedge.characterisation.point_measurement import MeasurementRig
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.types import PowerMode

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 60.0
WORKLOAD = WorkloadPlan("tiny", "digits-cnn", (3, 32, 32), 10, Images(32, 64, 48))
POINT = SweepPoint("here", "tiny", batch_size=8, workers=1)
COURSE = MeasurementSchedule(epochs=2, sample_hz=10)
ENDLESS = """
import sys
from pathlib import Path
from fedge.characterisation.local_rig import build_local_rig
from fedge.characterisation.sweep_plan import CharacterisationPlan, Images, MeasurementSchedule
from fedge.characterisation.sweep_plan import SweepPoint, WorkloadPlan
workload = WorkloadPlan("tiny", "digits-cnn", (3, 32, 32), 10, Images(32, 64, 48))
rig = build_local_rig(CharacterisationPlan("p", ("here",), {}, {}, MeasurementSchedule(), ()), Path(sys.argv[1]))
told = lambda text: print(text, flush=True)
rig.measure(SweepPoint("here", "tiny", batch_size=8, workers=2), workload, MeasurementSchedule(epochs=10**6), told)
"""


def rig_at(folder: Path, **storages: StoragePlan) -> MeasurementRig:
    return build_local_rig(CharacterisationPlan("p", ("here",), {"tiny": WORKLOAD}, storages, COURSE, ()), folder)


@pytest.mark.slow
def test_a_point_is_measured_with_all_that_was_seen(tmp_path):
    heard: list[str] = []
    (tmp_path / ".measuring").mkdir()
    (tmp_path / ".measuring/left-behind").write_text("by a killed sweep")
    seen = rig_at(tmp_path).measure(POINT, WORKLOAD, COURSE, heard.append)
    first, second = seen.epochs
    found = seen.minibatches
    assert (len(found), found.epoch.tolist(), found.step.tolist()) == (8, [0] * 4 + [1] * 4, [0, 1, 2, 3] * 2)
    for epoch in seen.epochs:
        parts = epoch.stall_s + epoch.copy_s + epoch.compute_s + epoch.overhead_s
        assert parts == pytest.approx(epoch.e2e_s, rel=0.05, abs=0.002)
        own = found.select(found.epoch == epoch.epoch)
        assert own.step_s.sum() == pytest.approx(epoch.e2e_s, rel=1e-6)
        assert own.compute_s.sum() == pytest.approx(epoch.compute_s)
    assert (found.fetch_s > 0).all()
    assert first.steps == second.steps == 4
    if not find_mount(tmp_path).is_in_memory:
        assert first.resident_before == pytest.approx(0.0, abs=0.05)
    assert second.resident_after == pytest.approx(1.0, abs=0.2)
    assert first.memory_mb is not None
    assert first.memory_mb > 100
    assert first.cpu_load is not None
    assert 0 < first.cpu_load <= 1
    assert 0 < found.start_s[0] < seen.seconds
    assert len(seen.sensor_trace.at_s) > 5
    assert (seen.label, seen.power_label) == ("measured", None if first.energy_j is None else "measured")
    assert "torch" in seen.source
    assert find_mount(tmp_path).device in seen.source
    assert seen.parameters["file_mb"] > 0
    assert seen.parameters["collate_s"] > 0
    assert "epoch 2 of 2, minibatch 4 of 4" in heard
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


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
    rig = rig_at(tmp_path, gone=StoragePlan("gone", "/no/such/mount"))
    assert reason in (rig.refusal_reason(replace(POINT, **changed), WORKLOAD) or "")
    assert rig.refusal_reason(POINT, WORKLOAD) is None or find_mount(tmp_path).is_in_memory


def test_the_software_is_named(tmp_path):
    assert {"fedge", "torch", "pillow", "machine", "kernel"} <= set(rig_at(tmp_path).software)
