"""Expansion of narrow clients' results, so that an averaging strategy yields each element's mean over its holders.

Symbols, element by element: g the model sent, theta_i a client's result, n_i its weight, m_i 1 where the client's
network holds the element and 0 where it does not. A strategy that averages by weight is given
    theta'_i = g + m_i (theta_i - g) sum_j n_j / sum_j n_j m_j,
of which sum_i n_i theta'_i / sum_i n_i is g + sum_i n_i m_i (theta_i - g) / sum_i n_i m_i: the mean over the clients
that hold the element, and g where no client does.

References:
    Diao, Ding, Tarokh: HeteroFL, arXiv 2010.01264, algorithm 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats, NamedArrays
from fedge.worker.subnetwork_arrays import Shapes, array_shapes, leading_slices, take_leading, write_leading
from server.aggregation.aggregator import Contribution

NarrowShapes = Callable[[float], Mapping[str, tuple[int, ...]]]
"""Function from the width of a narrow network to the shapes of its arrays, by name."""


def take_leading_part(arrays: NamedArrays, like: NamedArrays) -> NamedArrays:
    """Return the leading part of ``arrays`` with the shapes of ``like``; ``arrays`` itself if shapes are equal."""
    shapes = array_shapes(like)
    return arrays if shapes == array_shapes(arrays) else take_leading(arrays, shapes)


def expand_contributions(arrays: NamedArrays, contributions: Sequence[Contribution]) -> tuple[Contribution, ...]:
    """Expand contributions to the size of the model, ready to be averaged.

    Contributions are returned unchanged, bit for bit, if all have the shapes of the model.
    """
    results = expand_results(arrays, [c.arrays for c in contributions], [c.weight for c in contributions])
    return tuple(dataclasses.replace(c, arrays=result) for c, result in zip(contributions, results, strict=True))


def expand_results(
    base: NamedArrays, results: Sequence[NamedArrays], weights: Sequence[float]
) -> tuple[NamedArrays, ...]:
    """Return theta'_i of every result; integer arrays are only written into the leading part of ``base``.

    Args:
        base: The model g that was sent, by array name.
        results: The results theta_i, full or narrow.
        weights: The weight n_i of each result.
    """
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
