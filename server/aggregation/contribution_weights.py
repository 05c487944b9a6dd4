"""Weighting of unequal results: normalised averaging (FedNova), late results, and those of narrow networks. Pure.

Symbols: x the model sent, x_i a client's result, d_i = x_i - x, tau_i its number of steps, n_i its samples, p_i = n_i /
sum n, a_i the norm of the weights with which its gradients enter d_i, eta the learning rate, rho the momentum, mu the
coefficient of the proximal term, s the rounds by which a result is late; element by element, m_i 1 where the client's
network holds the element and 0 where it does not.

Normalised averaging computes x + tau_eff sum_i p_i d_i / a_i with tau_eff = sum_i p_i a_i, which is as long a step as
plain averaging makes. A client that ran more steps then has no larger influence on the direction.

For narrow networks, a strategy that averages by weight is given

    x'_i = x + m_i d_i sum_j n_j / sum_j n_j m_j,

of which sum_i n_i x'_i / sum_i n_i is x + sum_i n_i m_i d_i / sum_i n_i m_i: the mean over the clients that hold the
element, and x where no client does.

References:
    Wang et al. 2020: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization (FedNova),
    arXiv 2007.07481, section 4. Diao, Ding, Tarokh: HeteroFL, arXiv 2010.01264, algorithm 1 (narrow networks).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats, NamedArrays
from fedge.worker.subnetwork_arrays import Shapes, array_shapes, leading_slices, take_leading_part, write_leading
from server.aggregation.aggregator import Contribution


@dataclass(frozen=True, slots=True)
class LocalSgd:
    """Parameters of the clients' SGD.

    Attributes:
        pull: The product of learning rate eta and proximal coefficient mu.
    """

    momentum: float = 0.0
    pull: float = 0.0


def gradient_norm(steps: int, sgd: LocalSgd) -> float:
    """Return a_i, the sum of the weights with which ``steps`` gradients enter the client's change, in units of eta.

    For plain SGD it is ``steps``; with momentum (steps - rho (1 - rho^steps) / (1 - rho)) / (1 - rho); with the
    proximal term (1 - (1 - eta mu)^steps) / (eta mu). Computed as a power of the matrix of an SGD step on a gradient of
    one, which covers these cases and their combination.

    References:
        Wang et al. 2020, arXiv 2007.07481, section 4.
    """
    step = np.array([[sgd.momentum, -sgd.pull, 1.0], [sgd.momentum, 1.0 - sgd.pull, 1.0], [0.0, 0.0, 1.0]])
    return float(np.linalg.matrix_power(step, steps)[1, 2])


def normalise_contributions(
    arrays: NamedArrays,
    learnt: Collection[str],
    contributions: Sequence[Contribution],
    sgd: LocalSgd,
) -> tuple[Contribution, ...]:
    """Replace each result x_i by x + d_i tau_eff / a_i, so that any averaging strategy computes FedNova.

    Only the trainable arrays ``learnt`` are scaled. Contributions are returned unchanged, bit for bit, if all clients
    ran the same number of steps.
    """
    if len({contribution.steps for contribution in contributions}) <= 1:
        return tuple(contributions)
    norms = [gradient_norm(contribution.steps, sgd) for contribution in contributions]
    weights = [contribution.weight for contribution in contributions]
    effective = sum(w * a for w, a in zip(weights, norms, strict=True)) / sum(weights)
    factors = [effective / norm if norm > 0 else 1.0 for norm in norms]  # no step, no change
    return tuple(
        dataclasses.replace(contribution, arrays=_scale_change(arrays, learnt, contribution.arrays, factor))
        for contribution, factor in zip(contributions, factors, strict=True)
    )


def _scale_change(arrays: NamedArrays, learnt: Collection[str], result: NamedArrays, factor: float) -> NamedArrays:
    """Return x + factor (x_i - x) for the trainable arrays, computed in float64."""
    arrays = take_leading_part(arrays, result)
    return {
        name: _add_to(arrays[name], factor * _subtract(value, arrays[name])) if name in learnt else value
        for name, value in result.items()
    }


def compute_change(arrays: NamedArrays, learnt: Collection[str], result: NamedArrays) -> NamedArrays:
    """Return the change d_i of the trainable arrays ``learnt``, in their own type, and the other arrays as they are.

    ``arrays`` is the model that was sent; a narrow result is compared with its leading part.
    """
    arrays = take_leading_part(arrays, result)
    return {
        name: np.asarray(_subtract(value, arrays[name]), dtype=value.dtype) if name in learnt else value
        for name, value in result.items()
    }


def apply_change(arrays: NamedArrays, learnt: Collection[str], changes: NamedArrays) -> NamedArrays:
    """Return the current model plus ``changes``, the output of ``compute_change`` in an earlier round.

    For a narrow result, the leading part of the model is taken.
    """
    arrays = take_leading_part(arrays, changes)
    return {
        name: _add_to(arrays[name], np.asarray(value, dtype=np.float64)) if name in learnt else value
        for name, value in changes.items()
    }


def staleness_discount(staleness: float, exponent: float) -> float:
    """Return the weight (1 + staleness)^-exponent of a result that is as many rounds late, or models old.

    A float at a time: on an array, numpy's vectorised power differs in the last bit from one processor to the next.
    """
    return float((1.0 + staleness) ** -exponent)


def _subtract(value: np.ndarray, base: np.ndarray) -> np.ndarray:
    return np.asarray(value, dtype=np.float64) - np.asarray(base, dtype=np.float64)


def _add_to(base: np.ndarray, by: np.ndarray) -> np.ndarray:
    return np.asarray(base + by, dtype=base.dtype)


NarrowShapes = Callable[[float], Mapping[str, tuple[int, ...]]]
"""Function from the width of a narrow network to the shapes of its arrays, by name."""


def expand_contributions(arrays: NamedArrays, contributions: Sequence[Contribution]) -> tuple[Contribution, ...]:
    """Expand contributions to the size of the model, ready to be averaged.

    Contributions are returned unchanged, bit for bit, if all have the shapes of the model.
    """
    results = expand_results(arrays, [c.arrays for c in contributions], [c.weight for c in contributions])
    return tuple(dataclasses.replace(c, arrays=result) for c, result in zip(contributions, results, strict=True))


def expand_results(
    base: NamedArrays, results: Sequence[NamedArrays], weights: Sequence[float]
) -> tuple[NamedArrays, ...]:
    """Return x'_i of every result; integer arrays are only written into the leading part of ``base``."""
    full = array_shapes(base)
    shapes = [array_shapes(result) for result in results]
    if all(shape == full for shape in shapes):
        return tuple(results)
    factors = {name: _compute_factors(name, full, shapes, weights) for name, value in base.items() if _is_float(value)}
    return tuple(_expand_result(base, result, factors) for result in results)


