"""The board driver with a daemon and a meter that are stand-ins: modes, energy, leases, and what goes wrong."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from contracts.device import DeviceContract
from contracts.processes import wait_for
from hypothesis import given
from hypothesis import strategies as st

from fedge.clock import SimulatedClock
from fedge.devices import catalogue, jetson_board
from fedge.devices.board_spec import build_board_spec
from fedge.devices.jetson_board import (
    CHUNK_S,
    ENERGY_WINDOW_S,
    IDLE_S,
    IDLE_SETTLE_S,
    UNKNOWN_STEP_SE_LOG,
    IdlePowerStore,
    JetsonBoard,
    TimedChunk,
    count_next_steps,
    estimate_step_timing,
)
from fedge.errors import ModeNotSet, SensorLost
from fedge.powerd.powerd_client import PowerdError
from fedge.types import Energy, PowerMode, Workload

KNOBS = {
    "cores": [2, 4, 6],
    "cpu_khz": [729600, 1510400],
    "gpu_hz": [306000000, 624750000],
    "emc_hz": [204000000, 2133000000],
}
TOP = {"cores": 6, "cpu_khz": 1510400, "gpu_hz": 624750000, "emc_hz": 2133000000}
SLOW, FAST = PowerMode(2, 729.6, 306.0, 204.0), PowerMode(4, 1510.4, 624.75, 2133.0)
WORK = Workload("resnet18-imagenet", 16)
STEP_S = 0.05


class Daemon:
    """A power daemon in memory; several clients share one."""

    def __init__(self) -> None:
        self.mode: dict[str, int] = dict(TOP)
        self.calls: list[str] = []
        self.holder: str | None = None
        self.stopped: str | None = None
        self.fails: dict[str, PowerdError] = {}
        self.closed = 0

    def _called(self, verb: str) -> None:
        self.calls.append(verb)
        if verb in self.fails:
            raise self.fails[verb]

    def get(self) -> dict[str, Any]:
        self._called("get")
        return {"mode": dict(self.mode), "stopped": self.stopped}

    def set_mode(self, mode: dict[str, int], token: str | None = None, lock_min: bool = False) -> dict[str, Any]:
        self._called("set")
        assert token == "t", "a set without the lease"
        self.mode = {**self.mode, **mode}
        return {"mode": self.mode}

    def restore(self, token: str | None = None) -> dict[str, Any]:
        self._called("restore")
        self.mode = dict(TOP)
        return {"mode": self.mode}

    def hold(self, name: str, seconds: float, token: str | None = None) -> dict[str, Any]:
        self._called("release" if seconds == 0 else "hold")
        self.holder = None if seconds == 0 else name
        if seconds == 0:
            self.mode = dict(TOP)
        return {"token": "t", "left_s": seconds}

    def close(self) -> None:
        self.closed += 1


class Meter:
    """Ten watts at work, four at rest, by whether the clock was moved by work or by waiting."""

    def __init__(self, watts: float = 10.0) -> None:
        self.watts, self.changes = watts, 0
        self.windows: list[tuple[float, float]] = []
        self.followed: list[float] = []
        self.odd: dict[str, Any] = {}
        """What is odd about every window."""

    def energy_between(self, start_s: float, end_s: float) -> Energy:
        self.windows.append((start_s, end_s))
        seen = Energy(start_s, end_s, self.watts * (end_s - start_s), 20, "VDD_IN", power_se_log=0.01, peak_c=51.0)
        return replace(seen, **self.odd)

    def follow(self, start_s: float) -> None:
        self.followed.append(start_s)

    def record_mode_change(self) -> None:
        self.changes += 1


class Ticking:
    """A board on a virtual clock, whose minibatches take their time."""

    def __init__(self, tmp_path: Path | None = None, step_s: float = STEP_S, meter: str = "sysfs: VDD_IN") -> None:
        self.clock, self.daemon, self.meter = SimulatedClock(), Daemon(), Meter()
        described = {"allowed": KNOBS, "knobs": KNOBS, "presets": []}
        self.board = JetsonBoard(
            build_board_spec(catalogue.find("orin-nano"), described, "VDD_IN"),
            KNOBS,
            self.daemon,
            lambda: self.daemon,
            self.meter,
            self.clock,
            idle=IdlePowerStore(tmp_path / "idle.json" if tmp_path else None, meter),
            holder="test",
        )
        self.step_s = step_s

    def work(self, count: int) -> None:
        self.clock.sleep_s(count * self.step_s)


class _Clocked:
    """The device with work that takes time on the virtual clock, as the contract's work takes none."""

    def __init__(self, bench: Ticking) -> None:
        self._bench = bench
        self.spec = bench.board.spec
        self.use_mode = bench.board.use_mode

    def idle_w(self, mode: PowerMode) -> float:
        before, self._bench.meter.watts = self._bench.meter.watts, 4.0
        try:
            return self._bench.board.idle_w(mode)
        finally:
            self._bench.meter.watts = before

    def measure(self, workload, steps, work, limit_s=None):
        def timed(count: int) -> None:
            self._bench.work(count)
            work(count)

        return self._bench.board.measure(workload, steps, timed, limit_s)


