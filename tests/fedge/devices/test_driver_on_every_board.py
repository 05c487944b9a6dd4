"""The driver on every recorded board: recognised, set, measured, put back byte for byte, whatever goes wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from contracts import jetsons
from contracts.desk import Desk, desk
from contracts.jetsons.kernel import (
    BPMP_EMC,
    CPUS,
    OVERRIDE,
    POLICIES,
    Fault,
    KernelMachine,
    hot,
    lost_sensor,
    ranges,
)
from contracts.processes import wait_for

from fedge.devices import catalogue
from fedge.devices.board_spec import READ_ON_BOARD
from fedge.devices.local_board import LocalBoard, open_local_board
from fedge.devices.sensing.energy_integral import GAP_PERIODS
from fedge.devices.sensing.sysfs_sensor import find_rails
from fedge.errors import ModeNotSet, SensorLost
from fedge.powerd.machine import Machine
from fedge.powerd.powerd_client import PowerdClient
from fedge.types import Measurement, PowerMode, Workload

ROOT = Path(__file__).resolve().parents[3]
WORK = Workload("resnet18-imagenet", 16)
FLOOR_CORES, FLOOR_KHZ = 2, 400_000
STEP_S = 0.02
LEASE_S = 2.0
ZONE = "/sys/class/thermal/thermal_zone{}/temp"
HOLDING = """
import sys, time
from fedge.devices import jetson_board
from fedge.devices.local_board import BoardLocation, open_local_board

jetson_board.LEASE_S, jetson_board.RENEW_S = float(sys.argv[3]), float(sys.argv[3]) / 3
with open_local_board(BoardLocation(power_socket=sys.argv[1], root=sys.argv[2], sample_hz=20)) as here:
    spec = here.board.spec
    with here.board.use_mode(here.board.spec.maxn), here.board.use_mode(spec.presets[spec.default_preset]):
        print("held", flush=True)
        time.sleep(600)
"""
"""A program that holds the board in a mode until it is killed, with a lease that is soon over."""

pytestmark = pytest.mark.slow
LONG = pytest.mark.long
"""Of boards that are like another one."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A board at a desk, the truth about it, its driver, and the kernel to plant faults in."""

    truth: jetsons.Board
    desk: Desk
    here: LocalBoard
    kernel: KernelMachine

    @property
    def lowest(self) -> PowerMode:
        """Every knob as low as the daemon allows."""
        spec = self.here.board.spec
        return PowerMode(spec.cores[0], spec.cpu_mhz[0], spec.gpu_mhz[0], spec.mem_mhz[0])

    @property
    def middle(self) -> PowerMode:
        """Every knob in the middle of its table."""
        spec = self.here.board.spec
        tables = (spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz)
        return PowerMode(spec.cores[len(spec.cores) // 2], *(table[len(table) // 2] for table in tables))

    @property
    def elsewhere(self) -> PowerMode:
        """As many cores as are on, and every clock another than the one found."""
        spec, cores = self.here.board.spec, len(self.truth.found.cpus)
        return PowerMode(cores, spec.cpu_mhz[1], spec.gpu_mhz[1], spec.mem_mhz[0])

    def measured(self, steps: int = 5, meanwhile: Callable[[], object] = lambda: None) -> Measurement:
        """Minibatches that take real time."""

        def work(count: int) -> None:
            meanwhile()
            time.sleep(count * STEP_S)

        return self.here.board.measure(WORK, steps, work)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.xdist_group(f"desk-{name}"), *([] if name in jetsons.PLAYED else [LONG])])
        for name in jetsons.BOARDS
    ],
)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with (
        desk(request.param, tmp_path_factory.mktemp("desk"), worker=False) as found,
        open_local_board(found.settings.place) as here,
    ):
        yield Bench(jetsons.board(request.param), found, here, KernelMachine(str(found.root)))


