"""The networks have PowerTrain's shape, their gradient is right, and training keeps the best epoch."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.baselines import MadeUpBoard, mape, real_table
from contracts.boards import MAXN, grid
from contracts.predictor import BaselineContract
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors import network_training
from fedge.predictors.measurement_columns import PREDICTION_FLOOR, MeasurementColumns, collect_columns
from fedge.predictors.network_pair import (
    DROPOUT,
    LAYERS,
    Adam,
    Float32Array,
    NetworkPair,
    compute_gradient,
    compute_outputs,
    init_pair,
    reset_output_layer,
    view_pair,
)
from fedge.predictors.network_training import (
    LOSSES,
    MAX_ROWS,
    NetworkPredictor,
    TrainingRows,
    build_training_rows,
    mape_loss,
    mse_loss,
    train_pair,
)
from fedge.protocols import Predictor
from fedge.types import Measurement, Modes


class TestNetworkPredictor(MadeUpBoard, BaselineContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return NetworkPredictor(PriorKnowledge(MAXN))


def test_each_network_has_the_papers_number_of_parameters():
    assert init_pair(np.random.default_rng(0)).flat.size == 2 * 42_497


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def _as_torch(torch, pair: NetworkPair, which: int):
    """One of the two networks, built from torch's own layers."""
    layers = []
    for i, (ins, outs) in enumerate(LAYERS):
        layer = torch.nn.Linear(ins, outs)
        layer.weight.data = torch.tensor(pair.weights[i][which].T.copy())
        layer.bias.data = torch.tensor(pair.biases[i][which, 0].copy())
        layers += [layer, torch.nn.ReLU()] if i < len(LAYERS) - 1 else [layer]
    return torch.nn.Sequential(*layers)


def test_both_networks_say_what_the_same_layers_of_torch_say(torch):
    rng = np.random.default_rng(3)
    pair, x = init_pair(rng), rng.standard_normal((9, 4)).astype(np.float32)

    said = compute_outputs(pair, x)

    for which in (0, 1):
        with torch.no_grad():
            theirs = _as_torch(torch, pair, which)(torch.tensor(x))[:, 0].numpy()
        np.testing.assert_allclose(said[which], theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["mse", "mape"])
def test_the_gradient_is_the_slope_of_the_loss_with_the_same_units_dropped(loss):
    rng = np.random.default_rng(4)
    pair = view_pair(init_pair(rng).flat.astype(np.float64))
    x, y = rng.standard_normal((5, 4)), rng.uniform(1.0, 2.0, (2, 5))
    into = view_pair(np.empty_like(pair.flat))
    said: list[Float32Array] = []

    def slope(outputs: Float32Array) -> Float32Array:
        said.append(outputs)
        return LOSSES[loss](outputs, y)[1]

    def value_at(flat: Float32Array) -> float:
        compute_gradient(view_pair(flat), x, slope, np.random.default_rng(7), view_pair(np.empty_like(flat)))
        return float(LOSSES[loss](said[-1], y)[0].sum())

    compute_gradient(pair, x, slope, np.random.default_rng(7), into)

    for place in rng.integers(0, pair.flat.size, 60):
        nudge = np.zeros_like(pair.flat)
        nudge[place] = 1e-6
        rise = (value_at(pair.flat + nudge) - value_at(pair.flat - nudge)) / 2e-6
        assert into.flat[place] == pytest.approx(rise, rel=1e-4, abs=1e-7)


def test_training_switches_off_the_papers_shares_of_the_units():
    rng = np.random.default_rng(5)
    pair = init_pair(rng)
    pair.weights[0][:], pair.biases[0][:] = 0.0, 1.0  # every unit of the first layer is on
    pair.weights[1][:], pair.biases[1][:] = 0.0, 1.0  # and of the second
    pair.weights[2][:], pair.biases[2][:] = 1.0, 0.0
    pair.weights[3][:], pair.biases[3][:] = 1.0, 0.0
    into = view_pair(np.empty_like(pair.flat))

    compute_gradient(pair, np.zeros((400, 4), np.float32), np.ones_like, rng, into)

    # The last-but-one weights' slope sums the units that were kept, each enlarged to keep the mean.
    kept = into.weights[2][0, :, 0] / 400
    assert kept.mean() == pytest.approx(1.0, abs=0.02)
    assert kept.std() == pytest.approx(np.sqrt(DROPOUT[1] / (1 - DROPOUT[1]) / 400), rel=0.3)
    assert DROPOUT[:2] == (0.4, 0.3)


def test_adam_steps_like_torchs_adam(torch):
    rng = np.random.default_rng(6)
    start = rng.standard_normal(50).astype(np.float32)
    ours, theirs = start.copy(), torch.nn.Parameter(torch.tensor(start.copy()))
    adam, reference = Adam(50), torch.optim.Adam([theirs], lr=1e-3)

    for scale in np.geomspace(1e-6, 1e4, 40):
        slope = (scale * rng.standard_normal(50)).astype(np.float32)
        adam.step(ours, slope)
        theirs.grad = torch.tensor(slope)
        reference.step()

    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_a_fresh_last_layer_leaves_the_others_and_the_original_as_they_are():
    rng = np.random.default_rng(8)
    pair = init_pair(rng)
    before = pair.flat.copy()

    new = reset_output_layer(pair, rng)

    np.testing.assert_array_equal(pair.flat, before)
    for layer in range(3):
        np.testing.assert_array_equal(new.weights[layer], pair.weights[layer])
        np.testing.assert_array_equal(new.biases[layer], pair.biases[layer])
    assert (new.weights[3] != pair.weights[3]).all()
    assert (new.biases[3] != pair.biases[3]).all()