class TestJetsonBoard(DeviceContract):
    modes = (FAST, SLOW)

    @pytest.fixture
    def device(self) -> Iterator[_Clocked]:
        return _Clocked(Ticking())


def test_the_daemon_is_asked_for_exactly_the_mode_while_the_board_is_held():
    bench = Ticking()
    with bench.board.use_mode(SLOW):
        assert bench.daemon.mode == {"cores": 2, "cpu_khz": 729600, "gpu_hz": 306000000, "emc_hz": 204000000}
        assert bench.daemon.holder == "test"

    assert bench.daemon.mode == TOP
    assert bench.daemon.holder is None


def test_the_lease_is_kept_over_several_modes_inside_held():
    bench = Ticking()
    with bench.board.hold():
        for mode in (SLOW, FAST, SLOW):
            with bench.board.use_mode(mode):
                bench.board.measure(WORK, 3, bench.work)

    assert bench.meter.changes == 6
    assert bench.daemon.calls.count("hold") == 1
    assert bench.daemon.calls.count("release") == 1
    assert bench.daemon.mode == TOP


def test_the_lease_is_renewed_while_the_board_is_held_and_a_renewal_that_fails_ends_nothing(monkeypatch, caplog):
    monkeypatch.setattr(jetson_board, "LEASE_RENEWAL_S", 0.001)
    bench = Ticking()
    with bench.board.use_mode(SLOW):
        wait_for(lambda: bench.daemon.calls.count("hold") > 2)
        bench.daemon.fails["hold"] = PowerdError("unreachable", "no socket")
        wait_for(lambda: "could not be renewed: " in caplog.text)

    assert bench.daemon.mode == TOP


def test_a_mode_inside_a_mode_goes_back_to_the_outer_one():
    bench = Ticking()
    with bench.board.use_mode(FAST):
        with bench.board.use_mode(SLOW):
            pass
        assert bench.daemon.mode["gpu_hz"] == 624750000
        assert bench.board.measure(WORK, 2, bench.work).mode == FAST


def test_time_and_energy_are_those_of_the_work():
    bench = Ticking()
    with bench.board.use_mode(FAST):
        seen = bench.board.measure(WORK, 40, bench.work)

    assert seen.step_s == pytest.approx(STEP_S)
    assert seen.power_w == pytest.approx(10.0)
    assert seen.work_s == pytest.approx(40 * STEP_S)
    assert (seen.peak_c, seen.power_se_log) == (51.0, 0.01)