def _is_float(value: NDArray[np.generic]) -> bool:
    return bool(np.issubdtype(value.dtype, np.floating))


def _compute_factors(name: str, full: Shapes, shapes: Sequence[Shapes], weights: Sequence[float]) -> Floats:
    """Return sum_j n_j / sum_j n_j m_j, with the shape of the array; exactly 1 where all clients hold the element."""
    holders, held = np.zeros(full[name], dtype=np.int64), np.zeros(full[name])
    for shape, weight in zip(shapes, weights, strict=True):
        block = leading_slices({name: full[name]}, {name: shape[name]})[name]
        holders[block] += 1
        held[block] += weight
    factors = np.ones(full[name])
    np.divide(sum(weights), held, out=factors, where=(holders < len(shapes)) & (held > 0))
    return factors


def _expand_result(base: NamedArrays, result: NamedArrays, factors: Mapping[str, Floats]) -> NamedArrays:
    moved = {}
    for name, value in take_leading_part(base, result).items():
        own: NDArray[Any] = np.asarray(result[name])
        factor = factors[name][tuple(slice(0, n) for n in own.shape)] if name in factors else np.ones(())
        start = np.asarray(value, dtype=np.float64)
        moved[name] = np.where(factor == 1.0, own, start + (own - start) * factor).astype(own.dtype)
    return write_leading(base, moved)
