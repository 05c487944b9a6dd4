"""Effective GPU rates by kind of layer, fitted to all measured networks and boards.

A minibatch's GPU time at the top clocks is a sum over the resources that bound its layers, times factors of the board,
the network and training:

    t = generation * board * network * [training] * sum_j work_j / (rate of the data sheet_j * efficiency_j) [* mixed_j]

The logarithms of the efficiencies and of the factors are fitted by least squares with Gaussian priors, so that a few
observations change them only slightly. A network, board or generation of GPUs without observations has the factor 1.
Boards whose GPUs are of one generation share its factor, since they share libraries and the way kernels are run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.types import DeviceSpec, Floats, OperationCounts

PASSES = {"train": 3.0, "infer": 1.0}
"""Forward passes that a minibatch is equivalent to: a training step also computes gradients of inputs and of
weights."""
OPTIMISER_PASSES = 5.0
"""Times that SGD with momentum moves the weights; see ``count_optimiser_passes``."""
MIXED_FLOP, MIXED_BYTES = 0.25, 0.5
"""Time in mixed precision relative to single precision: arithmetic on tensor cores, and half as many bytes. GPUs
without tensor cores accumulate halves in single precision, so that only the bytes become fewer.

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
    "tensor_cores": (1.5, 0.35),
}
"""Prior mean and spread (log units) of each efficiency; ``fedge study transfer`` shows the resulting errors.

The first four are shares of the data sheet's peak. Then follow: memory passes over activations in training, relative to
three times those of inference; seconds per operator launch at 1.3 GHz; the time of a training step relative to
three forward passes; and how much faster convolutions in single precision are on ``TF32_GENERATIONS``. Wider spreads
follow the measurements more closely but transfer worse to unknown networks."""
TENSOR_CORE_GENERATIONS = ("Volta", "Ampere")
TF32_GENERATIONS = ("Ampere",)
"""Generations on whose tensor cores cuDNN convolves in single precision (TF32) by default.

Their peak is four times that of the other cores, of which Winograd's algorithm on those leaves 1.8 for 3 x 3 kernels
(2.25 times fewer products). The prior lies between that and no gain. It was kept after a look at 1.5 and 2 in `fedge
study transfer --part layers`; chosen without the judged table, it is not confirmed.
"""
FACTOR_SD = 0.25
"""Prior spread of the factors of boards, generations and networks, log units. Default; larger values explain more of a
misfit by the individual board or network, and less by the shared efficiencies."""
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
        optimizer_state: Elements that the optimiser keeps per parameter.
    """

    device: str
    network: str
    counted: OperationCounts
    batch_size: int
    training: bool
    seconds: float
    mixed: bool = False
    slope: bool = False
    optimizer_state: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class GpuRates:
    """Fitted efficiencies and factors, with the names of what has a factor, in their order.

    Attributes:
        logs: Natural logarithms of the efficiencies, then of the factors.
        factors: Boards, generations of GPUs and networks.
    """

    logs: Floats
    factors: tuple[str, ...]

    def predict_s(self, wanted: RateObservation, spec: DeviceSpec) -> float:
        """Return the GPU time of a minibatch at the top clocks, in seconds; ``wanted.seconds`` is ignored."""
        sizes, exponents = _build_terms(wanted, spec, len(self.logs))
        factors = _build_factors(wanted, spec, self.factors)
        total = np.exp(exponents @ self.logs) @ sizes
        return float(total * np.exp(factors @ self.logs))


def fit_rates(observations: Sequence[RateObservation], specs: Mapping[str, DeviceSpec]) -> GpuRates:
    """Fit the most probable rates (maximum a posteriori) by Gauss-Newton steps.

    ``specs`` must contain every observed board.
    """
    factors = tuple(sorted({name for one in observations for name in _list_factors(one, specs[one.device])}))
    prior = np.concatenate([np.log([value for value, _ in EFFICIENCIES.values()]), np.zeros(len(factors))])
    spread = np.concatenate([[sd for _, sd in EFFICIENCIES.values()], np.full(len(factors), FACTOR_SD)])
    rates = GpuRates(prior, factors)
    for _ in range(_STEPS):
        misfit, slope = _linearize(rates, observations, specs)
        left = np.concatenate([misfit / MISFIT_SD, (prior - rates.logs) / spread])
        by = np.vstack([slope / MISFIT_SD, np.diag(1.0 / spread)])
        step = np.linalg.lstsq(by, left, rcond=None)[0]
        rates = GpuRates(rates.logs + step, factors)
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
        factors = _build_factors(one, specs[one.device], rates.factors)
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
    flops = spec.gpu_gflops.value * 1e9 / (mixed_flop_share(spec) if one.mixed else 1.0)
    bytes_ = spec.mem_gbps.value * 1e9 / (MIXED_BYTES if one.mixed else 1.0)
    updating = PASSES["train"] + count_optimiser_passes(one.optimizer_state)
    moves = 0.0 if one.slope else (updating if one.training else 1.0)
    moved = passes * batch * has.moved_bytes / bytes_
    once = 0.0 if one.slope else passes * has.operators * _LAUNCH_CLOCK_MHZ / max(spec.gpu_mhz)
    tensor_cores = {"tensor_cores": -1.0} if find_gpu_generation(spec) in TF32_GENERATIONS and not one.mixed else {}
    summands: list[tuple[float, dict[str, float]]] = [
        (passes * batch * has.dense_flop / flops, {"dense": -1.0, **tensor_cores}),
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


def count_optimiser_passes(optimizer_state: float) -> float:
    """Return how often an optimiser moves the weights.

    It reads weights, gradients and its state, and writes weights and state.
    """
    return 3.0 + 2.0 * optimizer_state


def mixed_flop_share(spec: DeviceSpec) -> float:
    """Return the time of arithmetic in mixed precision relative to single precision on a board's GPU."""
    return MIXED_FLOP if find_gpu_generation(spec) in TENSOR_CORE_GENERATIONS else 1.0


def find_gpu_generation(spec: DeviceSpec) -> str:
    """Return the generation of a board's GPU by its data sheet, such as ``Ampere``; empty if it is not known."""
    named = (re.search(r"CUDA cores \((\w+)\)", one) for one in spec.accelerators)
    return next((found[1] for found in named if found), "")


def _list_factors(one: RateObservation, spec: DeviceSpec) -> tuple[str, ...]:
    """Return the names of what has a factor on a minibatch's time: its board, its network, its GPU's generation."""
    generation = find_gpu_generation(spec)
    own = f"board {one.device}", f"network {one.network}"
    return (*own, f"generation {generation}") if generation else own


def _build_factors(one: RateObservation, spec: DeviceSpec, names: tuple[str, ...]) -> Floats:
    """Return which factors apply to a minibatch (training, and those of ``names``) as zeros and ones, shape (n,)."""
    factors = np.zeros(len(EFFICIENCIES) + len(names))
    factors[_TERM_INDEX["training"]] = 1.0 if one.training else 0.0
    own = _list_factors(one, spec)
    factors[len(EFFICIENCIES) :] = [name in own for name in names]
    return factors