def test_a_change_of_mode_in_the_middle_of_the_work_is_timed():
    bench = Ticking()
    slow_set = bench.daemon.set_mode

    def set_mode(mode, token=None, lock_min=False):
        bench.clock.sleep_s(0.2)
        return slow_set(mode, token, lock_min)

    bench.daemon.set_mode = set_mode
    with bench.board.hold():
        seen = []
        for mode in (SLOW, FAST):
            with bench.board.use_mode(mode):
                seen.append(bench.board.measure(WORK, 5, bench.work))

    assert seen[0].switch_s is None
    assert seen[0].warm_up_s == pytest.approx(0.2)
    assert seen[1].switch_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("left", "stopped", "told"),
    [
        (TOP, "97.0 C is above 95.0 C", r"left 2c/.*97.0 C is above"),
        ({}, "scaling_max_freq is gone", "cannot be read: scaling_max_freq is gone"),
    ],
)
def test_work_in_a_mode_that_did_not_last_or_cannot_be_read_does_not_count(left, stopped, told):
    bench = Ticking()

    def work(count: int) -> None:
        bench.work(count)
        bench.daemon.mode, bench.daemon.stopped = dict(left), stopped

    with pytest.raises(ModeNotSet, match=told), bench.board.use_mode(SLOW):
        bench.board.measure(WORK, 3, work)


@pytest.mark.parametrize("verb", ["hold", "set", "get", "restore"])
def test_a_daemon_that_refuses_is_an_error_of_the_board_with_its_own_words(verb):
    bench = Ticking()
    bench.daemon.fails[verb] = PowerdError("did-not-stick", "got 612000000; wanted 306000000")

    with pytest.raises(ModeNotSet, match="got 612000000"), bench.board.use_mode(SLOW):
        bench.board.measure(WORK, 3, bench.work)

    assert bench.daemon.mode == TOP


def test_an_error_in_the_work_is_not_hidden_by_a_daemon_that_died_meanwhile():
    bench = Ticking()

    def failing(count: int) -> None:
        bench.daemon.fails = dict.fromkeys(("restore", "release"), PowerdError("unreachable", "no socket"))
        raise RuntimeError("the worker died")

    with pytest.raises(RuntimeError, match="the worker died"), bench.board.use_mode(SLOW):
        bench.board.measure(WORK, 3, failing)


def test_power_at_rest_is_measured_once_and_remembered_by_the_next_program(tmp_path):
    bench = Ticking(tmp_path)
    bench.meter.watts = 4.5

    assert bench.board.idle_w(SLOW) == pytest.approx(4.5)
    assert bench.clock.now_s() == pytest.approx(IDLE_SETTLE_S + IDLE_S)

    again = Ticking(tmp_path)
    again.meter.watts = 99.0
    assert again.board.idle_w(SLOW) == pytest.approx(4.5)
    assert again.daemon.calls == []


def test_power_at_rest_of_another_meter_is_measured_by_itself_and_both_are_remembered(tmp_path):
    for meter, watts in (("sysfs: VDD_IN", 4.5), ("tegrastats: VDD_CPU + VDD_SOC", 3.5)):
        bench = Ticking(tmp_path, meter=meter)
        bench.meter.watts = watts
        assert bench.board.idle_w(SLOW) == pytest.approx(watts)

    assert Ticking(tmp_path, meter="sysfs: VDD_IN").board.idle_w(SLOW) == pytest.approx(4.5)


@pytest.mark.parametrize("text", ['{"half": ', '{"2c/729.6/306/204 MHz": 4.5}', '{"sysfs: VDD_IN": {"mode": null}}'])
def test_a_broken_book_of_idle_power_is_measured_anew(tmp_path, text):
    (tmp_path / "idle.json").write_text(text, encoding="utf-8")

    assert Ticking(tmp_path).board.idle_w(SLOW) == pytest.approx(10.0)


def test_a_book_of_idle_power_that_cannot_be_written_costs_a_warning_only(tmp_path, caplog):
    (tmp_path / "state").write_text("no folder", encoding="utf-8")
    book = IdlePowerStore(tmp_path / "state" / "idle.json")

    book.record(SLOW, 4.5)

    assert book.find_w(SLOW) == 4.5
    assert "cannot be written" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_the_error_says_what_was_read_back_when_the_daemons_words_do_not():
    bench = Ticking()
    bench.daemon.fails["set"] = PowerdError("did-not-stick", "wrote 306000000: Invalid argument", got=612000000)

    told = r"could not set .*Invalid argument \(read back 612000000\)"
    with pytest.raises(ModeNotSet, match=told), bench.board.use_mode(SLOW):
        pass


