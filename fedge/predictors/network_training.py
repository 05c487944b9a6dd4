"""Training of a pair of networks on measured modes, and ``NetworkPredictor``, which predicts with such a pair.

Training has rows, a scaler, a split, epochs, and a selection of the best epoch.

PowerTrain: 100 epochs of minibatches of 32 rows, Adam, mean squared error (or mean relative error). After each epoch
both networks are evaluated on held-out rows, and each network's best epoch is kept. Targets are milliseconds per step
and milliwatts, unscaled; knobs are standardised.
``NetworkPredictor`` trains from scratch on the measured modes, the baseline of the paper (doi
10.1016/j.future.2024.07.001).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.measurement_columns import MeasurementColumns, apply_floor, collect_columns, estimate_sd_log
from fedge.predictors.network_pair import (
    Adam,
    Float32Array,
    NetworkPair,
    compute_gradient,
    compute_outputs,
    init_pair,
    view_pair,
)
from fedge.seeds import make_generator
from fedge.types import Floats, Measurement, Modes, Predictions

EPOCHS, BATCH = 100, 32
ROWS_PER_MODE = 40
"""Largest number of rows per measurement: the paper uses each minibatch of a profiled mode as a row."""
MAX_ROWS = 4000
"""Number of rows in all beyond which each measurement gets fewer. Default: 100 modes are still trained as in the paper,
and a whole table trains in seconds."""
MILLI = 1e3

LossName = Literal["mse", "mape"]
Loss = Callable[[Float32Array, Float32Array], tuple[Floats, Float32Array]]
"""Outputs and targets (2, n) -> each network's loss (2,), and its derivative by each output (2, n)."""


def mse_loss(said: Float32Array, true: Float32Array) -> tuple[Floats, Float32Array]:
    """Return the mean squared error of each network, and its derivative by each output.

    Args:
        said: Outputs, shape (2, n).
        true: Targets, shape (2, n).
    """
    error = said - true
    return np.mean(np.square(error, dtype=np.float64), axis=1), error * np.float32(2.0 / error.shape[1])


def mape_loss(said: Float32Array, true: Float32Array) -> tuple[Floats, Float32Array]:
    """Return the mean absolute relative error of each network, and its derivative by each output.

    Args:
        said: Outputs, shape (2, n).
        true: Targets, shape (2, n), not 0.
    """
    error = (said - true) / true
    return np.mean(np.abs(error, dtype=np.float64), axis=1), np.sign(error) / (true * np.float32(error.shape[1]))


LOSSES: dict[LossName, Loss] = {"mse": mse_loss, "mape": mape_loss}


@dataclass(frozen=True, slots=True, eq=False)
class Scaler:
    """Standardisation of knobs to mean 0 and standard deviation 1; a constant knob is only shifted.

    Attributes:
        mean: Mean of each knob, shape (4,).
        sd: Standard deviation of each knob, or 1 if it is constant, shape (4,).
    """

    mean: Floats
    sd: Floats

    def transform(self, knobs: Floats) -> Float32Array:
        """Return standardised knobs, shape (n, 4)."""
        return ((knobs - self.mean) / self.sd).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedNetworks:
    """Trained networks with their scaler.

    Attributes:
        pair: The networks.
        scaler: Standardisation of their inputs.
        validation_mape: Mean absolute relative error of time and power on the held-out rows (0.1 is 10 %), shape (2,).
    """

    pair: NetworkPair
    scaler: Scaler
    validation_mape: Floats

    def predict(self, knobs: Floats) -> Floats:
        """Return seconds per step and watts, shape (2, n), without a lower bound.

        Args:
            knobs: Cores, and CPU, GPU and memory clock in MHz, shape (n, 4).
        """
        return compute_outputs(self.pair, self.scaler.transform(knobs)).astype(np.float64) / MILLI


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRows:
    """Training data.

    Attributes:
        knobs: Cores, and CPU, GPU and memory clock in MHz, shape (n, 4).
        targets: Seconds per step and watts, shape (2, n).
    """

    knobs: Floats
    targets: Floats


