"""The terms of memory and time and the 56 features are what they say, and grow with the batch.

Memory and time models, and the robust fit of relative errors behind them.
"""

import numpy as np
import pytest
from contracts.measured_steps import layers_at
from hypothesis import given
from hypothesis import strategies as st

from fedge.costs.memory.step_model import (
    FEATURE_COUNT,
    MEGABYTES,
    MEMORY_PRIOR,
    MEMORY_TERMS,
    OWN_TIME_TERMS,
    TIME_TERMS,
    TimeModel,
    balance_weights,
    compute_features,
    compute_memory_terms,
    compute_own_time_terms,
    compute_time_terms,
    fit_memory_model,
    fit_relative,
    fit_time_model,
)
from fedge.types import Floats

LAYER = np.array([[4.0, 8.0, 3.0, 1.0, 2.0, 2.0, 8.0]])  # n 4, m 8, k 3, p 1, s 2, g 2, i 8: o 4, n_e 2


@st.composite
def networks(draw: st.DrawFn) -> Floats:
    sizes = st.integers(1, 64)
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        groups, kernel = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 3, 5, 7]))
        layer = [groups * draw(sizes), groups * draw(sizes), kernel, kernel // 2, draw(st.sampled_from([1, 2]))]
        layers.append([*layer, groups, draw(st.integers(kernel, 64))])
    return np.array(layers, dtype=np.float64)


def test_a_layer_by_hand():
    b, n, m, k, i, o, e = 2.0, 4.0, 8.0, 3.0, 8.0, 4.0, 2.0
    found = compute_features(LAYER, np.array([b]))[0]
    assert found.shape == (FEATURE_COUNT,)
    weights = m * e * k**2
    assert found[:5] == pytest.approx([
        weights, b * weights, 2 * b * n * i**2, 2 * b * m * o**2,
        weights + b * weights + 2 * b * n * i**2 + 2 * b * m * o**2,
    ])  # fmt: skip
    assert found[5] == b * o**2
    assert found[10] == pytest.approx(b * o**2 * k**2 * n + b * i**2 * k**2 * n + b * o**2 * k**2 * e)
    assert found[12:15] == pytest.approx([
        b * m * o**2 * k**2 * e, b * n * i**2 * k**2 * m, 2 * b * m * o**2 * k**2 * e + b * n * i**2 * k**2 * m,
    ])  # fmt: skip
    fft = [i * (1 + i) * m * e, i * (1 + i) * b * n, i * (1 + i) * b * m, o * (1 + o) * m * e, o * (1 + o) * b * m]
    assert found[15:24] == pytest.approx([*fft, fft[0] + fft[1], fft[3] + fft[4], fft[2] + fft[1], sum(fft) + fft[1]])
    q = b * n + b * m + m * e
    assert found[24] == pytest.approx(i**2 * 3 * q + b * m * n * i**2)  # log2 of 8 is 3
    assert found[26] == pytest.approx(i * 6 * q + b * m * n * i**2)
    assert found[27] == pytest.approx(found[24:27].sum())
    assert found[28] == pytest.approx(3 * b * m * 36 * 4)  # tiles of 4: 6 x 6 numbers, 2 x 2 tiles of the input
    assert found[35 + 1] == pytest.approx(3 * b * n * 16 * 4)  # tiles of 3: 4 x 4 numbers, 2 x 2 tiles of the output
    assert found[42] == pytest.approx(b * m * e * 4 * 1 * 36)
    assert found[55] == pytest.approx(found[49] + found[50] + found[51])


@given(networks(), st.integers(1, 512))
def test_features_add_over_layers_and_each_batch_stands_alone(layers, batch):
    whole = compute_features(layers, np.array([1.0, float(batch)]))
    apart = sum(compute_features(layer[None, :], np.array([float(batch)])) for layer in layers)
    assert whole[1] == pytest.approx(np.asarray(apart)[0])
    assert np.isfinite(whole).all()
    assert (whole[1] >= whole[0] - 1e-9).all()


ONE = np.array([1.0])


def term(name: str, *layers: list[float], batch: float = 1.0) -> float:
    found = compute_memory_terms(np.array(layers, dtype=np.float64), np.array([batch]))[0]
    return float(dict(zip(MEMORY_TERMS, found, strict=True))[name])


def test_memory_is_the_weights_and_what_every_layer_keeps():
    layer = [32.0, 48.0, 3.0, 1.0, 1.0, 1.0, 10.0]
    assert term("base", layer) == pytest.approx(1.0)
    assert term("weights", layer, layer, batch=7) == pytest.approx(2 * 32 * 48 * 9 * MEGABYTES)
    assert term("outputs", layer, batch=7) == pytest.approx(7 * 48 * 100 * MEGABYTES)
    assert term("inputs", layer, batch=7) == pytest.approx(7 * 32 * 100 * MEGABYTES)
    assert term("largest", layer, [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 4.0]) == pytest.approx(48 * 100 * MEGABYTES)


def test_the_work_space_is_that_of_the_largest_layer_in_tiles_of_64():
    small, large = [32.0, 65.0, 3.0, 1.0, 1.0, 1.0, 8.0], [17.0, 30.0, 3.0, 1.0, 1.0, 1.0, 16.0]
    assert term("workspace", small) == pytest.approx(128 * 64 * MEGABYTES)
    assert term("workspace", small, large) == pytest.approx(64 * 256 * MEGABYTES)


@pytest.mark.parametrize(
    "layer",
    [
        [16.0, 64.0, 3.0, 1.0, 1.0, 1.0, 8.0],  # few channels
        [64.0, 64.0, 1.0, 0.0, 1.0, 1.0, 8.0],  # a product
        [64.0, 64.0, 3.0, 1.0, 1.0, 64.0, 8.0],  # depthwise
    ],
)
def test_other_layers_ask_for_no_work_space(layer):
    assert term("workspace", layer) == 0.0


@given(st.sampled_from([0, 30, 50, 90]), st.integers(8, 96), st.integers(1, 5), st.integers(1, 256))
def test_every_term_grows_with_the_batch(level, width, blocks, batch):
    layers = np.array(layers_at(level, width, blocks), dtype=np.float64)
    for terms, names in (
        (compute_memory_terms, MEMORY_TERMS),
        (compute_own_time_terms, OWN_TIME_TERMS),
        (compute_time_terms, TIME_TERMS),
    ):
        found = terms(layers, np.array([float(batch), batch + 1.0]))
        assert found.shape == (2, len(names))
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        assert (found[1] >= found[0]).all()


def shape(inputs: float, outputs: float, kernel: float, groups: float = 1.0) -> Floats:
    """A first layer, which needs no gradient of its input, and the layer in question."""
    first = [3.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    return np.array([first, [inputs, outputs, kernel, kernel // 2, 1.0, groups, 8.0]])


@pytest.mark.parametrize(("channels", "padded"), [(33, 64), (64, 64), (65, 128)])
def test_arithmetic_is_that_of_whole_tiles(channels, padded):
    found = dict(zip(OWN_TIME_TERMS, compute_own_time_terms(shape(32, channels, 3), ONE)[0], strict=True))
    assert found["3x3"] == pytest.approx(2 * 64 * 32 * padded * 9)
    assert found["1x1"] == pytest.approx(2 * 3)


def test_depthwise_layers_move_but_count_no_dense_arithmetic():
    own = dict(zip(OWN_TIME_TERMS, compute_own_time_terms(shape(32, 32, 3, 32), ONE)[0], strict=True))
    other = dict(zip(TIME_TERMS, compute_time_terms(shape(32, 32, 3, 32), ONE)[0], strict=True))
    moved = 2 * 32 * 64
    assert own["3x3"] == own["3x3 weights"] == 0.0
    assert own["depthwise"] == pytest.approx(moved)
    assert other["traffic"] == pytest.approx(1 + 0.5 * moved)  # the first layer's one output, and half of the moved


def test_steps_at_the_floor_and_of_a_full_board_are_not_fitted_to():
    rng = np.random.default_rng(0)
    terms = np.column_stack([np.ones(60), *(rng.uniform(10.0, 900.0, (5, 60)))])
    truth = np.array([1350.0, 3.0, 1.4, 0.5, 5.0, 2.0])
    memory_mb = np.clip(terms @ truth, 1600.0, 6200.0)
    networks = np.repeat(["a", "b"], 30)
    model = fit_memory_model(terms, memory_mb, networks, 6200.0)
    shows = memory_mb < 6000
    assert model.need_mb(terms)[shows] == pytest.approx(memory_mb[shows], rel=0.05)


def test_without_a_telling_step_the_prior_stands():
    model = fit_memory_model(np.ones((4, 6)), np.full(4, 1600.0), np.array(["a"] * 4), 6200.0)
    assert model.coefficients == pytest.approx(MEMORY_PRIOR)


def test_time_is_found_beside_steps_that_only_launch():
    rng = np.random.default_rng(0)
    terms = rng.uniform(1.0, 500.0, (80, 2))
    terms[:20] *= 0.01
    truth = TimeModel(np.array([2.0, 0.5]), 2.0)
    layers = np.full(80, 10.0)
    step_ms = truth.step_ms(terms, layers)
    found = fit_time_model(terms, step_ms, layers, np.tile(["a", "b"], 40))
    assert found.launch_ms == pytest.approx(2.0, rel=0.02)
    assert found.step_ms(terms, layers) == pytest.approx(step_ms, rel=0.03)


def test_without_noise_the_coefficients_are_found_and_outliers_are_not_followed():
    rng = np.random.default_rng(1)
    terms = rng.uniform(0.5, 2.0, (60, 3)) * np.array([1.0, 1e3, 1e-3])
    truth = np.array([5.0, 0.02, 300.0])
    target = terms @ truth
    target[:3] *= 6.0
    found = fit_relative(terms, target, np.ones(60), 0.03, pull=1e-8)
    assert found == pytest.approx(truth, rel=0.05)


def test_a_term_that_the_rows_do_not_show_keeps_its_prior():
    terms = np.column_stack([np.linspace(1.0, 2.0, 20), np.zeros(20)])
    found = fit_relative(terms, 3.0 * terms[:, 0], np.ones(20), 0.05, np.array([2.0, 7.0]), 1e-4)
    assert found == pytest.approx([3.0, 7.0], rel=1e-2)


def test_every_group_weighs_the_same():
    weights = balance_weights(np.array(["a", "b", "b", "b"]))
    assert weights[0] == pytest.approx(weights[1:].sum())
    assert weights.mean() == pytest.approx(1.0)
