"""The sampler keeps its pace, marks what it missed, and gives a window's energy; on a clock that the test moves."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from contracts.processes import wait_for
from hypothesis import given
from hypothesis import strategies as st

from fedge.clock import RealClock
from fedge.devices.sensing.sampler import Sampler, next_tick
from fedge.errors import BadInput, SensorLost
from fedge.protocols import Clock
from fedge.types import SensorSample


class HandClock:
    """Who sleeps on it waits until the test has moved it so far."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._moved = threading.Condition()
        self.due_s: float | None = None
        """When the sleeper wakes."""

    def now_s(self) -> float:
        return self._now_s

    def sleep_s(self, seconds: float) -> None:
        with self._moved:
            self.due_s = self._now_s + seconds
            self._moved.notify_all()
            self._moved.wait_for(lambda: self._now_s >= (self.due_s or 0.0) - 1e-9, 20.0)
            self.due_s = None

    def move(self, seconds: float) -> None:
        """Move on, in the steps of whoever sleeps."""
        end_s = self._now_s + seconds
        while True:
            with self._moved:
                assert self._moved.wait_for(lambda: self.due_s is not None and self.due_s > self._now_s + 1e-9, 10.0)
                if self.due_s > end_s + 1e-9:
                    self._now_s = end_s
                    return
                self._now_s = self.due_s
                self._moved.notify_all()

    def end(self) -> None:
        """Let the sleeper go."""
        with self._moved:
            self._now_s += 1e6
            self._moved.notify_all()


class FakeSensor:
    """5 W, and 1 W more for each second; looks that are ``broken`` fail; a look may take time."""

    total_power = "VDD_IN"

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.broken: BaseException | None = None
        self.looks = 0
        self.takes_s = 0.0

    def read(self) -> SensorSample:
        self.looks += 1
        if self.broken is not None:
            raise self.broken
        at_s = self.clock.now_s()
        self.clock._now_s += self.takes_s
        return SensorSample(at_s, 5.0 + at_s, throttle_events=0)


@contextmanager
def sampling(hz: float = 10.0, keep_s: float = 3600.0) -> Iterator[tuple[Sampler, FakeSensor, HandClock]]:
    clock = HandClock()
    sensor = FakeSensor(clock)
    sampler = Sampler(sensor, clock, hz, keep_s)
    with sampler:
        wait_for(lambda: clock.due_s is not None)
        try:
            yield sampler, sensor, clock
        finally:
            sampler._stop.set()
            clock.end()


def times_kept(sampler: Sampler) -> list[float]:
    return [sample.at_s for sample in sampler._samples]


def test_a_window_has_the_energy_between_two_times():
    with sampling() as (sampler, _, clock):
        clock.move(3.0)

        energy = sampler.energy_between(1.0, 2.0)

    assert energy.energy_j == pytest.approx(6.5)
    assert (energy.samples, energy.gaps, energy.total_power) == (11, 0, "VDD_IN")


def test_looks_do_not_drift_when_each_takes_a_while():
    with sampling() as (sampler, sensor, clock):
        sensor.takes_s = 0.03
        clock.move(5.0)
        times = times_kept(sampler)

    assert len(times) in {50, 51}
    assert times == pytest.approx([i / 10 for i in range(len(times))], abs=1e-6)


def test_looks_that_were_missed_are_left_out_and_the_pace_is_kept():
    with sampling() as (sampler, sensor, clock):
        sensor.takes_s = 0.25
        clock.move(3.0)
        times = times_kept(sampler)[1:]

    assert all(b - a == pytest.approx(0.3) for a, b in pairwise(times))


@given(st.integers(0, 10_000), st.floats(0, 2_000), st.sampled_from([1.0, 0.1, 0.05]))
def test_the_next_look_lies_ahead_and_after_the_last(tick, elapsed_s, period_s):
    found = next_tick(tick, elapsed_s, period_s)

    assert found > tick
    assert found * period_s >= elapsed_s - 1e-6
    assert found == tick + 1 or (found - 1) * period_s < elapsed_s


def test_a_window_waits_for_a_sample_past_its_end():
    with sampling() as (sampler, _, clock):
        found = []
        asking = threading.Thread(target=lambda: found.append(sampler.energy_between(0.0, 1.05)))
        asking.start()
        clock.move(1.0)
        assert not found
        clock.move(0.2)
        asking.join(10.0)

    assert found[0].energy_j == pytest.approx(5 * 1.05 + 1.05**2 / 2)


def test_the_wait_for_a_sample_is_bounded():
    with sampling() as (sampler, _, clock):
        clock.move(1.0)

        energy = sampler.energy_between(0.5, 1.02)  # the clock stands still

    assert energy.samples == 6


