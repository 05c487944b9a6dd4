"""Effective GPU rates by kind of layer, fitted to all measured networks and boards.

A minibatch's GPU time at the top clocks is a sum over the resources that bound its layers, times factors of the board,
the network and training:

    t = board * network * [training] * sum_j work_j / (rate of the data sheet_j * efficiency_j) [* mixed_j]

The logarithms of the efficiencies and of the three factors are fitted by least squares with Gaussian priors, so that a
few observations change them only slightly. A network or board without observations has the factor 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.types import DeviceSpec, Floats, OperationCounts

PASSES = {"train": 3.0, "infer": 1.0}
"""Forward passes that a minibatch is equivalent to: a training step also computes gradients of inputs and of
weights."""
OPTIMISER_PASSES = 5.0
"""Times that SGD with momentum moves the weights: it reads weights, gradients and momentum, and writes weights and
momentum."""
MIXED_FLOP, MIXED_BYTES = 0.25, 0.5
"""Time in mixed precision relative to single precision: arithmetic on tensor cores, and half as many bytes.

Defaults. A larger MIXED_FLOP suits convolutions in TF32 (torch's default), where tensor cores already speed up single
precision."""

EFFICIENCIES: dict[str, tuple[float, float]] = {
    "dense": (0.65, 0.3),
    "pointwise": (0.45, 0.3),
    "moved": (0.5, 0.4),
    "depthwise": (0.12, 0.6),
    "moved_in_training": (1.0, 0.3),
    "launched": (20e-6, 0.5),
    "training": (1.0, 0.2),
}
"""Prior mean and spread (log units) of each efficiency; ``fedge study transfer`` shows the resulting errors.

The first four are shares of the data sheet's peak. Then follow: memory passes over activations in training, relative to
three times those of inference; seconds per operator launch at 1.3 GHz; and the time of a training step relative to
three forward passes. Wider spreads follow the measurements more closely but transfer worse to unknown networks."""
FACTOR_SD = 0.25
"""Prior spread of the factors of boards and networks, log units. Default; larger values explain more of a misfit by the
individual board or network, and less by the shared efficiencies."""
MISFIT_SD = 0.1
"""Spread of one observation about its board and network, log units. Default; smaller values fit the tables more
closely."""
_LAUNCH_CLOCK_MHZ = 1300.0
_STEPS, _SMALL = 30, 1e-6


@dataclass(frozen=True, slots=True)
class RateObservation:
    """GPU time of one minibatch at the top clocks.

    Attributes:
        seconds: GPU time in seconds; not used in predictions.
        slope: Whether ``seconds`` is the increase for ``batch_size`` more samples, without costs per step.
    """

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
    """Fitted efficiencies and factors, with the boards' and networks' names in the order of their factors.

    Attributes:
        logs: Natural logarithms of the efficiencies, then of the boards' and the networks' factors.
    """

    logs: Floats
    boards: tuple[str, ...]
    networks: tuple[str, ...]

    def predict_s(self, wanted: RateObservation, spec: DeviceSpec) -> float:
        """Return the GPU time of a minibatch at the top clocks, in seconds; ``wanted.seconds`` is ignored."""
        sizes, exponents = _build_terms(wanted, spec, len(self.logs))
        factors = _build_factors(wanted, self.boards, self.networks)
        total = np.exp(exponents @ self.logs) @ sizes
        return float(total * np.exp(factors @ self.logs))


def fit_rates(observations: Sequence[RateObservation], specs: Mapping[str, DeviceSpec]) -> GpuRates:
    """Fit the most probable rates (maximum a posteriori) by Gauss-Newton steps.

    ``specs`` must contain every observed board.
    """
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
    """Return the log misfits (m,) and the derivatives (m, n) of the log predictions."""
    misfit, slopes = np.zeros(len(observations)), np.zeros((len(observations), len(rates.logs)))
    for row, one in enumerate(observations):
        sizes, exponents = _build_terms(one, specs[one.device], len(rates.logs))
        factors = _build_factors(one, rates.boards, rates.networks)
        summands = sizes * np.exp(exponents @ rates.logs)
        total = summands.sum()
        misfit[row] = np.log(one.seconds) - np.log(total) - factors @ rates.logs
        slopes[row] = summands @ exponents / total + factors
    return misfit, slopes


_TERM_INDEX = {name: i for i, name in enumerate(EFFICIENCIES)}


def _build_terms(one: RateObservation, spec: DeviceSpec, width: int) -> tuple[Floats, Floats]:
    """Return the summands of a minibatch's time: ``sizes`` (7,), each multiplied by exp(``exponents`` (7, n) @ logs).

    Sizes are seconds at an efficiency of 1 (launches: operators).
    """
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
    exponents = np.zeros((len(summands), width))
    for row, (_, powers) in enumerate(summands):
        for name, power in powers.items():
            exponents[row, _TERM_INDEX[name]] = power
    return np.array([size for size, _ in summands]), exponents


def _build_factors(one: RateObservation, boards: tuple[str, ...], networks: tuple[str, ...]) -> Floats:
    """Return which factors apply to a minibatch (training, board, network) as zeros and ones, shape (n,)."""
    factors = np.zeros(len(EFFICIENCIES) + len(boards) + len(networks))
    factors[_TERM_INDEX["training"]] = 1.0 if one.training else 0.0
    if one.device in boards:
        factors[len(EFFICIENCIES) + boards.index(one.device)] = 1.0
    if one.network in networks:
        factors[len(EFFICIENCIES) + len(boards) + networks.index(one.network)] = 1.0
    return factors
