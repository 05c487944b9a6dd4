"""The power limit of GPUs as a knob: against a stand-in for ``pynvml`` with its documented functions, on no card."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from contracts.device import DeviceContract
from contracts.fake_nvml import FakeCard, FakeNvml, install

from fedge.devices import gpu_workstation, jetson_board
from fedge.devices.catalogue import GPU_WORKSTATION
from fedge.devices.gpu_workstation import GPU_KNOB, SAVED_LIMITS, GpuPowerLimits, open_power_limits
from fedge.devices.jetson_board import JetsonBoard
from fedge.devices.local_board import BoardLocation, LocalBoard, open_local_board
from fedge.errors import BoardError, ModeNotSet
from fedge.powerd.powerd_client import PowerdError
from fedge.protocols import Device
from fedge.types import Measurement, Workload

ROOT = Path(__file__).resolve().parents[3]
WORK = Workload("resnet18-imagenet", 16)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return install(monkeypatch, FakeNvml([FakeCard(), FakeCard(limit_mw=200_000)]))


@pytest.fixture
def here(nvml: FakeNvml, tmp_path: Path) -> Iterator[LocalBoard]:
    with open_local_board(BoardLocation(GPU_WORKSTATION, state_dir=tmp_path, sample_hz=20)) as opened:
        yield opened


def read_limits(nvml: FakeNvml) -> list[int | None]:
    return [card.limit_mw for card in nvml.cards]


def leave_limits(folder: Path) -> None:
    """Leave the file of a program that was killed while it held the cards."""
    limits, path = open_power_limits(folder), folder / SAVED_LIMITS
    limits.hold("killed", 1)
    left = path.read_text()
    limits.hold("killed", 0)
    path.write_text(left)


class BusyBoard:
    """The device, whose cards work while the contract's work runs; a step outweighs what a busy machine adds."""

    def __init__(self, board: JetsonBoard, nvml: FakeNvml) -> None:
        self.spec, self.use_mode, self.idle_w = board.spec, board.use_mode, board.idle_w
        self._board, self._nvml = board, nvml

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        def do(count: int) -> None:
            work(count)
            for card in self._nvml.cards:
                self._nvml.work(card, 0.02 * count)

        return self._board.measure(workload, steps, do, limit_s)


class TestGpuWorkstation(DeviceContract):
    test_a_limit_is_kept_or_one_minibatch_is_done = (
        None  # on a real clock; JetsonBoard, which keeps it, has its own test
    )

    @pytest.fixture
    def device(self, here: LocalBoard, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Device:
        monkeypatch.setattr(jetson_board, "IDLE_S", 0.3)
        monkeypatch.setattr(jetson_board, "IDLE_SETTLE_S", 0.1)
        presets = here.board.spec.presets
        type(self).modes = (presets["MAXN"], min(presets.values()))
        return cast("Device", BusyBoard(here.board, nvml))


def test_modes_are_shares_of_the_limits_that_were_found_and_presets_name_their_watts(here):
    spec = here.board.spec

    assert spec.maxn == spec.presets["MAXN"] == spec.presets["500W"]
    assert len(spec.gpu_mhz) == 8
    assert spec.presets["250W"].gpu_mhz == spec.gpu_mhz[0] == 1050.0
    assert [len(knob) for knob in (spec.cores, spec.cpu_mhz, spec.mem_mhz)] == [1, 1, 1]


def test_a_mode_sets_every_cards_limit_and_the_end_restores_what_was_found(here, nvml):
    with here.board.use_mode(here.board.spec.presets["250W"]):
        within = read_limits(nvml)

    assert within == [150_000, 100_000]
    assert read_limits(nvml) == [300_000, 200_000]


def test_a_card_that_is_lost_does_not_keep_the_others_from_being_restored(here, nvml, monkeypatch):
    set_limit = nvml.nvmlDeviceSetPowerManagementLimit

    def lose_first(card: FakeCard, limit_mw: int) -> None:
        if card is nvml.cards[0]:
            raise nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)
        set_limit(card, limit_mw)

    with pytest.raises(ModeNotSet, match="NVIDIA Fake 300"), here.board.use_mode(here.board.spec.presets["250W"]):
        monkeypatch.setattr(nvml, "nvmlDeviceSetPowerManagementLimit", lose_first)

    assert read_limits(nvml) == [150_000, 200_000]


def test_a_step_draws_what_the_limit_allows(here, nvml):
    mode = here.board.spec.presets["250W"]
    with here.board.use_mode(mode):
        measured = here.board.measure(WORK, 1, lambda _: nvml.work(nvml.cards[0], 0.5))

    assert measured.mode == mode
    assert measured.step_s == pytest.approx(0.5 * (240 / 130) ** (1 / 3), rel=0.1)
    assert 150 < measured.power_w < 700  # 150 W and 20 W, and the processor's where it counts


def test_limits_that_something_else_changes_are_noticed(here, nvml):
    def change(_count: int) -> None:
        nvml.cards[0].limit_mw = 220_000

    with pytest.raises(ModeNotSet, match="left"), here.board.use_mode(min(here.board.spec.presets.values())):
        here.board.measure(WORK, 1, change)

    assert read_limits(nvml) == [300_000, 200_000]


def test_two_programs_do_not_set_limits_at_once(here, tmp_path):
    other = open_local_board(BoardLocation(GPU_WORKSTATION, state_dir=tmp_path))
    with here.board.hold(), other as second, pytest.raises(ModeNotSet, match="another program"), second.board.hold():
        pass


def test_what_a_killed_program_left_is_not_taken_for_what_was_found(nvml, tmp_path):
    leave_limits(tmp_path)
    nvml.cards[0].limit_mw = 150_000

    later = open_power_limits(tmp_path)
    assert [level.limits_mw[0] for level in later.levels][-1] == 300_000
    later.hold("later", 1)
    later.restore()
    assert read_limits(nvml) == [300_000, 200_000]


