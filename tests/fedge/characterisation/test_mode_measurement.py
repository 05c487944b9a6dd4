"""One mode is measured in chunks until it has settled, within a limit, and once more if it throttled."""

import dataclasses
import itertools

import numpy as np
import pytest
from contracts.device import WORK, DeviceContract
from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.mode_measurement import (
    BLIND_REST_S,
    MAX_REST_S,
    REST_S,
    build_emulated_bench,
    count_chunk_steps,
    measure_mode,
)
from fedge.characterisation.stability import StabilityRule
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.errors import BadInput, ModeNotSet, SensorLost, UnknownName
from fedge.protocols import Device
from fedge.types import Measurement, PowerMode

RULE = StabilityRule()
MODE = PowerMode(4, 921.6, 307.2, 1600.0)
TRUE_S = 300.0 / 307.2 / 10


def tenth(seen: Measurement) -> Measurement:
    return dataclasses.replace(seen, step_s=seen.step_s / 10)


def noisy(seen: Measurement, count=itertools.count()) -> Measurement:  # noqa: B008 -- every call differs on purpose
    return dataclasses.replace(seen, step_s=seen.step_s * (2.0 if next(count) % 3 else 0.5))


def hot(times: int):
    """Throttles in the first ``times`` chunks."""
    count = itertools.count()
    return lambda seen: dataclasses.replace(tenth(seen), throttled=next(count) < times)


def test_a_steady_board_is_left_as_soon_as_it_has_settled(fake):
    board, bench = fake(change=tenth)

    seen = measure_mode(bench, MODE, RULE)

    assert seen.verdict.settled
    assert seen.verdict.step_s == pytest.approx(TRUE_S)
    assert seen.note == ""
    assert board.chunks == [1] + [round(1 / TRUE_S)] * RULE.least_chunks
    assert board.visits == [MODE]
    assert seen.seconds == pytest.approx(board.clock.now_s(), abs=1e-3)
    assert seen.joules == pytest.approx(5.0 * board.clock.now_s(), abs=1e-2)


def test_a_board_that_never_settles_is_left_at_the_limit_and_marked(fake):
    board, bench = fake(change=noisy)

    seen = measure_mode(bench, MODE, RULE)

    assert not seen.verdict.settled
    assert seen.note.startswith("not settled: ")
    assert RULE.limit_s <= board.clock.now_s() < RULE.limit_s + 10
    assert seen.as_measurement().step_s > 0


def test_a_throttled_board_rests_until_it_is_cooler_and_is_measured_once_more(fake):
    board, bench = fake(change=hot(1), temperature_c=97.0)

    seen = measure_mode(bench, MODE, RULE)

    assert board.visits == [MODE, MODE]
    assert board.rested_s == [REST_S] * 5, "3 degrees each, until 15 degrees cooler"
    assert not seen.throttled
    assert seen.verdict.settled
    assert seen.note == "measured again after it had throttled"
    assert seen.joules == pytest.approx(5.0 * (board.clock.now_s() - 50.0) + 1.5 * 50.0, abs=1e-2)


def test_a_board_that_throttles_again_is_kept_with_a_note(fake):
    board, bench = fake(change=hot(1000), temperature_c=97.0)

    seen = measure_mode(bench, MODE, RULE)

    assert len(board.visits) == 2
    assert seen.throttled
    assert not seen.verdict.settled
    assert seen.note == "not settled: it throttled; throttled, again after cooling"
    assert seen.as_measurement().throttled


def test_a_rest_has_a_limit(fake):
    board, bench = fake(change=hot(1), temperature_c=97.0)
    bench = dataclasses.replace(bench, temperature_c=lambda: 97.0)

    measure_mode(bench, MODE, RULE)

    assert sum(board.rested_s) == MAX_REST_S


@pytest.mark.parametrize(("temperature_c", "rests"), [(None, [BLIND_REST_S]), (60.0, [REST_S])])
def test_a_board_without_a_sensor_or_without_heat_rests_for_a_fixed_time(fake, temperature_c, rests):
    board, bench = fake(change=hot(1), temperature_c=temperature_c)

    measure_mode(bench, MODE, RULE)

    assert board.rested_s == rests


def test_a_lost_sensor_ends_the_mode_and_the_mode_before_is_set_again(fake):
    def lost(seen):
        raise SensorLost("no rail")

    board, bench = fake(change=lost)

    with pytest.raises(SensorLost):
        measure_mode(bench, MODE, RULE)
    assert board.mode != MODE


def test_the_work_is_prepared_before_every_attempt_while_nothing_is_metered(fake):
    board, bench = fake(change=hot(1), temperature_c=97.0)
    prepared = []
    bench = dataclasses.replace(bench, prepare=lambda: prepared.append((board.mode, len(board.visits))))

    measure_mode(bench, MODE, RULE)

    assert prepared == [(bench.device.spec.maxn, 0), (bench.device.spec.maxn, 1)]