@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(-9.0, 9.0)), min_size=1, max_size=8))
def test_losses_are_their_definitions(pairs):
    true = np.array([[t for t, _ in pairs]] * 2)
    said = np.array([[s for _, s in pairs]] * 2)

    assert mse_loss(said, true)[0][1] == pytest.approx(sum((s - t) ** 2 for t, s in pairs) / len(pairs))
    assert mape_loss(said, true)[0][0] == pytest.approx(sum(abs(s - t) / t for t, s in pairs) / len(pairs))


def test_a_measurement_stands_for_its_minibatches_up_to_forty():
    modes = grid()
    seconds = [0.1, 0.2, 0.3]
    three = [Measurement(modes[i], steps, seconds[i], 20.0) for i, steps in enumerate((1, 7, 300))]

    rows = build_training_rows(collect_columns("mlp", three))

    assert [int(np.sum(rows.targets[0] == s)) for s in seconds] == [1, 7, 40]
    assert rows.targets.shape == (2, 48)
    assert rows.knobs.shape == (48, 4)


@given(st.integers(1, 700))
@settings(max_examples=20)
def test_a_whole_table_gives_no_more_rows_than_a_hundred_modes(count):
    many = MeasurementColumns(np.ones((count, 4)), np.ones(count), np.ones(count), np.full(count, 40))

    rows = len(build_training_rows(many).knobs)

    assert rows == 40 * count if count <= 100 else count <= rows <= MAX_ROWS


def test_a_knob_that_never_changes_does_no_harm():
    rows = TrainingRows(np.array([[8.0, 2000.0, f, 3000.0] for f in (200.0, 400.0, 900.0)]), np.ones((2, 3)))

    trained = train_pair(init_pair(np.random.default_rng(0)), rows, 0.2, "mse", np.random.default_rng(0))

    assert np.isfinite(trained.predict(grid().knobs)).all()


def test_each_network_is_kept_as_it_was_after_its_own_best_epoch(monkeypatch):
    held_losses: list[np.ndarray] = []
    rng = np.random.default_rng(1)
    rows = TrainingRows(grid().knobs[::9], np.stack([rng.uniform(0.1, 1.0, 70), rng.uniform(10.0, 30.0, 70)]))

    def noted(said: Float32Array, true: Float32Array) -> tuple[np.ndarray, Float32Array]:
        value, slope = mse_loss(said, true)
        if said.shape[1] == 14:  # the rows set aside
            held_losses.append(value)
        return value, slope

    monkeypatch.setitem(network_training.LOSSES, "mse", noted)
    trained = train_pair(init_pair(rng), rows, 0.2, "mse", np.random.default_rng(2))
    order = np.random.default_rng(2).permutation(70)
    held = order[:14]
    now = mse_loss(
        compute_outputs(trained.pair, trained.scaler.transform(rows.knobs[held])), rows.targets[:, held] * 1e3
    )[0]

    assert len(held_losses) == 100
    np.testing.assert_allclose(now, np.min(held_losses, axis=0), rtol=1e-5)
    assert np.argmin([v[0] for v in held_losses]) != np.argmin([v[1] for v in held_losses])


def test_training_leaves_the_networks_it_starts_from_as_they_are():
    start = init_pair(np.random.default_rng(0))
    before = start.flat.copy()

    train_pair(start, TrainingRows(grid().knobs[::30], np.ones((2, 21))), 0.2, "mse", np.random.default_rng(0))

    np.testing.assert_array_equal(start.flat, before)


def test_predictions_stop_at_half_the_least_measured():
    modes = grid()
    two = [Measurement(modes[0], 4, 5.0, 60.0), Measurement(modes[1], 4, 4.0, 50.0)]

    said = NetworkPredictor(PriorKnowledge(MAXN)).fit(two).predict(modes)

    assert said.step_s.min() == pytest.approx(PREDICTION_FLOOR * 4.0)
    assert said.power_w.min() >= PREDICTION_FLOOR * 50.0


def test_the_same_seed_gives_the_same_networks_and_another_one_others():
    some = [Measurement(grid()[i], 10, 0.1 + 0.01 * i, 20.0 + i) for i in range(5)]

    def said(seed: int) -> np.ndarray:
        return NetworkPredictor(PriorKnowledge(MAXN, seed=seed)).fit(some).predict(Modes(grid().knobs[::9])).step_s

    np.testing.assert_array_equal(said(1), said(1))
    assert not np.array_equal(said(1), said(2))


@pytest.mark.long
def test_from_scratch_fifty_modes_of_a_measured_board_are_few(profiles_root):
    time_mape, power_mape = mape(NetworkPredictor, real_table(profiles_root, "agx-orin", "yolov8n-coco"), 50, range(3))

    print(f"mlp, 50 modes of YOLO: time {time_mape:.1%}, power {power_mape:.1%}")
    assert 0.08 < time_mape < 0.25
    assert power_mape < 0.08
