"""Weighting results that are not alike: normalised averaging of unlike work, and late results on today's model; pure.

Symbols: x the model sent, x_i a client's result, d_i = x_i - x, tau_i its minibatches, n_i its samples, p_i = n_i / sum
n, a_i the norm of the weights with which its gradients entered d_i, eta the learning rate, rho the momentum, mu the
proximal pull, s the rounds by which a result is late.

Normalised averaging (FedNova; Wang et al. 2020, arXiv 2007.07481, section 4): x + tau_eff sum_i p_i d_i / a_i with
tau_eff = sum_i p_i a_i, as long a step as plain averaging makes. A client that did more minibatches then pulls no
harder in its own direction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.types import NamedArrays
from server.aggregation.aggregator import Contribution
from server.aggregation.narrow_results import take_leading_part


@dataclass(frozen=True, slots=True)
class LocalSgd:
    """How clients descend: momentum rho, and eta times mu."""

    momentum: float = 0.0
    pull: float = 0.0


def gradient_norm(steps: int, sgd: LocalSgd) -> float:
    """a_i: the sum of the weights with which ``steps`` gradients enter the client's change, in units of eta.

    For plain SGD it is ``steps``; with momentum (steps - rho (1 - rho^steps) / (1 - rho)) / (1 - rho); with the
    proximal pull (1 - (1 - eta mu)^steps) / (eta mu): the paper's section 4. Found by playing ``steps`` gradients of
    one, which gives all of these and both together.
    """
    speed = moved = 0.0
    for _ in range(steps):
        speed = sgd.momentum * speed + 1.0 - sgd.pull * moved
        moved += speed
    return moved


def normalise_contributions(
    arrays: NamedArrays, learnt: Collection[str], contributions: Sequence[Contribution], sgd: LocalSgd
) -> tuple[Contribution, ...]:
    """The contributions with x + d_i tau_eff / a_i in place of x_i; any strategy may average them then.

    Untouched, to the last bit, when all did equally many steps. Only ``learnt`` arrays are scaled, the others are
    statistics or counters.
    """
    if len({contribution.steps for contribution in contributions}) <= 1:
        return tuple(contributions)
    norms = [gradient_norm(contribution.steps, sgd) for contribution in contributions]
    weights = [contribution.weight for contribution in contributions]
    effective = sum(w * a for w, a in zip(weights, norms, strict=True)) / sum(weights)
    return tuple(
        dataclasses.replace(contribution, arrays=_scale_change(arrays, learnt, contribution.arrays, effective / norm))
        for contribution, norm in zip(contributions, norms, strict=True)
    )


def _scale_change(arrays: NamedArrays, learnt: Collection[str], result: NamedArrays, factor: float) -> NamedArrays:
    """The change times ``factor``, x + factor (x_i - x), for the learnt arrays, worked out in float64."""
    arrays = take_leading_part(arrays, result)
    return {
        name: _add_to(arrays[name], factor * _subtract(value, arrays[name])) if name in learnt else value
        for name, value in result.items()
    }


def compute_change(arrays: NamedArrays, learnt: Collection[str], result: NamedArrays) -> NamedArrays:
    """d_i for the learnt arrays in their own type, the others as they are: what is kept of a late result.

    Of a narrow result, like all here, the change of the part that it is about.
    """
    arrays = take_leading_part(arrays, result)
    return {
        name: np.asarray(_subtract(value, arrays[name]), dtype=value.dtype) if name in learnt else value
        for name, value in result.items()
    }


def apply_change(arrays: NamedArrays, learnt: Collection[str], changes: NamedArrays) -> NamedArrays:
    """``arrays`` with the ``changes`` of an earlier round: today's model plus d_i."""
    arrays = take_leading_part(arrays, changes)
    return {
        name: _add_to(arrays[name], np.asarray(value, dtype=np.float64)) if name in learnt else value
        for name, value in changes.items()
    }


def staleness_discount(rounds_late: int, exponent: float) -> float:
    """(1 + s)^-exponent."""
    return float((1 + rounds_late) ** -exponent)


def _subtract(value: np.ndarray, base: np.ndarray) -> np.ndarray:
    return np.asarray(value, dtype=np.float64) - np.asarray(base, dtype=np.float64)


def _add_to(base: np.ndarray, by: np.ndarray) -> np.ndarray:
    return np.asarray(base + by, dtype=base.dtype)
