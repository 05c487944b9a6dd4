"""From the measuring program's file, and what was seen beside it, to a finished point."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedge.characterisation.image_storage import ImageDataSet, Mount
from fedge.characterisation.local_rig import ProgramRun, build_measurement
from fedge.characterisation.machine_control import LinuxMachine, LinuxSession, SensorSummary
from fedge.characterisation.point_measurement import PointMeasurement
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.characterisation.system_sampler import SystemSample
from fedge.errors import BoardError

BLIND = LinuxSession()
FACTS = {"device": "cpu", "torch": "2", "threads": 1, "python": "3.11"}
TIMES = ("fetch_s", "preprocess_s", "collate_s", "stall_s", "copy_s", "compute_s", "overhead_s", "taking_s", "step_s")


class Sensed(LinuxSession):
    """A machine with sensors of its own."""

    def summarise_sensors(self, start_s: float, end_s: float) -> SensorSummary:
        return SensorSummary(energy_j=5 * (end_s - start_s), gpu_load=0.5, temperature_c=60.0, throttled=True)


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


def seen(
    path: Path, held: LinuxSession = BLIND, joules: float = math.nan, others: float | None = None
) -> PointMeasurement:
    looks = tuple(look(float(at_s), joules * (at_s - 99)) for at_s in range(99, 106))
    story = ProgramRun(path, looks, FACTS, by_rapl=not math.isnan(joules), other_cores=others, notes=("odd",))
    images = ImageDataSet(path.parent, (), None, Mount("/", "ext4", "/dev/x", "8:0"))
    return build_measurement(SweepPoint("here", "w"), story, held, LinuxMachine(), images, 98.0)


def test_an_epoch_is_the_sum_of_its_minibatches_with_what_was_seen_beside(tmp_path):
    found = seen(written(tmp_path / "x.npz"))
    first, second = found.epochs
    assert (first.steps, first.e2e_s) == (2, pytest.approx(2))
    assert first.preprocess_s == pytest.approx(0.2)
    assert first.cpu_load == pytest.approx(0.25)
    assert first.memory_mb == pytest.approx(30)
    assert (first.disk_read_mb, second.disk_read_mb) == (6, 0)
    assert (first.resident_before, first.resident_after) == (0, 1)
    assert (second.resident_before, second.resident_after) == (None, None)
    assert (first.energy_j, first.power_w, found.power_label) == (None, None, None)
    assert found.minibatches.start_s.tolist() == [2, 3, 4, 5]
    assert found.notes == ("odd",)
    assert found.parameters["start_s"] == pytest.approx(0.3)
    assert "images on ext4 on /dev/x (8:0)" in found.source


def test_a_point_that_others_disturbed_says_so(tmp_path):
    path = written(tmp_path / "x.npz")
    assert not [note for note in seen(path, others=0.1).notes if "others" in note]
    found = seen(path, others=1.25)
    assert found.notes[-1].startswith("others kept 1.25 cores busy")
    assert found.parameters["others_cores"] == 1.25


def test_without_a_block_device_the_processes_say_what_was_read(tmp_path):
    unknown = np.full(2, math.nan)
    path = written(tmp_path / "x.npz", read_bytes_before=unknown, read_bytes_after=unknown)
    assert seen(path).epochs[0].disk_read_mb == pytest.approx(2)


def test_a_counter_of_joules_gives_energy_and_says_of_what(tmp_path):
    found = seen(written(tmp_path / "x.npz"), joules=3.0)
    assert found.epochs[0].energy_j == pytest.approx(6)
    assert found.epochs[0].power_w == pytest.approx(3)
    assert found.power_label == "measured"
    assert "power by RAPL, the processor's packages alone" in found.source


def test_the_machines_own_sensors_come_first(tmp_path):
    found = seen(written(tmp_path / "x.npz"), Sensed(), joules=3.0)
    assert found.epochs[1].energy_j == pytest.approx(10)
    assert (found.epochs[1].gpu_load, found.epochs[1].temperature_c, found.epochs[1].throttled) == (0.5, 60, True)


def test_a_file_that_is_none_is_the_points_failure(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"cut off")
    with pytest.raises(BoardError, match="cannot be read"):
        seen(tmp_path / "x.npz")
