"""An emulated bench keeps to the device contract, and its noise in a mode depends on the seed and the mode alone."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.device import WORK, DeviceContract

from fedge.characterisation.mode_measurement import build_emulated_bench, measure_mode
from fedge.characterisation.stability import StabilityRule
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.errors import BadInput, ModeNotSet, UnknownName
from fedge.protocols import Device
from fedge.types import PowerMode

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


def test_candidates_keep_the_board_reachable():
    knobs = bench().candidates.knobs

    assert knobs[:, 0].min() >= 2
    assert knobs[:, 1].min() >= 400.0


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