def build_training_rows(seen: MeasurementColumns) -> TrainingRows:
    """Repeat every measurement once per measured step, up to ``ROWS_PER_MODE`` times; all its rows hold its mean."""
    most = min(ROWS_PER_MODE, max(1, MAX_ROWS // len(seen.steps)))
    repeats = np.clip(seen.steps, 1, most)
    targets = np.stack([seen.step_s, seen.power_w])
    return TrainingRows(np.repeat(seen.knobs, repeats, axis=0), np.repeat(targets, repeats, axis=1))


def train_pair(
    start: NetworkPair, rows: TrainingRows, set_aside: float, loss: LossName, rng: np.random.Generator
) -> TrainedNetworks:
    """Train a copy of the given networks.

    The scaler is fitted to all rows; a single row is used both for training and validation.

    Args:
        start: The networks to start from; not modified.
        rows: The training data.
        set_aside: Share of the rows held out to select the best epoch, from 0 to 1.
        loss: Name of the loss.
        rng: Source of the split, the order of rows and dropout.
    """
    scaler = _fit_scaler(rows.knobs)
    x, y = scaler.transform(rows.knobs), (rows.targets * MILLI).astype(np.float32)
    order = rng.permutation(len(x))
    aside = max(1, round(set_aside * len(x)))
    held, used = order[:aside], order[aside:] if len(x) > 1 else order
    pair = _train_to_best_epoch(
        view_pair(start.flat.copy()), used=(x[used], y[:, used]), held=(x[held], y[:, held]), loss=LOSSES[loss], rng=rng
    )
    return TrainedNetworks(pair, scaler, mape_loss(compute_outputs(pair, x[held]), y[:, held])[0])


def _train_to_best_epoch(
    pair: NetworkPair,
    used: tuple[Float32Array, Float32Array],
    held: tuple[Float32Array, Float32Array],
    loss: Loss,
    rng: np.random.Generator,
) -> NetworkPair:
    """Train ``pair`` in place; return each network as it was after its best epoch."""
    kept, least = view_pair(pair.flat.copy()), np.full(2, np.inf)
    adam, slopes = Adam(), view_pair(np.empty_like(pair.flat))
    for _ in range(EPOCHS):
        order = rng.permutation(len(used[0]))
        x, y = used[0][order], used[1][:, order]
        for first in range(0, len(order), BATCH):
            batch = slice(first, first + BATCH)
            compute_gradient(pair, x=x[batch], slope=_make_loss_slope(loss, y[:, batch]), rng=rng, into=slopes)
            adam.step(pair.flat, slopes.flat)
        now = loss(compute_outputs(pair, held[0]), held[1])[0]
        _copy_better(pair, now < least, kept)
        least = np.fmin(now, least)
    return kept


def _make_loss_slope(loss: Loss, y: Float32Array) -> Callable[[Float32Array], Float32Array]:
    return lambda said: loss(said, y)[1]


def _copy_better(pair: NetworkPair, better: NDArray[np.bool_], kept: NetworkPair) -> None:
    for now, best in zip((*pair.weights, *pair.biases), (*kept.weights, *kept.biases), strict=True):
        best[better] = now[better]


def _fit_scaler(knobs: Floats) -> Scaler:
    mean, sd = knobs.mean(axis=0), knobs.std(axis=0)
    return Scaler(mean, np.where(sd > 1e-9 * np.abs(mean), sd, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class BoundedNetworks:
    """Trained networks with a floor and a spread derived from their measurements.

    The networks give no spread, and held-out rows repeat modes that were trained on. The spread is therefore ``factor``
    times the standard deviation of the measured logs, divided by the square root of their number, for every mode. The
    errors of such networks on measured tables follow this law; see docs/explanation/predictors.md.

    Attributes:
        trained: The networks.
        measured: The measurements they were trained on.
        factor: Factor of the spread.
    """

    trained: TrainedNetworks
    measured: MeasurementColumns
    factor: float

    def predict(self, modes: Modes) -> Predictions:
        """Predict step time and power of every mode."""
        step_s, power_w = self.trained.predict(modes.knobs)
        time_sd, power_sd = (
            self._spread(values, len(modes)) for values in (self.measured.step_s, self.measured.power_w)
        )
        return Predictions(
            modes,
            step_s=apply_floor(step_s, self.measured.step_s),
            power_w=apply_floor(power_w, self.measured.power_w),
            step_s_sd_log=time_sd,
            power_w_sd_log=power_sd,
        )

    def _spread(self, measured: Floats, count: int) -> Floats:
        logs = np.log(measured)
        sd = estimate_sd_log(logs - logs.mean(), 1)
        return np.full(count, self.factor * sd / np.sqrt(len(measured)))


SET_ASIDE = 0.1
"""Share of the rows held out to select the best epoch."""
SPREAD_FACTOR = 2.2
"""Factor of the spread; see ``network_training.BoundedNetworks``."""


class NetworkPredictor:
    """A ``fedge.protocols.Predictor``: two networks without prior knowledge, from one measured mode on.

    Attributes:
        knowledge: Prior knowledge of board and workload; only its seed is used.
        learnt_: The trained networks.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Train both networks.

        Raises:
            BadInput: There are no measurements.
        """
        measured = collect_columns("mlp", measurements)
        rng = make_generator(self.knowledge.seed, "mlp")
        trained = train_pair(
            init_pair(rng), rows=build_training_rows(measured), set_aside=SET_ASIDE, loss="mse", rng=rng
        )
        self.learnt_ = BoundedNetworks(trained, measured, SPREAD_FACTOR)
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Predict step time and power of every mode; requires ``fit``."""
        return self.learnt_.predict(modes)
