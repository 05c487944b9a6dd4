"""The 56 features are those of the paper, in its order, summed over the layers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.costs.memory.convolution_features import FEATURE_COUNT, compute_features
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


def test_a_layer_by_hand() -> None:
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
def test_features_add_over_layers_and_each_batch_stands_alone(layers: Floats, batch: int) -> None:
    whole = compute_features(layers, np.array([1.0, float(batch)]))
    apart = sum(compute_features(layer[None, :], np.array([float(batch)])) for layer in layers)
    assert whole[1] == pytest.approx(np.asarray(apart)[0])
    assert np.isfinite(whole).all()
    assert (whole[1] >= whole[0] - 1e-9).all()