def test_a_sensor_that_is_lost_in_a_window_and_stays_away_makes_no_energy_of_what_it_saw_before():
    with sampling() as (sampler, sensor, clock):
        clock.move(1.0)
        sensor.broken = OSError("bus stuck")
        clock.move(1.0)

        assert sampler.energy_between(0.5, 1.25).samples == 6
        with pytest.raises(SensorLost, match=r"no power sample from 1\.000 to 1\.900 s: bus stuck"):
            sampler.energy_between(0.5, 1.9)
        sensor.broken = None
        clock.move(1.0)
        assert sampler.energy_between(0.5, 1.9).gaps == 1


def test_a_failing_sensor_is_a_gap_and_is_tried_again():
    with sampling() as (sampler, sensor, clock):
        clock.move(1.0)
        sensor.broken = OSError("bus stuck")
        clock.move(1.0)
        looks = sensor.looks
        sensor.broken = None
        clock.move(1.0)
        energy = sampler.energy_between(0.5, 2.5)

    assert looks >= 20
    assert energy.gaps == 1
    assert energy.longest_gap_s == pytest.approx(1.1)


def test_the_sensors_error_is_raised_where_no_sample_covers_the_window():
    with sampling() as (sampler, sensor, clock):
        clock.move(1.0)
        sensor.broken = SensorLost("VDD_IN is gone; look at dmesg")
        clock.move(3.0)
        with pytest.raises(
            SensorLost, match=r"no power sample from 2\.000 to 3\.000 s: VDD_IN is gone; look at"
        ) as now:
            sampler.energy_between(2.0, 3.0)
        sensor.broken = None
        clock.move(2.0)
        with pytest.raises(SensorLost, match="VDD_IN is gone"):
            sampler.energy_between(2.0, 3.0)

    assert isinstance(now.value.__cause__, SensorLost)


def test_mode_changes_and_throttling_mark_their_windows():
    with sampling() as (sampler, _, clock):
        clock.move(1.0)
        sampler.record_mode_change()
        clock.move(1.0)
        sampler.record_mode_change(1.75)
        marked, unmarked = sampler.energy_between(0.5, 1.9), sampler.energy_between(1.1, 1.6)

    assert (marked.mode_changes, unmarked.mode_changes) == (2, 0)
    assert not marked.throttled


def test_only_the_newest_samples_are_kept():
    with sampling(keep_s=2.0) as (sampler, _, clock):
        clock.move(10.0)
        kept = times_kept(sampler)
        old = sampler.energy_between(5.0, 9.0)

    assert len(kept) == 20
    assert old.gaps == 1


def test_a_followed_period_has_its_energy_however_few_samples_are_kept():
    with sampling(keep_s=2.0) as (sampler, sensor, clock):
        clock.move(0.55)
        sampler.follow(0.55)
        clock.move(4.0)
        sampler.record_mode_change()
        sensor.broken = OSError("bus stuck")
        clock.move(0.7)
        sensor.broken = None
        clock.move(14.75)
        early, energy = sampler.energy_between(0.55, 18.35), sampler.energy_between(0.55, 19.95)

    assert len(times_kept(sampler)) == 20
    assert energy.energy_j == pytest.approx(19.4 * (5.0 + 10.25))
    assert (energy.gaps, energy.mode_changes) == (1, 1)
    assert energy.unseen_s == pytest.approx(0.8)
    assert early.energy_j == pytest.approx(17.8 * (5.0 + 9.45))


def test_a_sample_that_comes_again_is_kept_once_and_a_slow_sensor_sets_the_period():
    class Slow(FakeSensor):
        interval_s = 0.5

        def read(self) -> SensorSample:
            at_s = self.clock.now_s() // 0.5 * 0.5
            return SensorSample(at_s, 5.0)

    clock = HandClock()
    with Sampler(Slow(clock), clock) as sampler:
        clock.move(5.0)
        energy = sampler.energy_between(1.0, 4.0)
        sampler._stop.set()
        clock.end()

    assert (energy.samples, energy.gaps) == (7, 0)


@pytest.mark.parametrize("hz", [0.5, 21.0, float("nan")])
def test_a_rate_out_of_range_is_refused(hz):
    clock = HandClock()
    with pytest.raises(BadInput, match="1 to 20 Hz"):
        Sampler(FakeSensor(clock), clock, hz)


def test_the_thread_ends_with_the_context_and_no_sampler_is_used_twice():
    clock: Clock = RealClock()

    class Real:
        total_power = "VDD_IN"

        def read(self) -> SensorSample:
            return SensorSample(clock.now_s(), 5.0)

    with Sampler(Real(), clock, 20.0) as sampler:
        start_s = clock.now_s()
        assert sampler.energy_between(start_s, start_s + 0.2).mean_w == pytest.approx(5.0)
    assert not sampler._thread.is_alive()
    assert sampler.energy_between(start_s, start_s + 0.2).samples >= 3
    with pytest.raises(RuntimeError, match="entered already"), sampler:
        pass