def test_what_was_saved_before_a_reboot_is_not_what_is_found_now(nvml, tmp_path, monkeypatch):
    leave_limits(tmp_path)
    (tmp_path / "boot").write_text("another boot\n")
    monkeypatch.setattr(gpu_workstation, "BOOT_ID", tmp_path / "boot")
    nvml.cards[0].limit_mw = 250_000

    assert open_power_limits(tmp_path).levels[-1].limits_mw == (250_000, 200_000)


def test_limits_are_written_only_by_the_program_that_holds_the_cards(nvml, tmp_path):
    first = open_power_limits(tmp_path)
    with pytest.raises(PowerdError, match="not held"):
        first.restore()
    first.hold("first", 1)
    first.set_mode({GPU_KNOB: first.levels[0].clock_hz})
    written = len(nvml.cards[0].written)
    second = open_power_limits(tmp_path)

    assert len(nvml.cards[0].written) == written
    assert second.levels[-1].limits_mw == (300_000, 200_000)


def test_a_program_that_only_tries_the_limits_refuses_nobody(nvml, tmp_path):
    limits = open_power_limits(tmp_path)
    with (tmp_path / SAVED_LIMITS).open() as trial:
        fcntl.flock(trial, fcntl.LOCK_EX)
        threading.Timer(0.05, fcntl.flock, (trial.fileno(), fcntl.LOCK_UN)).start()
        assert limits.hold("one", 1)


@pytest.mark.parametrize("limit_mw", [235_900, 300_000, 319_700])
def test_no_level_exceeds_the_limit_that_was_found_and_the_last_is_it(limit_mw, tmp_path):
    levels = GpuPowerLimits(FakeNvml([FakeCard(limit_mw=limit_mw)]), tmp_path).levels

    assert max(level.limits_mw[0] for level in levels) == levels[-1].limits_mw[0] == limit_mw


def test_a_limit_that_is_read_back_is_the_nearest_levels(tmp_path):
    limits = GpuPowerLimits(FakeNvml([FakeCard(limit_mw=305_000, range_mw=(298_000, 350_000))]), tmp_path)
    limits.hold("one", 1)

    assert [limits.set_mode({GPU_KNOB: each.clock_hz})["mode"][GPU_KNOB] for each in limits.levels] == [
        each.clock_hz for each in limits.levels
    ]


def test_a_power_limit_is_no_measured_power(here):
    assert here.board.spec.max_w.label == "estimated"


def test_a_full_disk_is_a_board_error_and_leaves_the_cards_free(here, nvml, monkeypatch, tmp_path):
    def write(*_given: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    mode = here.board.spec.presets["250W"]
    leave_limits(tmp_path)
    left = (tmp_path / SAVED_LIMITS).read_text()
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", write)
        with pytest.raises(ModeNotSet, match="No space left on device"), here.board.use_mode(mode):
            pass
    assert (tmp_path / SAVED_LIMITS).read_text() == left
    with here.board.use_mode(mode):
        assert read_limits(nvml) == [150_000, 100_000]


def test_a_process_that_was_forked_meanwhile_does_not_hold_the_cards(nvml, tmp_path):
    limits = open_power_limits(tmp_path)
    limits.hold("run", 1)
    ends, end = os.pipe()
    worker = os.fork()
    if not worker:
        os.read(ends, 1)
        os._exit(0)
    try:
        limits.hold("run", 0)
        assert open_power_limits(tmp_path).levels == limits.levels
    finally:
        os.write(end, b".")
        os.waitpid(worker, 0)
        os.close(ends)
        os.close(end)


def test_a_killed_program_leaves_the_file_unlocked(tmp_path):
    program = f"""
        import os, sys
        sys.path.append({str(ROOT / "tests")!r})
        from contracts.fake_nvml import FakeCard, FakeNvml
        sys.modules["pynvml"] = FakeNvml([FakeCard()])
        from pathlib import Path
        from fedge.devices.gpu_workstation import open_power_limits
        open_power_limits(Path({str(tmp_path)!r})).hold("killed", 1)
        os.kill(os.getpid(), 9)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, check=False)

    assert done.returncode == -9
    assert json.loads((tmp_path / SAVED_LIMITS).read_text())["limits_mw"] == {"GPU-0": 300_000}
    limits = GpuPowerLimits(FakeNvml([FakeCard(limit_mw=150_000)]), tmp_path)
    limits.hold("next", 1)
    limits.hold("next", 0)
    assert (tmp_path / SAVED_LIMITS).read_text() == ""


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (FakeNvml([FakeCard()], root=False), "needs root"),
        (FakeNvml([FakeCard(limit_mw=None)]), "Not Supported"),
        (FakeNvml([FakeCard(limit_mw=100_000)]), "already the lowest"),
        (FakeNvml([]), "no NVIDIA GPU"),
        (FakeNvml([], driver=False), "no NVIDIA driver"),
    ],
)
def test_limits_that_cannot_be_set_are_refused_with_the_reason(nvml, reason, monkeypatch, tmp_path):
    install(monkeypatch, nvml)

    with pytest.raises(BoardError, match=reason):
        open_power_limits(tmp_path)


def test_the_stand_in_has_the_names_of_the_package():
    pynvml = pytest.importorskip("pynvml", reason="needs the extra gpu")
    for name in (each for each in dir(FakeNvml) if each.startswith(("nvml", "NVML"))):
        assert hasattr(pynvml, name), name
        if name.startswith("NVML_"):
            assert getattr(pynvml, name) == getattr(FakeNvml, name)
