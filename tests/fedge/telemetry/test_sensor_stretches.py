"""A board's samples become stretches of a second in unix time, each told once, whatever its clock does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from contracts import jetsons
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.node_settings import NodeSettings
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.sensor_stretches import (
    CLOCK_SET_S,
    SHOW_END_S,
    STALE_S,
    SensorStretches,
    describe_progress,
    find_board_spec,
)
from fedge.types import SensorSample, Trace

T0 = 1_790_000_000.0


class Clocks:
    """A monotonic clock, and one that somebody sets."""

    def __init__(self) -> None:
        self.mono_s, self.ahead_s = 500.0, T0 - 500.0

    def now_s(self) -> float:
        return self.mono_s

    def wall_s(self) -> float:
        return self.mono_s + self.ahead_s


def watched(
    clocks: Clocks, stretches: SensorStretches, samples: list[SensorSample], seconds: float, hz: float = 10.0
) -> list[Trace]:
    """What comes when it is asked once a second."""
    found = []
    for k in range(1, round(seconds * hz) + 1):
        clocks.mono_s += 1 / hz
        samples.append(SensorSample(clocks.mono_s, 5.0 + clocks.mono_s % 3, {"VDD_IN": 5.0}, {"cpu": 41.0}))
        if k % round(hz) == 0:
            found.append(stretches.take_new(samples))
    return [trace for trace in found if trace]


def test_every_second_is_reported_once_with_its_energy_while_the_clock_is_slewed() -> None:
    clocks = Clocks()
    stretches, samples = SensorStretches(clocks.now_s, clocks.wall_s), [SensorSample(500.0, 5.0 + 500 % 3)]
    found = []
    for slew_s in (0.0, 0.5 * CLOCK_SET_S, -CLOCK_SET_S):
        clocks.ahead_s += slew_s
        found += watched(clocks, stretches, samples, 20.0)
    starts = [start for trace in found for start in trace.start_s]
    assert starts == pytest.approx([T0 + i for i in range(len(starts))], abs=1e-3)
    assert len(starts) >= 59
    told_j = sum(trace.energy_j for trace in found)
    assert told_j == pytest.approx(sum(5.0 + (500 + k / 10) % 3 for k in range(600)) / 10, rel=0.05)
    assert stretches.lost == 0


@given(st.lists(st.tuples(st.floats(1, 8), st.floats(-5, 5)), max_size=8))
def test_no_time_is_reported_twice_however_the_clock_is_set(story: list[tuple[float, float]]) -> None:
    clocks = Clocks()
    stretches, samples = SensorStretches(clocks.now_s, clocks.wall_s), [SensorSample(500.0, 5.0)]
    found = []
    for seconds, step_s in story:
        found += watched(clocks, stretches, samples, seconds, hz=2.0)
        clocks.ahead_s += step_s
    times = [(start, span) for trace in found for start, span in zip(trace.start_s, trace.span_s, strict=True)]
    assert all(b[0] >= a[0] + a[1] - 2e-3 for a, b in pairwise(times))


def test_a_clock_that_was_never_set_reports_nothing_but_how_much_was_lost() -> None:
    clocks = Clocks()
    clocks.ahead_s = 0.0
    stretches, samples = SensorStretches(clocks.now_s, clocks.wall_s), [SensorSample(500.0, 5.0)]
    assert watched(clocks, stretches, samples, 5.0) == []
    assert stretches.lost == 5
    clocks.ahead_s = T0
    assert watched(clocks, stretches, samples, 3.0)


def test_while_the_sensor_is_lost_nothing_is_reported_of_that_time() -> None:
    clocks = Clocks()
    stretches, samples = SensorStretches(clocks.now_s, clocks.wall_s), [SensorSample(500.0, 5.0)]
    before = watched(clocks, stretches, samples, 5.0)
    clocks.mono_s += 100.0
    assert not stretches.take_new(samples)
    after = watched(clocks, stretches, samples, 5.0)
    told_s = sum(span for trace in (*before, *after) for span in trace.span_s)
    assert told_s < 12.0


TRAINING = BoardProgress("nano-1", T0, "training", run="r", round=2, steps=9, steps_done=4, power_w=1.0)


@pytest.mark.parametrize(
    ("said", "at_s", "state"),
    [
        (None, T0, "idle"),
        (TRAINING, T0 + 5, "training"),
        (TRAINING, T0 + STALE_S + 1, "idle"),
        (TRAINING, T0 - 100, "idle"),
        (BoardProgress("nano-1", T0, "done", run="r"), T0 + SHOW_END_S - 1, "done"),
        (BoardProgress("nano-1", T0, "done", run="r"), T0 + SHOW_END_S + 1, "idle"),
    ],
)
def test_what_a_run_told_holds_for_a_while(said: BoardProgress | None, at_s: float, state: str) -> None:
    found = describe_progress(said, "nano-1", "orin-nano", SensorSample(1.0, 6.5, {}, {"a": 40.0, "b": 50.0}), at_s)
    assert (found.state, found.at_s, found.power_w, found.temperature_c) == (state, at_s, 6.5, 50.0)
    assert found.device == "orin-nano"
    odd = describe_progress(said, "nano-1", "", SensorSample(1.0, float("nan"), {}, {"a": 1e9}), at_s)
    assert (odd.power_w, odd.temperature_c) == (None, None)


@pytest.mark.parametrize("name", jetsons.BOARDS)
def test_a_board_is_known_without_its_daemon(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = jetsons.build(name, tmp_path_factory.mktemp("root"))
    assert find_board_spec(NodeSettings(board="a", root=str(root))) is not None


def test_a_machine_that_is_no_board_has_no_kind(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert find_board_spec(NodeSettings(board="a", root=str(tmp_path_factory.mktemp("empty")))) is None