@contextmanager
def left_as_found(bench: Bench) -> Iterator[None]:
    """Whatever the block does, the board's files are the same bytes afterwards, and modes can be set again."""
    before = bench.desk.files
    try:
        yield
    finally:
        bench.kernel.plant()
        wait_for(lambda: told(bench)["stopped"] is None)
    assert bench.desk.files == before


def told(bench: Bench) -> dict[str, object]:
    """What the daemon says now."""
    with closing(PowerdClient(bench.desk.settings.power_socket)) as power:
        return power.get()


def assert_set(bench: Bench, mode: PowerMode) -> None:
    """The tree holds exactly the mode: its cores, every cluster's limit, the GPU's, the memory clock and its lock."""
    machine, truth = bench.kernel, bench.truth
    limits = [machine.read(path) for path in machine.glob(f"{POLICIES}/policy*/scaling_max_freq")]
    emc, lock = (f"{BPMP_EMC}/rate", f"{BPMP_EMC}/mrq_rate_locked")
    if not truth.emc.bpmp:
        emc, lock = f"{OVERRIDE}/clk_rate", f"{OVERRIDE}/clk_state"

    assert machine.read(f"{CPUS}/online") == ranges(range(mode.cores))
    assert set(limits) == {str(round(mode.cpu_mhz * 1e3))}
    assert machine.read(gpu_limit(truth)) == str(round(mode.gpu_mhz * 1e6))
    assert (machine.read(emc), machine.read(lock)) == (str(round(mode.mem_mhz * 1e6)), "1")


def gpu_limit(truth: jetsons.Board) -> str:
    return f"/sys/class/devfreq/{truth.gpu.device_name}/max_freq"


def test_it_is_recognised_with_its_own_tables_and_the_catalogues_total(bench):
    truth, spec = bench.truth, bench.here.board.spec

    assert bench.here.catalogued.name == spec.name == truth.catalogue
    assert spec.cores == tuple(count for count in truth.cores if count >= FLOOR_CORES)
    assert spec.cpu_mhz == tuple(khz / 1e3 for khz in truth.cpu_khz if khz >= FLOOR_KHZ)
    assert spec.gpu_mhz == tuple(hz / 1e6 for hz in truth.gpu_hz)
    assert spec.mem_mhz == tuple(hz / 1e6 for hz in truth.emc_hz)
    assert spec.sources["gpu_mhz"] == READ_ON_BOARD
    assert spec.total_power == bench.here.sensor.total_power == truth.total
    assert truth.total == catalogue.find(truth.catalogue).total_power
    assert set(spec.presets) == {"MAXN"} | {preset.name for preset in truth.presets if not preset.needs_reboot}


@pytest.mark.parametrize("which", ["lowest", "middle", "top"])
def test_a_mode_is_set_exactly_metered_from_the_boards_rails_and_put_back(bench, which):
    mode = {"lowest": bench.lowest, "middle": bench.middle, "top": bench.here.board.spec.maxn}[which]

    with left_as_found(bench), bench.here.board.use_mode(mode):
        assert_set(bench, mode)
        seen = bench.measured()

    assert (seen.mode, seen.steps) == (mode, 5)
    assert seen.step_s == pytest.approx(STEP_S, rel=0.5)
    assert seen.power_w == pytest.approx(bench.truth.total_w, abs=0.002)
    assert seen.peak_c == pytest.approx(max(z.milli_c for z in real_zones(bench.truth)) / 1e3)


def real_zones(truth: jetsons.Board) -> list[jetsons.Zone]:
    return [zone for zone in truth.zones if not zone.again and not zone.name.startswith("PMIC")]


def test_an_exception_inside_a_mode_leaves_the_board_as_found(bench):
    with (
        left_as_found(bench),
        pytest.raises(RuntimeError, match="boom"),
        bench.here.board.use_mode(bench.middle),
        bench.here.board.use_mode(bench.lowest),
    ):
        raise RuntimeError("boom")

    assert told(bench)["lease"] is None


