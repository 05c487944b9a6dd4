"""Minibatches beside a loader: what waiting makes of them, and what is left of a measurement without it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.client.corrections import predict_corrected
from fedge.client.loader_stalls import (
    LoaderCorrection,
    LoaderModel,
    add_stalls,
    fit_loading_factor,
    remove_stalls,
)
from fedge.costs.cost_priors import build_priors
from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, Loader, SampleCost, StepCost, Storage
from fedge.devices.catalogue import find, load_catalogue
from fedge.modes import build_grid
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import Floats, Measurement, Modes, Predictions

SPEC = find("agx-xavier")
COSTS = build_priors(SPEC, "resnet18-imagenet", load_catalogue(), layered=False)[0].coefficients
MODES = build_grid(SPEC, (2, 4, 8), SPEC.cpu_mhz[4::8], SPEC.gpu_mhz[2::4], SPEC.mem_mhz[-3:])
X, P = compute_step_s(COSTS, SPEC.maxn, MODES), compute_power_w(COSTS, SPEC.maxn, MODES)


def _loading(workers: int = 1, sample_s: float = 0.02, cached: float = 1.0) -> LoaderModel:
    pipeline = InputPipeline(
        batch_size=16,
        loader=Loader(workers),
        storage=Storage("made up", 100.0, 1e-3, 2.0),
        samples=SampleCost(0.2, 1e-4, sample_s),
        step=StepCost(0.0, 0.0, 0.0, 0.001, 0.0, 0.0),
        host=HostCores(8.0, crowding=0.5),
        cached=cached,
    )
    return LoaderModel(pipeline, SPEC.maxn, COSTS, SPEC.idle_w.value)


def _measured(loading: LoaderModel, row: int) -> Measurement:
    made = add_stalls(loading, MODES, X, P)
    return Measurement(
        MODES[row], 40, float(made.step_s[row]), float(made.power_w[row]), stall_s=float(made.stall_s[row])
    )


class _Line:
    """A predictor that knows how long computing takes, and remembers what it was told."""

    told: Sequence[Measurement] = ()

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self.told = measurements
        return self

    def predict(self, modes: Modes) -> Predictions:
        small: Floats = np.full(len(modes), 0.02)
        return Predictions(
            modes, compute_step_s(COSTS, SPEC.maxn, modes), compute_power_w(COSTS, SPEC.maxn, modes), small, small
        )


@given(st.integers(0, 4), st.floats(1e-4, 0.1), st.floats(0, 1), st.integers(0, len(MODES) - 1))
@settings(max_examples=50)
def test_what_is_measured_without_its_stall_is_computing_alone(workers, sample_s, cached, row):
    loading = _loading(workers, sample_s, cached)
    measured = _measured(loading, row)

    (alone,) = remove_stalls([measured], loading)

    assert alone.stall_s == 0.0
    assert alone.step_s == pytest.approx(X[row], rel=0.02)
    assert measured.step_s >= X[row] * (1 - 1e-9)
    # Of a minibatch that nearly always waits, little is left to tell the watts of computing from.
    if measured.stall_s < 0.8 * measured.step_s:
        assert alone.power_w == pytest.approx(P[row], rel=0.02)


def test_a_predictor_learns_without_stalls_and_predicts_with_them():
    loading, inner = _loading(), _Line()
    measured = [_measured(loading, row) for row in (0, 30, len(MODES) - 1)]

    said = predict_corrected(inner, [LoaderCorrection(loading)], MODES, measured)
    truth = add_stalls(loading, MODES, X, P)

    assert [one.stall_s for one in inner.told] == [0.0] * 3
    np.testing.assert_allclose(said.step_s, truth.step_s, rtol=0.02)
    np.testing.assert_allclose(said.power_w, truth.power_w, rtol=0.02)


def test_a_slower_storage_than_believed_shows_in_the_first_stalls():
    believed, true = _loading(), _loading().slow_down(1.5)
    measured = [_measured(true, row) for row in range(0, len(MODES), 7)]

    factor, stalls = fit_loading_factor(measured, believed)
    said = predict_corrected(_Line(), [LoaderCorrection(believed)], MODES, measured)

    assert stalls > 3
    assert factor == pytest.approx(1.5, rel=0.06)
    np.testing.assert_allclose(said.step_s, add_stalls(true, MODES, X, P).step_s, rtol=0.06)


def test_what_others_measured_says_nothing_of_the_boards_own_loading():
    other = replace(_measured(_loading().slow_down(2.0), 0), board="another")

    assert fit_loading_factor([other], _loading()) == (1.0, 0)