@pytest.mark.parametrize(("verb", "doing"), [("hold", "hold the board"), ("release", "give the board back")])
def test_a_lease_that_fails_is_told_as_what_failed_and_leaves_no_connection(verb, doing):
    bench = Ticking()
    bench.daemon.fails[verb] = PowerdError("held", "the board is held by nano-7")

    with pytest.raises(ModeNotSet, match=f"could not {doing}: the board is held by nano-7"), bench.board.hold():
        pass

    assert bench.daemon.closed == 1


def test_work_and_rest_of_which_the_meter_saw_nearly_nothing_do_not_count(tmp_path):
    bench = Ticking(tmp_path)
    bench.meter.odd = {"samples": 3, "gaps": 1, "longest_gap_s": 9.8, "unseen_s": 9.8}

    with pytest.raises(SensorLost, match=r"3 power samples in 10\.0 s"), bench.board.use_mode(FAST):
        bench.board.measure(WORK, round(10.0 / STEP_S), bench.work)
    with pytest.raises(SensorLost, match="3 power samples"):
        bench.board.idle_w(SLOW)

    assert bench.daemon.mode == TOP
    assert not (tmp_path / "idle.json").exists()


def test_work_during_which_the_mode_was_changed_does_not_count():
    bench = Ticking()
    bench.meter.odd = {"mode_changes": 2}

    with pytest.raises(ModeNotSet, match="changed 2 times during the work"), bench.board.use_mode(FAST):
        bench.board.measure(WORK, 3, bench.work)


def test_the_energy_of_long_work_is_taken_as_it_goes_on_in_parts_without_a_hole():
    bench = Ticking()
    with bench.board.use_mode(FAST):
        seen = bench.board.measure(WORK, round(8.5 * ENERGY_WINDOW_S / STEP_S), bench.work)

    windows = bench.meter.windows
    assert windows[0][0] == 0.0
    assert bench.meter.followed == [start_s for start_s, _ in windows]
    assert windows[-1][1] == bench.clock.now_s()
    assert all(earlier[1] == later[0] for earlier, later in pairwise(windows))
    assert max(end_s - start_s for start_s, end_s in windows) < 2 * ENERGY_WINDOW_S
    assert seen.power_w == pytest.approx(10.0)
    assert seen.power_se_log < 0.01


def test_only_the_first_work_of_a_mode_has_a_warm_up():
    bench = Ticking()
    slow_first = iter([2.0, 1.0, 2.0, 1.0, 2.0, 1.0])

    def work(count: int) -> None:
        bench.clock.sleep_s(next(slow_first) * count * STEP_S)

    with bench.board.use_mode(FAST):
        first = bench.board.measure(WORK, 2, work)
        second = bench.board.measure(WORK, 2, work)
    with bench.board.use_mode(FAST):
        again = bench.board.measure(WORK, 2, work)

    assert (first.step_s, first.warm_up_s) == (pytest.approx(STEP_S), pytest.approx(STEP_S))
    assert (second.step_s, second.warm_up_s) == (pytest.approx(1.5 * STEP_S), 0.0)
    assert (again.step_s, again.warm_up_s) == (pytest.approx(STEP_S), pytest.approx(STEP_S))


def test_power_at_rest_of_a_board_that_left_the_mode_is_not_remembered(tmp_path):
    bench = Ticking(tmp_path)
    seen = bench.meter.energy_between

    def window(start_s: float, end_s: float) -> Energy:
        bench.daemon.mode, bench.daemon.stopped = dict(TOP), "97.0 C is above 95.0 C"
        return seen(start_s, end_s)

    bench.meter.energy_between = window
    with pytest.raises(ModeNotSet, match=r"97\.0 C is above"):
        bench.board.idle_w(SLOW)

    assert not (tmp_path / "idle.json").exists()


