"""What a real board's sensors saw of a round: measured parts where the report books them, gaps where none looked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.desk import Desk, desk
from contracts.rounds import LOW, MAXN, WORK, ExactDevice

from fedge.client import real
from fedge.client.round_trace import RoundPhase
from fedge.client.tracing_device import SERVICE_PREFIX, TracingDevice
from fedge.devices.jetson_board import IdlePowerStore
from fedge.devices.local_board import name_meter, open_local_board
from fedge.devices.sensing.sampler import Sampler
from fedge.experiment import Experiment
from fedge.modes import build_grid
from fedge.protocols import SimulatedClock
from fedge.serving.standing_service import latency_percentile_s
from fedge.telemetry.trace_operations import MOST_STRETCHES, check_trace
from fedge.types import Measurement, RoundGoal, SensorSample, Workload
from fedge.wire import ReplyMessage, RequestMessage, from_json, to_json
from fedge.worker.worker_client import WorkerClient as Worker
from fedge.workloads import load_task

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
    """Samples ten times a second: 10 W, more by 0.1 W each second; none from ``blind_s`` to ``sees_s``."""

    def __init__(self, clock: SimulatedClock, blind_s: float = 1e9, sees_s: float = 1e9) -> None:
        self._clock, self._blind = clock, (blind_s, sees_s)

    def __call__(self, start_s: float, end_s: float) -> Sequence[SensorSample]:
        last = int(min(end_s + 1.0, self._clock.now_s()) / PERIOD_S)
        times = [k * PERIOD_S for k in range(int(start_s / PERIOD_S), last + 1)]
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


def test_every_part_stands_where_the_report_books_it_and_what_is_between_them_is_left_out() -> None:
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


def test_tries_that_ran_out_of_memory_are_the_works_first_part_as_the_report_books_them() -> None:
    device, work = watching(lost_s=2.0)
    with device.use_mode(MAXN):
        device.measure(WORK, 1, work)
    trace = check_trace(device.build_trace(FETCHING, SENDING))

    assert trace.start_s == pytest.approx((0.0, 0.5, 1.5, 2.5, 3.5))
    assert trace.power_w == pytest.approx((3.0, 19.85, 19.95, 20.05, 3.0))


def test_a_lost_sensor_is_a_gap_and_no_error() -> None:
    device, work = watching(blind_s=101.0, sees_s=102.0)
    with device.use_mode(MAXN):
        device.measure(WORK, 5, work)
    trace = check_trace(device.build_trace())

    assert sum(trace.span_s) == pytest.approx(5.0 - 1.1)
    assert all(end <= 0.9 + 1e-9 or start >= 2.0 - 1e-9 for start, end in _ends(trace.start_s, trace.span_s))


def test_of_work_that_was_broken_off_what_was_seen_is_kept() -> None:
    device, work = watching()

    def broken(count: int) -> None:
        work(2 * count)
        raise RuntimeError("its time was over")

    with device.use_mode(MAXN), pytest.raises(RuntimeError):
        device.measure(WORK, 1, broken)

    assert sum(device.build_trace().span_s) == pytest.approx(2.0)
    assert device.build_trace().energy_j == pytest.approx(2.0 * 20.1)


def test_a_long_round_is_told_in_longer_stretches() -> None:
    device, work = watching()
    with device.use_mode(MAXN):
        device.measure(WORK, MOST_STRETCHES + 50, work)
    trace = device.build_trace()

    assert MOST_STRETCHES / 2 - 50 < len(trace) <= MOST_STRETCHES
    assert sum(trace.span_s) == pytest.approx(MOST_STRETCHES + 50)


def test_what_it_passes_on_is_the_devices_own() -> None:
    device, _ = watching()

    assert (device.spec.name, device.idle_w(LOW)) == ("nano", 2.0)


def test_a_sampler_gives_the_samples_of_a_window_and_the_nearest_around_it() -> None:
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


pytest.importorskip("torch", reason="the worker trains with torch")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("desk")]

SERVING = {"cost": "mobilenetv3l-gld23k", "rate_hz": 20, "latency_s": 3.0, "batch_sizes": [1, 4]}
EXPERIMENT = Experiment.model_validate(
    {
        "fleet": [{"device": "orin-nano", "name": "board", "serving": SERVING}],
        "workload": {"task": "digits-cnn", "local_epochs": 6},
        "exploration": {"share": 0.0},
        "seed": 3,
    }
)
IDLE_W = 3.0
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk("orin-nano-jp6", tmp_path_factory.mktemp("desk")) as found:
        with open_local_board(found.settings.place) as here:
            book = IdlePowerStore(
                found.settings.state_dir / "idle.json", name_meter(here.sensor, found.settings.sensor)
            )
            for mode in (here.board.spec.maxn, *build_grid(here.board.spec)):
                book._watts[str(mode)] = IDLE_W
            book.record(here.board.spec.maxn, IDLE_W)
        yield found


def services(found: Desk) -> dict[str, Any]:
    with closing(Worker(found.settings.worker_socket)) as worker:
        return dict(worker.status().get("services") or {})


def round_of(found: Desk, number: int, earlier: ReplyMessage | None = None) -> ReplyMessage:
    arrays = load_task("digits-cnn").initial_arrays(3)
    state = {} if earlier is None or earlier.state is None else {"state": earlier.state}
    ask = RequestMessage(
        "train", round=number, policy="maxn", goal=RoundGoal("maxn", 50), model_bytes=24_000, run="a", **state
    )
    answer, _ = real.answer_request(EXPERIMENT, found.settings, ask, arrays)
    assert answer.error is None, answer.error
    return answer


@pytest.fixture(scope="module")
def played(board: Desk) -> tuple[ReplyMessage, ReplyMessage, ReplyMessage]:
    """A front, and two rounds one after the other."""
    front = real.answer_request(EXPERIMENT, board.settings, RequestMessage("front", policy="maxn", run="a"), None)[0]
    assert front.error is None, front.error
    first = round_of(board, 1)
    return front, first, round_of(board, 2, first)


def test_a_round_tells_what_the_service_did_during_its_minibatches(
    played: tuple[ReplyMessage, ReplyMessage, ReplyMessage],
) -> None:
    for answer in played[1:]:
        assert answer.report is not None
        part = answer.report.measured
        use = part.service
        assert use is not None
        assert 0.3 * SERVING["rate_hz"] <= use.requests / part.work_s <= 3 * SERVING["rate_hz"]  # type: ignore[operator]
        assert use.batches >= use.requests / 4
        assert 0.0 < use.share < 1.0
        worst_s = latency_percentile_s(use, 99.0)
        assert worst_s is not None
        assert worst_s <= 3.0
        assert use.late == 0
        assert from_json(ReplyMessage, to_json(answer)) == answer


def test_waiting_and_the_front_account_for_the_service(played: tuple[ReplyMessage, ReplyMessage, ReplyMessage]) -> None:
    front, _, second = played
    assert front.front is not None
    assert second.front is not None
    assert front.front.idle_w > IDLE_W
    # Of a crowded machine: the order of magnitude, no more.
    assert 0.2 < second.front.maxn.work_s / second.report.work_s < 5.0  # type: ignore[union-attr]


def test_the_service_goes_on_between_rounds_and_ends_with_the_run(
    board: Desk, played: tuple[ReplyMessage, ReplyMessage, ReplyMessage]
) -> None:
    (name, told), *others = services(board).items()
    assert name.startswith(SERVICE_PREFIX)
    assert not others
    until_s = time.monotonic() + LIMIT_S
    while services(board)[name]["served"] < told["served"] + 5:
        assert time.monotonic() < until_s, "it does not serve while nobody trains"
        time.sleep(0.05)

    real.answer_request(EXPERIMENT, board.settings, RequestMessage("bye", run="a"), None)

    assert services(board) == {}
    np.testing.assert_equal(len(played), 3)


def test_another_service_takes_the_place_of_the_one_before(board: Desk, tmp_path: Path) -> None:
    round_of(board, 1)
    (before,) = services(board)
    faster = EXPERIMENT.model_copy(
        update={
            "fleet": tuple(
                entry.model_copy(update={"serving": entry.serving.model_copy(update={"rate_hz": 40.0})})
                for entry in EXPERIMENT.fleet
                if entry.serving
            )
        }
    )
    ask = RequestMessage("train", round=1, policy="maxn", goal=RoundGoal("maxn", 50), model_bytes=24_000, run="b")
    real.answer_request(EXPERIMENT, board.settings, RequestMessage("bye", run="a"), None)

    answer, _ = real.answer_request(faster, board.settings, ask, load_task("digits-cnn").initial_arrays(3))

    assert answer.error is None, answer.error
    (after,) = services(board)
    assert after != before
    real.answer_request(faster, board.settings, RequestMessage("bye", run="b"), None)