# A lease ends in the daemon alone; what it then puts back on each board, the other tests see.
@pytest.mark.parametrize(
    "bench",
    [pytest.param(name, marks=pytest.mark.xdist_group(f"desk-{name}")) for name in ("nano", "agx-orin-jp6")],
    indirect=True,
)
def test_a_client_that_is_killed_while_it_holds_the_board_leaves_it_as_found_when_its_lease_ends(bench):
    arguments = [bench.desk.settings.power_socket, str(bench.desk.root), f"{LEASE_S}"]
    with left_as_found(bench):
        command = [sys.executable, "-c", HOLDING, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as client:
            try:
                assert client.stdout.readline() == "held\n"
                held = told(bench)
            finally:
                client.kill()
        assert held["changed"]
        assert held["lease"] is not None
        wait_for(lambda: told(bench)["lease"] is None)


# The daemon's own tests plant every fault on every board; what is seen here is that the driver tells of one.
def test_a_clock_that_is_not_taken_is_told_with_what_was_read_back(bench):
    path = gpu_limit(bench.truth)
    found = bench.kernel.read(path)
    for fault in (Fault("ignore", path), Fault("refuse", path, "EINVAL")):
        with left_as_found(bench):
            bench.kernel.plant(fault)
            with pytest.raises(ModeNotSet, match=f"read back {found}"), bench.here.board.use_mode(bench.elsewhere):
                pytest.fail("the mode counts as set")


def test_a_limit_that_vanishes_is_told_and_put_back_when_it_is_there_again(bench):
    real = bench.kernel.path(bench.kernel.resolve(gpu_limit(bench.truth)))
    set_before_it_went = f"{round(bench.elsewhere.gpu_mhz * 1e6)}\n"
    with left_as_found(bench):
        bench.kernel.plant(Fault("vanish", gpu_limit(bench.truth)))
        try:
            with pytest.raises(ModeNotSet, match="max_freq"), bench.here.board.use_mode(bench.elsewhere):
                pytest.fail("the mode counts as set")
            assert not real.exists()
        finally:
            bench.kernel.plant()
            real.write_text(set_before_it_went, encoding="utf-8")
            with closing(PowerdClient(bench.desk.settings.power_socket)) as power:
                power.restore()


@pytest.mark.parametrize(
    ("fault", "why"),
    [(lambda: hot(ZONE.format(0), 97.5), "97.5 C"), (lambda: lost_sensor(ZONE.format("*")), "cannot be read")],
    ids=["too-hot", "no-temperature"],
)
def test_a_board_that_must_be_left_alone_is_put_back_and_its_work_does_not_count(bench, fault, why):
    def goes_wrong() -> None:
        bench.kernel.plant(fault())
        wait_for(lambda: told(bench)["stopped"] is not None)

    with left_as_found(bench):
        with pytest.raises(ModeNotSet, match=f"left .*{why}"), bench.here.board.use_mode(bench.elsewhere):
            bench.measured(1, goes_wrong)
        with pytest.raises(ModeNotSet, match=why), bench.here.board.use_mode(bench.elsewhere):
            pytest.fail("the mode counts as set")


def test_a_power_sensor_that_is_lost_during_the_work_is_told_and_the_board_put_back(bench):
    rails = [rail for rail in find_rails(Machine(str(bench.desk.root))) if rail.label in bench.truth.total]
    files = {path: bench.kernel.path(path).read_bytes() for rail in rails for path in rail.files}

    def goes() -> None:
        for path in files:
            bench.kernel.path(path).write_bytes(b"gone\n")

    with left_as_found(bench):
        try:
            with pytest.raises(SensorLost, match=rails[0].label), bench.here.board.use_mode(bench.elsewhere):
                bench.measured(round(2 * GAP_PERIODS / bench.desk.settings.sample_hz / STEP_S), goes)
        finally:
            for path, content in files.items():
                bench.kernel.path(path).write_bytes(content)
