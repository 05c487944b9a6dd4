"""What a real board's sensors saw of a round: measured parts where the report books them, gaps where none looked."""

from collections.abc import Callable, Sequence

import pytest
from contracts.rounds import LOW, MAXN, WORK, ExactDevice

from fedge.client.round_trace import RoundPhase
from fedge.client.tracing_device import TracingDevice
from fedge.clock import SimulatedClock
from fedge.devices.sensing.sampler import Sampler
from fedge.telemetry.trace_operations import MOST_STRETCHES, check_trace
from fedge.types import Measurement, SensorSample, Workload

PERIOD_S, STEP_S = 0.1, 1.0
FETCHING, SENDING = RoundPhase(0.5, 3.0, LOW, is_working=False), RoundPhase(1.5, 3.0, LOW, is_working=False)


class Slow(ExactDevice):
    """Takes a second for each minibatch on the clock, and half a second of something else after the work."""

    def __init__(self, clock: SimulatedClock, warm_up: float = 0.0) -> None:
        super().__init__(warm_up)
        self._clock = clock

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        def one_after_the_other(count: int) -> None:
            for _ in range(count):
                work(1)

        measured = super().measure(workload, steps, one_after_the_other, limit_s)
        self._clock.sleep_s(0.5)
        return measured


class Seen:
    """Ten samples a second, kept an hour: 10 W, more by 0.1 W each second; none from ``blind_s`` to ``sees_s``."""

    def __init__(self, clock: SimulatedClock, blind_s: float = 1e9, sees_s: float = 1e9) -> None:
        self._clock, self._blind = clock, (blind_s, sees_s)

    def __call__(self, start_s: float, end_s: float) -> Sequence[SensorSample]:
        last = int(min(end_s + 1.0, self._clock.now_s()) / PERIOD_S)
        first = int(max(start_s, self._clock.now_s() - 3600.0) / PERIOD_S)
        times = [k * PERIOD_S for k in range(first, last + 1)]
        return [
            SensorSample(t, 10 + t / 10, {"GPU": 4.0}, {"gpu": 40.0, "cpu": 38.0}, 0.9, 1400.0, 900.0)
            for t in times
            if not self._blind[0] <= t < self._blind[1]
        ]


def watching(
    blind_s: float = 1e9, sees_s: float = 1e9, lost_s: float = 0.0
) -> tuple[TracingDevice, Callable[[int], object]]:
    """The device of a round whose earlier attempts took the ``lost_s`` seconds before 100 s."""
    clock = SimulatedClock(100.0 - lost_s)

    def work(count: int) -> None:
        clock.sleep_s(count * STEP_S)

    clock.sleep_s(lost_s)
    return TracingDevice(Slow(clock), Seen(clock, blind_s, sees_s), clock, PERIOD_S, lost_s=lost_s), work


def test_every_part_stands_where_the_report_books_it_and_what_is_between_them_is_left_out():
    device, work = watching()
    with device.use_mode(MAXN):
        parts = [device.measure(WORK, steps, work) for steps in (3, 2)]
    trace = check_trace(device.build_trace(FETCHING, SENDING))

    assert [part.work_s for part in parts] == [3.0, 2.0]
    assert trace.start_s == pytest.approx((0.0, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5))
    # The second part began at 103.5 s of the board's clock: half a second after the first one's end.
    assert trace.power_w == pytest.approx((3.0, 20.05, 20.15, 20.25, 20.4, 20.5, 3.0))
    assert trace.energy_j == pytest.approx(0.5 * 3.0 + 60.45 + 40.9 + 1.5 * 3.0)
    assert trace.temperature_c == (None, *[40.0] * 5, None)
    assert (trace.gpu_load[1], trace.cpu_load[1], trace.gpu_mhz[1], trace.mem_mhz[1]) == pytest.approx(
        (0.9, None, 900.0, None)
    )
    assert trace.rails_w["GPU"] == (None, *[pytest.approx(4.0)] * 5, None)


def test_tries_that_ran_out_of_memory_are_the_works_first_part_as_the_report_books_them():
    device, work = watching(lost_s=2.0)
    with device.use_mode(MAXN):
        device.measure(WORK, 1, work)
    trace = check_trace(device.build_trace(FETCHING, SENDING))

    assert trace.start_s == pytest.approx((0.0, 0.5, 1.5, 2.5, 3.5))
    assert trace.power_w == pytest.approx((3.0, 19.85, 19.95, 20.05, 3.0))


def test_a_lost_sensor_is_a_gap_and_no_error():
    device, work = watching(blind_s=101.0, sees_s=102.0)
    with device.use_mode(MAXN):
        device.measure(WORK, 5, work)
    trace = check_trace(device.build_trace())

    assert sum(trace.span_s) == pytest.approx(5.0 - 1.1)
    assert all(end <= 0.9 + 1e-9 or start >= 2.0 - 1e-9 for start, end in _ends(trace.start_s, trace.span_s))


def test_of_work_that_was_broken_off_what_was_seen_is_kept():
    device, work = watching()

    def broken(count: int) -> None:
        work(2 * count)
        raise RuntimeError("its time was over")

    with device.use_mode(MAXN), pytest.raises(RuntimeError):
        device.measure(WORK, 1, broken)

    assert sum(device.build_trace().span_s) == pytest.approx(2.0)
    assert device.build_trace().energy_j == pytest.approx(2.0 * 20.1)


def test_a_long_round_is_told_in_longer_stretches():
    device, work = watching()
    with device.use_mode(MAXN):
        device.measure(WORK, MOST_STRETCHES + 50, work)
    trace = device.build_trace()

    assert MOST_STRETCHES / 2 - 50 < len(trace) <= MOST_STRETCHES
    assert sum(trace.span_s) == pytest.approx(MOST_STRETCHES + 50)


def test_what_it_passes_on_is_the_devices_own():
    device, _ = watching()

    assert (device.spec.name, device.idle_w(LOW)) == ("nano", 2.0)


def test_a_sampler_gives_the_samples_of_a_window_and_the_nearest_around_it():
    clock = SimulatedClock()

    class Sensor:
        total_power = "VDD_IN"

        def read(self) -> SensorSample:
            return SensorSample(clock.now_s(), 5.0)

    sampler = Sampler(Sensor(), clock)
    assert sampler.samples_between(0.0, 1.0) == ()
    for _ in range(5):
        sampler._take_sample()
        clock.sleep_s(1.0)

    assert [sample.at_s for sample in sampler.samples_between(1.5, 2.5)] == [1.0, 2.0, 3.0]
    assert [sample.at_s for sample in sampler.samples_between(2.0, 2.0)] == [1.0, 2.0, 3.0]
    assert [sample.at_s for sample in sampler.samples_between(3.5, 99.0)] == [3.0, 4.0]
    assert [sample.at_s for sample in sampler.samples_between(-1.0, 9.0)] == [0.0, 1.0, 2.0, 3.0, 4.0]


def _ends(starts: Sequence[float], spans: Sequence[float]) -> list[tuple[float, float]]:
    return [(start, start + span) for start, span in zip(starts, spans, strict=True)]
