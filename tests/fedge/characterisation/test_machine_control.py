"""A Jetson as the ground: modes and pinned clocks through the real daemon, on a recorded board's files."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from contracts.running_powerd import Running, board_root, state_of

from fedge.characterisation import image_storage, machine_control
from fedge.characterisation.local_rig import LocalRig, build_local_rig
from fedge.characterisation.machine_control import (
    JetsonMachine,
    LinuxMachine,
    SamplingThread,
    SystemSample,
    SystemSampler,
    build_sensor_trace,
    counter_growth,
    mean_cpu_load,
    peak_value,
)
from fedge.characterisation.point_measurement import SensorTrace
from fedge.characterisation.sweep_plan import CharacterisationPlan, MeasurementSchedule, SweepPoint
from fedge.devices.local_board import BoardLocation
from fedge.types import PowerMode

POINT = SweepPoint("here", "w", dvfs=True)
DROPPED = "proc/sys/vm/drop_caches"


@dataclass(frozen=True, slots=True)
class Board:
    root: Path
    place: BoardLocation


def running(folder: Path, extras: list[str]) -> Iterator[Board]:
    root = board_root("agx-orin-jp6", folder, extras=extras)
    with Running(root, quick=1) as daemon:
        daemon.wait_until_up().close()
        yield Board(root, BoardLocation(power_socket=daemon.socket, root=str(root), sample_hz=20))


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """One whose daemon may pin clocks and drop the page cache."""
    yield from running(tmp_path_factory.mktemp("board"), ["drop-caches", "lock-min"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    yield from running(tmp_path_factory.mktemp("plain"), [])


def low(ground: JetsonMachine) -> PowerMode:
    spec = ground.spec
    return PowerMode(spec.cores[0], spec.cpu_mhz[2], spec.gpu_mhz[1], spec.mem_mhz[0])


def limits(board: Board, which: str) -> set[str]:
    return {
        path.read_text().strip()
        for path in board.root.glob(f"sys/devices/system/cpu/cpufreq/policy*/scaling_{which}_freq")
    }


def test_a_point_has_its_mode_and_the_board_is_as_found_afterwards(board):
    ground = JetsonMachine(board.place)
    mode, before = low(ground), state_of(board.root)
    with ground.hold(replace(POINT, mode=mode)) as held:
        begun_s = time.monotonic()
        assert limits(board, "max") == {str(round(mode.cpu_mhz * 1000))}
        while time.monotonic() < begun_s + 0.3:
            pass
        metered = held.summarise_sensors(begun_s, begun_s + 0.25)
        nothing = np.full(3, np.nan)
        strip = SensorTrace(np.array([0.05, 0.1, 0.2]), *(nothing,) * 6)
        completed = held.complete_trace(strip, begun_s)
        assert held.notes == ()
    assert metered["energy_j"] > 0
    assert (completed.power_w > 0).all()
    assert (completed.temperature_c > 0).all()
    assert state_of(board.root) == before


def test_clocks_are_pinned_where_a_point_wants_no_scaling(board):
    ground = JetsonMachine(board.place)
    mode = low(ground)
    with ground.hold(replace(POINT, mode=mode, dvfs=False)):
        assert limits(board, "min") == limits(board, "max") == {str(round(mode.cpu_mhz * 1000))}
    assert len(limits(board, "min") | limits(board, "max")) == 2


def test_a_board_that_left_its_mode_is_noted(board):
    ground = JetsonMachine(board.place)
    with ground.hold(replace(POINT, mode=low(ground))) as held:
        for path in board.root.glob("sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq"):
            path.write_text("1190400\n")
        assert "the board left its mode" in held.notes[0]


def test_modes_that_the_board_does_not_have_are_refused(board):
    ground = JetsonMachine(board.place)
    assert ground.refusal_reason(replace(POINT, mode=ground.maxn)) is None
    reason = ground.refusal_reason(replace(POINT, mode=replace(low(ground), gpu_mhz=123.0)))
    assert "this board has no gpu_hz 123000000" in reason


def test_clocks_that_may_not_be_pinned_are_refused_with_how_to_allow_it(plain):
    reason = JetsonMachine(plain.place).refusal_reason(replace(POINT, dvfs=False))
    assert '"lock-min" among "extras"' in reason


def test_the_daemon_drops_the_page_cache_where_it_may(board, plain):
    nowhere = board.root / "gone/drop_caches"
    assert image_storage.drop_page_cache(board.place.power_socket, nowhere) is None
    assert (board.root / DROPPED).read_text().strip("\n") != "0"
    reason = image_storage.drop_page_cache(plain.place.power_socket, nowhere)
    assert "drop-caches is off on this board" in reason


def test_a_machine_with_a_power_daemon_is_a_jetsons_rig(board, tmp_path):
    rig = build_local_rig(
        CharacterisationPlan("p", ("here",), {}, {}, MeasurementSchedule(), ()), tmp_path, board.place
    )
    assert isinstance(rig, LocalRig)
    assert rig.maxn == PowerMode(12, 2201.6, 1300.5, 3199.0)


PINNED, FOLLOWING = SweepPoint("here", "w"), SweepPoint("here", "w", dvfs=True)


@pytest.fixture
def linux_root(tmp_path: Path) -> Path:
    for cpu in ("cpu0", "cpu1"):
        folder = tmp_path / f"sys/devices/system/cpu/{cpu}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text("schedutil\n")
        (folder / "scaling_available_governors").write_text("performance ondemand schedutil\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: A  Processor\n")
    return tmp_path


def governors(linux_root: Path) -> set[str]:
    return {file.read_text().strip() for file in linux_root.rglob("scaling_governor")}


def test_clocks_that_follow_the_load_stay_as_they_are(linux_root):
    with LinuxMachine(str(linux_root)).hold(FOLLOWING) as held:
        assert governors(linux_root) == {"schedutil"}
        assert held.notes == ()


def test_pinned_clocks_are_let_go_for_a_point_that_wants_them_so(linux_root):
    for file in linux_root.rglob("scaling_governor"):
        file.write_text("performance\n")
    with LinuxMachine(str(linux_root)).hold(FOLLOWING):
        assert governors(linux_root) == {"schedutil"}
    assert governors(linux_root) == {"performance"}


def test_an_error_puts_the_clocks_back_too(linux_root):
    with pytest.raises(KeyboardInterrupt), LinuxMachine(str(linux_root)).hold(PINNED):
        raise KeyboardInterrupt
    assert governors(linux_root) == {"schedutil"}


def test_without_the_right_a_plan_that_compares_clocks_is_refused_and_others_noted(linux_root, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, how: False)
    reason = LinuxMachine(str(linux_root), strict=True).refusal_reason(PINNED)
    assert "schedutil and only root may set it to performance" in reason
    assert LinuxMachine(str(linux_root)).refusal_reason(PINNED) is None
    with LinuxMachine(str(linux_root)).hold(PINNED) as held:
        assert governors(linux_root) == {"schedutil"}
        assert "clocks are as found" in held.notes[0]


def test_a_machine_without_a_governor_says_so(tmp_path):
    reason = LinuxMachine(str(tmp_path), strict=True).refusal_reason(FOLLOWING)
    assert "shows no clock governor" in reason


def test_the_processor_is_named(linux_root):
    assert LinuxMachine(str(linux_root)).title == f"A Processor, {os.cpu_count()} cores"


PROC = Path("/proc")
NESTED = "import subprocess, sys; print('up', flush=True); subprocess.run([sys.executable, '-c', {inner!r}])"
INNER = "held = bytearray(50_000_000); print('full', flush=True); import sys; sys.stdin.read()"


def test_waiting_for_a_disk_is_not_work(tmp_path):
    (tmp_path / "stat").write_text("cpu  10 5 15 100 20 1 2 3 7 7\ncpu0 1 1 1 1 1 1 1 1 0 0\n", "ascii")
    assert machine_control.read_cpu_ticks(tmp_path) == (36, 156)


def test_a_tree_of_processes_is_found_with_its_memory():
    outer = [sys.executable, "-c", NESTED.format(inner=INNER)]
    with subprocess.Popen(outer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "full\n"]
        pids = machine_control.list_process_tree(process.pid, PROC)
        mb = machine_control.read_resident_mb(pids, PROC)
        read = machine_control.read_storage_bytes(pids, PROC)
        process.stdin.close()
    assert len(pids) == 2
    assert pids[0] == process.pid
    assert mb > 55
    assert set(read) == set(pids)


def test_what_others_do_is_what_is_not_this_programs_own():
    then = machine_control.CpuWork(100.0, 1000.0, 50.0)
    assert machine_control.CpuWork(110.0, 1012.0, 55.0).other_cores_since(then) == pytest.approx(0.7)
    assert machine_control.CpuWork(110.0, 1004.0, 55.0).other_cores_since(then) == 0  # ticks are coarse
    before = machine_control.CpuWork.read_now()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    after = machine_control.CpuWork.read_now()
    assert after.own_s > before.own_s
    assert after.all_s >= before.all_s


def test_a_process_that_is_gone_counts_nothing():
    assert machine_control.read_resident_mb((2**22 + 1,), PROC) == 0
    assert machine_control.read_storage_bytes((2**22 + 1,), PROC) == {}


def test_the_machine_is_looked_at_while_the_block_runs():
    eyes = SystemSampler(disk=None, pid=os.getpid())
    with SamplingThread(eyes, 50) as looking:
        while len(looking.samples) < 4:
            sum(range(10_000))
    at_s = [look.at_s for look in looking.samples]
    assert at_s == sorted(at_s)
    assert looking.samples[-1].ticks_so_far > looking.samples[0].ticks_so_far
    assert looking.samples[-1].memory_mb > 10
    assert looking.samples[-1].read_bytes_so_far >= looking.samples[0].read_bytes_so_far


def looks(**columns: list[float]) -> list[SystemSample]:
    """A look per second from 100 s on; what is not given is NaN."""
    names = ("busy_so_far", "ticks_so_far", "memory_mb", "read_bytes_so_far", "joules_so_far", "temperature_c")
    count = len(next(iter(columns.values())))
    rows = [columns.get(name, [math.nan] * count) for name in names]
    return [SystemSample(100.0 + k, *(row[k] for row in rows)) for k in range(count)]


def test_a_strip_holds_what_changed_between_two_looks():
    seen = looks(
        busy_so_far=[0, 50, 250],
        ticks_so_far=[0, 200, 400],
        memory_mb=[math.nan, 10, 20],
        read_bytes_so_far=[0, 3e6, 4e6],
        joules_so_far=[5, 7, 10],
        temperature_c=[40, 41, 42],
    )
    strip = build_sensor_trace(seen, 99.0)
    assert strip.at_s.tolist() == [2, 3]
    assert strip.cpu_load.tolist() == [0.25, 1.0]
    assert strip.memory_mb.tolist() == [10, 20]
    assert strip.disk_mb_per_s.tolist() == [3, 1]
    assert strip.power_w.tolist() == [2, 3]
    assert strip.temperature_c.tolist() == [41, 42]
    assert np.isnan(strip.gpu_load).all()


def test_a_counter_grows_along_a_line_between_looks():
    seen = looks(joules_so_far=[0, 10, 10, 40])
    assert counter_growth(seen, "joules_so_far", 100.5, 102.5) == pytest.approx(20)
    assert counter_growth(seen, "busy_so_far", 100.5, 102.5) is None


def test_the_load_of_a_stretch_is_its_share_of_ticks():
    seen = looks(busy_so_far=[0, 100, 100], ticks_so_far=[0, 200, 400])
    assert mean_cpu_load(seen, 100, 102) == pytest.approx(0.25)
    assert mean_cpu_load(seen, 100, 101) == pytest.approx(0.5)


def test_the_highest_of_a_short_stretch_is_that_of_the_looks_about_it():
    seen = looks(memory_mb=[math.nan, 10, 30, 20])
    assert peak_value(seen, "memory_mb", 101.2, 101.3) == 30
    assert peak_value(seen, "memory_mb", 100.1, 100.2) == 10
    assert peak_value(seen, "temperature_c", 100, 103) is None
