"""Trains a pair of networks on measured modes: rows, scaler, split, epochs, and the epoch that is kept.

PowerTrain: 100 epochs of minibatches of 32 rows, Adam, mean squared error (or the mean relative error); after each
epoch both networks are tried on rows set aside, and of each the best epoch is kept. Targets are milliseconds per step
and milliwatts, unscaled; knobs are standardised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedge.predictors.measurement_columns import MeasurementColumns, apply_floor, estimate_sd_log
from fedge.predictors.network_pair import Adam, Float32Array, NetworkPair, compute_gradient, compute_outputs, view_pair
from fedge.types import Floats, Modes, Predictions

EPOCHS, BATCH = 100, 32
ROWS_PER_MODE = 40
"""A measurement stands for so many rows at most: the paper keeps each minibatch of a profiled mode as a row."""
MAX_ROWS = 4000
"""Beyond so many rows in all, each measurement stands for fewer: a whole table has rows enough. Chosen by us, so that
100 modes are still trained as in the paper."""
MILLI = 1e3

LossName = Literal["mse", "mape"]
Loss = Callable[[Float32Array, Float32Array], tuple[Floats, Float32Array]]
"""Outputs and targets (2, n) -> each network's loss (2,), and its slope by each output (2, n)."""


def mse_loss(said: Float32Array, true: Float32Array) -> tuple[Floats, Float32Array]:
    """Mean squared error."""
    error = said - true
    return np.mean(np.square(error, dtype=np.float64), axis=1), error * np.float32(2.0 / error.shape[1])


def mape_loss(said: Float32Array, true: Float32Array) -> tuple[Floats, Float32Array]:
    """Mean absolute error relative to the target."""
    error = (said - true) / true
    return np.mean(np.abs(error, dtype=np.float64), axis=1), np.sign(error) / (true * np.float32(error.shape[1]))


LOSSES: dict[LossName, Loss] = {"mse": mse_loss, "mape": mape_loss}


@dataclass(frozen=True, slots=True, eq=False)
class Scaler:
    """Takes knobs to mean 0 and standard deviation 1; a knob that never changes is only shifted. Both shape (4,)."""

    mean: Floats
    sd: Floats

    def transform(self, knobs: Floats) -> Float32Array:
        """Knobs (n, 4) as the networks take them."""
        return ((knobs - self.mean) / self.sd).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedNetworks:
    """Networks with the scaler that belongs to them, and the mean relative error on the rows set aside (2,)."""

    pair: NetworkPair
    scaler: Scaler
    validation_mape: Floats

    def predict(self, knobs: Floats) -> Floats:
        """Seconds per step and watts, shape (2, n); not bounded from below."""
        return compute_outputs(self.pair, self.scaler.transform(knobs)).astype(np.float64) / MILLI


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRows:
    """What is trained on: knobs (n, 4), and seconds per step and watts (2, n)."""

    knobs: Floats
    targets: Floats


def build_training_rows(seen: MeasurementColumns) -> TrainingRows:
    """Every measurement as many times as it has minibatches, up to ``ROWS_PER_MODE``; all rows of one are its mean."""
    most = min(ROWS_PER_MODE, max(1, MAX_ROWS // len(seen.steps)))
    repeats = np.clip(seen.steps, 1, most)
    targets = np.stack([seen.step_s, seen.power_w])
    return TrainingRows(np.repeat(seen.knobs, repeats, axis=0), np.repeat(targets, repeats, axis=1))


def train_pair(
    start: NetworkPair, rows: TrainingRows, set_aside: float, loss: LossName, rng: np.random.Generator
) -> TrainedNetworks:
    """Train a copy of ``start`` on ``rows``, a share ``set_aside`` of which only tells the best epoch.

    The scaler is fitted to all rows; a single row is trained on and validated with.
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
    """Train ``pair`` in place; the answer has each network as it was after its best epoch."""
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
    """Networks, and what they were trained on: it bounds their predictions from below and tells their spread.

    The networks themselves give no spread, and rows set aside repeat modes that were trained on. So the spread is that
    of the measured values about their mean, in logs, divided by the root of their number and multiplied by ``factor``:
    a law that the errors of such networks follow on measured tables, the same for every mode. Chosen by us.
    """

    trained: TrainedNetworks
    measured: MeasurementColumns
    factor: float

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode."""
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
