"""How fast GPUs really work off a network's layers: effective rates by kind of layer, fitted to all that was measured.

A minibatch's GPU seconds at the top clocks are a sum over what bounds its layers, times what is particular to the
board, to the network and to training:

    t = board * network * [training] * sum_j work_j / (rate of the data sheet_j * efficiency_j) [* mixed_j]

The efficiencies and the three factors are fitted as logarithms with Gaussian priors of our choosing (least squares), so
that few observations move them no further than they must. A network or a board that was never seen has the factor 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.types import DeviceSpec, Floats, OperationCounts

PASSES = {"train": 3.0, "infer": 1.0}
"""A training step is three forward passes."""
OPTIMISER_PASSES = 5.0
"""How often stochastic gradient descent with momentum moves the weights: it reads weights, gradients and momentum, and
writes weights and momentum."""
MIXED_FLOP, MIXED_BYTES = 0.25, 0.5
"""Seconds of mixed precision beside single precision: arithmetic on tensor cores, half as many bytes. Chosen by us;
where convolutions are computed as TF32, which is torch's default, tensor cores do much of that already."""

EFFICIENCIES: dict[str, tuple[float, float]] = {
    "dense": (0.65, 0.3),
    "pointwise": (0.45, 0.3),
    "moved": (0.5, 0.4),
    "depthwise": (0.12, 0.6),
    "moved_in_training": (1.0, 0.3),
    "launched": (20e-6, 0.5),
    "training": (1.0, 0.2),
}
"""What is believed of each before any measurement, and how far it may be off (log units), chosen by us. The first four
are shares of the data sheet's peak; then the passes over activations in training beside three times those of inference,
seconds of an operator that has next to nothing to do (at 1.3 GHz), and a training step beside three forward passes."""
FACTOR_SD = 0.25
"""How far a board, and a network, may lie off what is common to all, log units; chosen by us."""
MISFIT_SD = 0.1
"""How far one observation lies off what its board and its network explain, log units; chosen by us."""
_LAUNCH_CLOCK_MHZ = 1300.0
_STEPS, _SMALL = 30, 1e-6


@dataclass(frozen=True, slots=True)
class RateObservation:
    """GPU seconds of one minibatch at the top clocks; ``slope``: of what ``batch_size`` more samples take."""

    device: str
    network: str
    counted: OperationCounts
    batch_size: int
    training: bool
    seconds: float
    mixed: bool = False
    slope: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class GpuRates:
    """Fitted efficiencies and factors, as logarithms; ``boards`` and ``networks`` name the factors in their order."""

    logs: Floats
    boards: tuple[str, ...]
    networks: tuple[str, ...]

    def predict_s(self, wanted: RateObservation, spec: DeviceSpec) -> float:
        """GPU seconds of a minibatch at the top clocks; ``wanted.seconds`` is not looked at."""
        terms, factors = _build_terms(wanted, spec, len(self.logs)), _build_factors(wanted, self.boards, self.networks)
        total = np.exp(terms.exponents @ self.logs) @ terms.sizes
        return float(total * np.exp(factors @ self.logs))


@dataclass(frozen=True, slots=True, eq=False)
class _Terms:
    """A minibatch's summands: ``sizes`` (7,), each times exp(``exponents`` (7, n) @ logs)."""

    sizes: Floats
    exponents: Floats


def fit_rates(observations: Sequence[RateObservation], specs: Mapping[str, DeviceSpec]) -> GpuRates:
    """The most probable rates after ``observations``; without any, the priors."""
    boards = tuple(sorted({one.device for one in observations}))
    networks = tuple(sorted({one.network for one in observations}))
    own = len(boards) + len(networks)
    prior = np.concatenate([np.log([value for value, _ in EFFICIENCIES.values()]), np.zeros(own)])
    spread = np.concatenate([[sd for _, sd in EFFICIENCIES.values()], np.full(own, FACTOR_SD)])
    rates = GpuRates(prior, boards, networks)
    for _ in range(_STEPS):
        misfit, slope = _linearize(rates, observations, specs)
        left = np.concatenate([misfit / MISFIT_SD, (prior - rates.logs) / spread])
        by = np.vstack([slope / MISFIT_SD, np.diag(1.0 / spread)])
        step = np.linalg.lstsq(by, left, rcond=None)[0]
        rates = GpuRates(rates.logs + step, boards, networks)
        if np.abs(step).max() < _SMALL:
            break
    return rates


def _linearize(
    rates: GpuRates, observations: Sequence[RateObservation], specs: Mapping[str, DeviceSpec]
) -> tuple[Floats, Floats]:
    """Log misfits (m,) and the slopes (m, n) of the logarithm of what is expected."""
    misfit, slopes = np.zeros(len(observations)), np.zeros((len(observations), len(rates.logs)))
    for row, one in enumerate(observations):
        terms = _build_terms(one, specs[one.device], len(rates.logs))
        factors = _build_factors(one, rates.boards, rates.networks)
        summands = terms.sizes * np.exp(terms.exponents @ rates.logs)
        total = summands.sum()
        misfit[row] = np.log(one.seconds) - np.log(total) - factors @ rates.logs
        slopes[row] = summands @ terms.exponents / total + factors
    return misfit, slopes


_TERM_INDEX = {name: i for i, name in enumerate(EFFICIENCIES)}


def _build_terms(one: RateObservation, spec: DeviceSpec, width: int | None = None) -> _Terms:
    """What bounds a minibatch, in seconds at an efficiency of 1 (or in operators)."""
    has, batch = one.counted, one.batch_size
    passes = PASSES["train" if one.training else "infer"]
    flops = spec.gpu_gflops.value * 1e9 / (MIXED_FLOP if one.mixed else 1.0)
    bytes_ = spec.mem_gbps.value * 1e9 / (MIXED_BYTES if one.mixed else 1.0)
    moves = 0.0 if one.slope else (PASSES["train"] + OPTIMISER_PASSES if one.training else 1.0)
    moved = passes * batch * has.moved_bytes / bytes_
    once = 0.0 if one.slope else passes * has.operators * _LAUNCH_CLOCK_MHZ / max(spec.gpu_mhz)
    summands = [
        (passes * batch * has.dense_flop / flops, {"dense": -1.0}),
        (passes * batch * has.pointwise_flop / flops, {"pointwise": -1.0}),
        (0.0 if one.training else moved, {"moved": -1.0}),
        (moved if one.training else 0.0, {"moved": -1.0, "moved_in_training": 1.0}),
        (moves * has.weight_bytes / bytes_, {"moved": -1.0}),
        (passes * batch * has.depthwise_bytes / bytes_, {"depthwise": -1.0}),
        (once, {"launched": 1.0}),
    ]
    exponents = np.zeros((len(summands), width or len(EFFICIENCIES)))
    for row, (_, powers) in enumerate(summands):
        for name, power in powers.items():
            exponents[row, _TERM_INDEX[name]] = power
    return _Terms(np.array([size for size, _ in summands]), exponents)


def _build_factors(one: RateObservation, boards: tuple[str, ...], networks: tuple[str, ...]) -> Floats:
    """Which factors a minibatch has: training, its board, its network; shape (n,) of zeros and ones."""
    factors = np.zeros(len(EFFICIENCIES) + len(boards) + len(networks))
    factors[_TERM_INDEX["training"]] = 1.0 if one.training else 0.0
    if one.device in boards:
        factors[len(EFFICIENCIES) + boards.index(one.device)] = 1.0
    if one.network in networks:
        factors[len(EFFICIENCIES) + len(boards) + networks.index(one.network)] = 1.0
    return factors