@given(st.floats(1e-6, 1e4))
def test_a_chunk_is_about_a_second_or_one_minibatch(step_s):
    steps = count_chunk_steps(step_s, RULE)

    assert 1 <= steps <= 10_000
    assert steps * step_s <= 1.5 * RULE.chunk_s or steps == 1


SPEC = build_emulated_bench("orin-nano", "resnet18-imagenet").device.spec
LOW = PowerMode(2, SPEC.cpu_mhz[10], SPEC.gpu_mhz[0], SPEC.mem_mhz[0])


class TestBenchBoard(DeviceContract):
    modes = (SPEC.maxn, LOW)

    @pytest.fixture
    def device(self) -> Device:
        return build_emulated_bench("orin-nano", "resnet18-imagenet").device


def bench(seed: int = 0, temperature_c: float | None = None, ambient_c: float = 25.0):
    return build_emulated_bench("orin-nano", "resnet18-imagenet", None, seed, temperature_c, ambient_c)


def test_a_mode_measures_the_same_whatever_was_measured_before():
    before = bench()
    measure_mode(before, SPEC.maxn, StabilityRule())
    fresh = bench(temperature_c=before.temperature_c())

    assert measure_mode(before, LOW, StabilityRule()) == measure_mode(fresh, LOW, StabilityRule())


def test_a_second_visit_and_another_seed_see_other_noise():
    same = bench()
    first, second = measure_mode(same, LOW, StabilityRule()), measure_mode(same, LOW, StabilityRule())

    assert first.verdict.step_s != second.verdict.step_s
    assert measure_mode(bench(seed=1), LOW, StabilityRule()).verdict.step_s != first.verdict.step_s


def test_work_heats_rest_cools_and_both_take_time():
    one = bench()
    with one.device.use_mode(SPEC.maxn):
        seen = one.device.measure(WORK, 500, one.work)
    warm_c = one.temperature_c()
    one.idle_for(100.0)

    assert 25.0 < one.temperature_c() < warm_c
    assert one.clock.now_s() == pytest.approx(seen.work_s + 100.0)


def test_a_board_in_hot_air_throttles_and_is_measured_once_more():
    seen = measure_mode(bench(ambient_c=82.0, temperature_c=96.9), SPEC.maxn, StabilityRule())

    assert seen.attempts == 2


def test_settled_measurements_lie_near_the_truth():
    one = bench()
    seen = measure_mode(one, LOW, StabilityRule())
    row = one.device.surface.find_row(LOW)

    assert seen.verdict.step_s == pytest.approx(one.device.surface.step_s[row], rel=0.03)
    assert seen.verdict.power_w == pytest.approx(one.device.surface.power_w[row], rel=0.03)


def test_a_mode_that_the_board_lacks_is_not_set():
    with pytest.raises(ModeNotSet), bench().device.use_mode(PowerMode(99, 1.0, 1.0, 1.0)):
        pass


def test_unknown_names_and_batch_sizes_are_refused():
    with pytest.raises(UnknownName, match="--board"):
        build_emulated_bench("nosuch", "resnet18-imagenet")
    with pytest.raises(BadInput, match="--workload"):
        build_emulated_bench("nano", "nosuch")
    with pytest.raises(BadInput, match="--batch-size: got 0; a whole number above 0"):
        build_emulated_bench("nano", "resnet18-imagenet", 0)


@pytest.mark.parametrize(
    ("device", "workload", "options", "label"),
    [
        ("orin-nano", "resnet18-imagenet", {"batch_size": 64}, "estimated"),
        ("orin-nano", "resnet50", {"batch_size": 8}, "estimated"),
        ("orin-nano", "resnet50", {"batch_size": 8, "kind": "infer"}, "estimated"),
        ("agx-orin", "mobilenetv3l-gld23k", {"batch_size": 16, "kind": "infer"}, "calibrated"),
    ],
)
def test_any_network_that_the_layers_can_price_has_a_bench(device, workload, options, label):
    whole = build_emulated_bench(device, workload, **options)
    usual = build_emulated_bench(device, "resnet18-imagenet")

    assert (whole.label, whole.workload.batch_size) == (label, options["batch_size"])
    assert whole.workload.kind == options.get("kind", "train")
    assert (whole.device.surface.step_s != usual.device.surface.step_s).all()
    assert whole.knowledge.priors


def test_inference_is_shorter_than_training_of_the_same_batch():
    train, infer = (build_emulated_bench("orin-nano", "resnet50", 8, kind=kind) for kind in ("train", "infer"))

    usable = mask_above_floor(train.device.surface.modes)
    ratio = (infer.device.surface.step_s / train.device.surface.step_s)[usable]
    assert np.median(ratio) < 0.5
    assert (ratio < 1).mean() > 0.95  # each has a deviation of its own
