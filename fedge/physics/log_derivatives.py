"""Closed-form derivatives of log time and log power by the log-parameters; symbols as in ``time_power_model``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.physics.time_power_model import (
    StepParts,
    compute_power_terms,
    compute_time_parts,
    split_knobs,
    split_parameters,
)
from fedge.types import Floats


def evaluate_log_time(time: Floats, x: Floats) -> tuple[Floats, Floats]:
    """Evaluate the log of the step time and its derivatives.

    Args:
        time: Log time parameters, shape (..., 11).
        x: Knobs as shares of the top mode, shape (..., n, 4).

    Returns:
        Log seconds, shape (..., n), and derivatives by the parameters, shape (..., 11, n).
    """
    parts = compute_time_parts(time, x)
    c, f, _, m = split_knobs(x)
    _, _, q1, k, beta, kappa, delta, _, q2, _, e = split_parameters(time)
    t, overlapped = parts.total_s, parts.overlapped_s
    by_math, by_mem, by_q1 = _differentiate_norm(1.0 + q1, parts.gpu_s, parts.math_s, parts.mem_s)
    by_gpu, by_prep, by_launch, by_q2 = _differentiate_norm(
        1.0 + q2, overlapped, parts.gpu_s, parts.prep_s, parts.launch_s
    )
    per_prep = k * c**-beta / parts.prep_s
    rows = [
        by_gpu * by_math,
        by_gpu * by_mem,
        by_gpu * by_q1 * q1,
        by_prep,
        by_prep * -beta * np.log(c),
        by_prep * per_prep * kappa / m,
        by_prep * per_prep * delta / (c * f * f),
        by_launch,
        by_q2 * q2,
        parts.host_s / overlapped,
        e / overlapped,
    ]
    return np.log(t), _scale_rows(rows, overlapped / t)


def evaluate_log_power(power: Floats, parts: StepParts, x: Floats) -> tuple[Floats, Floats]:
    """Evaluate the log of module power and its derivatives.

    Args:
        power: Log power parameters, shape (..., 13).
        parts: Parts of the step time at the same modes.
        x: Knobs as shares of the top mode, shape (..., n, 4).

    Returns:
        Log watts, shape (..., n), and derivatives by the parameters, shape (..., 13, n).
    """
    _, f, g, m = split_knobs(x)
    _, _, _, _, af, _, _, _, r, ag, _, _, am = split_parameters(power)
    static, cores, gpu, mem, cores_use, host, gpu_use, math, mem_use = terms = compute_power_terms(power, parts, x)
    total = terms.sum(axis=0)
    rows = [
        static,
        cores,
        cores_use,
        host,
        (cores + cores_use + host) * np.log(f) * af,
        gpu,
        gpu_use,
        math,
        gpu_use * np.log(parts.gpu_s / parts.total_s) * r,
        (gpu + gpu_use + math) * np.log(g) * ag,
        mem,
        mem_use,
        mem * np.log(m) * am,
    ]
    return np.log(total), _scale_rows(rows, 1.0 / total)


def _scale_rows(rows: Sequence[Floats], factor: Floats) -> Floats:
    """Return k rows (..., n) times a factor (..., n), joined to shape (..., k, n)."""
    scaled = np.empty((*factor.shape[:-1], len(rows), factor.shape[-1]))
    for place, row in enumerate(rows):
        np.multiply(row, factor, out=scaled[..., place, :])
    return scaled


def _differentiate_norm(q: Floats | float, joined: Floats, *terms: Floats) -> list[Floats]:
    """Return the derivatives of log ``joined`` (a q-norm) by the log of each term, then by q itself."""
    by_term = [(term / joined) ** q for term in terms]
    by_q = sum((s * np.log(term / joined) for s, term in zip(by_term, terms, strict=True)), np.zeros_like(joined)) / q
    return [*by_term, by_q]
