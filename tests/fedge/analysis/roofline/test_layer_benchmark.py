"""Every kind of layer is run, waited for and counted as networks are priced; on a GPU by the same functions."""

import itertools
import time

import pytest

torch = pytest.importorskip("torch")

from fedge.analysis.roofline.kernel_timing import FEWEST, KernelTimer  # noqa: E402 - torch first
from fedge.analysis.roofline.layer_benchmark import (  # noqa: E402
    LAYER_BATCHES,
    OPTIMISERS,
    UPDATED_WEIGHTS,
    LayerPoint,
    measure_layers,
)
from fedge.analysis.roofline.microbenchmark import open_timer  # noqa: E402

KINDS = {
    "convolution 3x3", "convolution 1x1", "grouped convolution", "depthwise convolution", "linear", "attention", "LSTM",
    "GRU", "batch norm", "layer norm", "embedding", "ReLU", "GELU",
}  # fmt: skip


@pytest.fixture(scope="module")
def waits() -> list[int]:
    return []


@pytest.fixture(scope="module")
def points(waits: list[int]) -> tuple[LayerPoint, ...]:
    """Measure with a clock that advances by a second per look, so that nothing depends on this machine's speed."""
    clock = itertools.count()
    timer = KernelTimer(lambda: float(next(clock)), lambda: None, lambda: waits.append(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LAYER_BATCHES, "cpu", (1, 2))
        return measure_layers(timer, "cpu", 1e-9)


def find(points: tuple[LayerPoint, ...], kind: str, step: str, batch_size: int = 1) -> LayerPoint:
    return next(one for one in points if (one.kind, one.step, one.batch_size) == (kind, step, batch_size))


def test_every_kind_is_measured_forward_and_in_training_at_both_sizes(points):
    layers = {(one.kind, one.step, one.batch_size) for one in points if one.step != "update"}
    assert layers == set(itertools.product(KINDS, ("infer", "train"), (1, 2)))
    assert [one.kind for one in points if one.step == "update"] == list(OPTIMISERS)


def test_the_device_is_waited_for_after_the_warm_up_and_every_repeat(points, waits):
    assert len(waits) == (FEWEST + 1) * len(points)


def test_work_is_counted_as_networks_are_priced(points):
    dense = find(points, "convolution 3x3", "infer")
    assert dense.flop == pytest.approx(2 * 128 * 128 * 9 * 28 * 28, rel=0.01)
    assert find(points, "convolution 3x3", "train").flop == 3 * dense.flop
    assert find(points, "convolution 3x3", "infer", 2).flop == 2 * dense.flop
    assert find(points, "grouped convolution", "infer").flop == pytest.approx(dense.flop / 8, rel=0.01)
    assert find(points, "depthwise convolution", "infer").flop == pytest.approx(dense.flop / 128, rel=0.15)
    assert find(points, "SGD", "update").bytes == 5 * 4 * UPDATED_WEIGHTS
    assert all(one.bytes > 0 for one in points)


def test_a_rate_is_work_over_time(points):
    one = find(points, "linear", "infer")
    assert one.gflop_per_s == pytest.approx(1e-9 * one.flop / one.seconds)
    assert one.gb_per_s == pytest.approx(1e-9 * one.bytes / one.seconds)


@pytest.mark.gpu
def test_every_kind_is_measured_on_a_gpu():
    points = measure_layers(open_timer("cuda", time.perf_counter, lambda: None), "cuda", 2.0)
    assert {one.kind for one in points} == KINDS | OPTIMISERS.keys()