def test_long_work_costs_in_proportion_to_its_chunks():
    def spent_s(chunks: int) -> float:
        bench = Ticking(step_s=1.0)
        begin = time.process_time()
        bench.board.measure(WORK, chunks, bench.work, limit_s=2.0 * chunks)
        return time.process_time() - begin

    shares = [spent_s(4_000) / spent_s(250) for _ in range(3)]
    assert min(shares) < 60  # 16 were it not for noise; 256 if every chunk looked at all before it


TIMES = st.floats(1e-4, 20.0)


def played(steps: int, step_s: float, warm_up_s: float, limit_s: float | None) -> list[TimedChunk]:
    """A board whose minibatches take ``step_s``, the first one ``warm_up_s`` longer."""
    done: list[TimedChunk] = []
    left, room_s = steps, limit_s
    while (count := count_next_steps(done[-1] if done else None, left, room_s)) > 0:
        done.append(TimedChunk(count, count * step_s + (0.0 if done else warm_up_s)))
        left, room_s = left - count, None if room_s is None else room_s - done[-1].seconds
    return done


@given(steps=st.integers(1, 500), step_s=TIMES, warm_up_s=st.floats(0.0, 30.0))
def test_all_the_work_is_done_and_its_seconds_add_up(steps, step_s, warm_up_s):
    done = played(steps, step_s, warm_up_s, None)
    timing = estimate_step_timing(done)

    assert sum(chunk.steps for chunk in done) == steps
    total_s = sum(chunk.seconds for chunk in done)
    assert steps * timing.step_s + timing.warm_up_s == pytest.approx(total_s)
    if steps > 1:
        assert timing.step_s == pytest.approx(step_s)
        assert timing.warm_up_s == pytest.approx(warm_up_s, abs=1e-6 + 1e-9 * total_s)


@given(steps=st.integers(1, 500), step_s=TIMES, limit_s=st.floats(-1.0, 60.0))
def test_a_limit_is_kept_but_for_the_one_minibatch_that_is_always_done(steps, step_s, limit_s):
    done = played(steps, step_s, 0.0, limit_s)
    seconds, count = sum(chunk.seconds for chunk in done), sum(chunk.steps for chunk in done)

    assert count == 1 or seconds <= limit_s * (1 + 1e-9)
    most = min(steps, math.floor(limit_s / step_s * (1 + 1e-9)))
    assert count >= max(1, most - 1)  # rounding may cost the last one


def test_the_first_minibatch_is_timed_alone_and_the_rest_in_stretches():
    counts = [chunk.steps for chunk in played(60, CHUNK_S / 10, 0.0, None)]

    assert counts == [1, 10, 10, 10, 10, 10, 9]


def test_a_first_minibatch_that_is_faster_is_no_negative_warm_up():
    timing = estimate_step_timing([TimedChunk(1, 0.8), TimedChunk(3, 3.0)])

    assert timing.warm_up_s == 0.0
    assert timing.step_s == pytest.approx(0.95)


def test_one_stretch_says_nothing_of_its_own_error():
    assert estimate_step_timing([TimedChunk(1, 0.5)]).se_log == UNKNOWN_STEP_SE_LOG


def test_the_error_falls_with_more_stretches():
    few = [TimedChunk(1, 1.0), *[TimedChunk(5, 5.0 + 0.1 * (-1) ** i) for i in range(4)]]
    many = [TimedChunk(1, 1.0), *[TimedChunk(5, 5.0 + 0.1 * (-1) ** i) for i in range(64)]]

    assert estimate_step_timing(many).se_log < estimate_step_timing(few).se_log / 3


@given(st.lists(st.floats(0.02, 5.0), min_size=2, max_size=2))
def test_in_a_mode_that_is_warm_a_slow_first_minibatch_is_one_like_the_others(seconds):
    timing = estimate_step_timing([TimedChunk(1, s) for s in seconds], cold=False)

    assert timing.warm_up_s == 0.0
    assert timing.step_s == pytest.approx(sum(seconds) / 2)
