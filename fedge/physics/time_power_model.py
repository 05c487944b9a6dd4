"""Smooth physical model of one minibatch's time and of module power over a board's four knobs.

Symbols (knobs are shares of the board's maximum; every parameter is positive and held as its natural logarithm):

======  ========================  ==========================================================================
c f     cores, CPU clock          share of the largest count and of the top clock
g m     GPU and memory clock      share of the top clock
a       ``gpu_s``                 GPU arithmetic at the top clocks, seconds
b       ``mem_s``                 GPU memory traffic at the top clocks, seconds
q1      ``gpu_mem_overlap``       1 + its value is the norm that joins a/g and b/m (1: sequential, infinite: overlapped)
k       ``prep_s``                loading and preprocessing on all cores at the top clocks, seconds
beta    ``prep_core_exponent``    how preprocessing scales with the cores, c**-beta
kappa   ``prep_mem_share``        preprocessing that follows the memory clock, relative to k
delta   ``prep_crowding``         extra cost of few slow cores, grows as 1 / (c f)
w       ``launch_s``              kernel launches by one core, overlapped with the GPU, seconds
q2      ``stage_overlap``         1 + its value is the norm that joins the GPU, preprocessing and launches
d       ``host_s``                host work without overlap, follows the CPU clock, seconds
e       ``fixed_s``               time that depends on no clock, seconds
======  ========================  ==========================================================================

G = ((a/g)^q1 + (b/m)^q1)^(1/q1),  C = k c^-beta (1/f + delta/(c f^2) + kappa/m),  W = w/f
t = (G^q2 + C^q2 + W^q2)^(1/q2) + d/f + e

Power is the sum of idle terms (``*_idle_w``) and busy terms (``*_busy_w``), the latter weighted by each part's share of
the step: u_C = C/t, u_D = (W + d/f)/t, u_G = G/t, u_A = (a/g)/t, u_M = (b/m)/t. Voltage rises with clocks, hence
F = f^(1+cpu_exponent), H = g^(1+gpu_exponent), L = m^(1+mem_exponent), and r = gpu_use_exponent:

P = static + c F (cores_idle + cores_busy u_C) + host_busy u_D F
    + H (gpu_idle + gpu_busy u_G^r + gpu_math u_A) + mem_idle L + mem_busy u_M m
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedge.types import Floats, Modes, PowerMode

TIME_NAMES = (
    "gpu_s",
    "mem_s",
    "gpu_mem_overlap",
    "prep_s",
    "prep_core_exponent",
    "prep_mem_share",
    "prep_crowding",
    "launch_s",
    "stage_overlap",
    "host_s",
    "fixed_s",
)
"""Names of the time parameters, in the order of ``Coefficients.time``."""
POWER_NAMES = (
    "static_w",
    "cores_idle_w",
    "cores_busy_w",
    "host_busy_w",
    "cpu_exponent",
    "gpu_idle_w",
    "gpu_busy_w",
    "gpu_math_w",
    "gpu_use_exponent",
    "gpu_exponent",
    "mem_idle_w",
    "mem_busy_w",
    "mem_exponent",
)
"""Names of the power parameters, in the order of ``Coefficients.power``."""
IDLE_TERMS = 4
"""Number of power terms that do not depend on utilisation: static, cores, GPU, memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """Natural logarithms of the model's parameters.

    Attributes:
        time: In the order of ``TIME_NAMES``, shape (11,).
        power: In the order of ``POWER_NAMES``, shape (13,).
    """

    time: Floats
    power: Floats


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """A step's time and its parts in seconds, arrays of shape (..., n); symbols as in the module's docstring.

    Attributes:
        total_s: t.
        overlapped_s: Joint time of G, C and W.
        gpu_s: G.
        math_s: a/g.
        mem_s: b/m.
        prep_s: C.
        launch_s: W.
        host_s: d/f.
    """

    total_s: Floats
    overlapped_s: Floats
    gpu_s: Floats
    math_s: Floats
    mem_s: Floats
    prep_s: Floats
    launch_s: Floats
    host_s: Floats


def knob_shares(maxn: PowerMode, modes: Modes) -> Floats:
    """Return the knobs as shares of the board's top mode, shape (n, 4).

    Args:
        maxn: The board's top mode.
        modes: The n modes.
    """
    top = np.array([maxn.cores, maxn.cpu_mhz, maxn.gpu_mhz, maxn.mem_mhz])
    x: Floats = modes.knobs / top
    return x


def split_parameters(logs: Floats) -> Iterator[Floats]:
    """Return an iterator over parameters given as logs of shape (..., k): k arrays of shape (..., 1)."""
    values = np.exp(logs)[..., None]
    return (values[..., place, :] for place in range(logs.shape[-1]))


def split_knobs(x: Floats) -> Iterator[Floats]:
    """Return an iterator over the knobs of modes of shape (..., n, 4): four arrays of shape (..., n)."""
    return (x[..., knob] for knob in range(x.shape[-1]))


def compute_time_parts(time: Floats, x: Floats) -> StepParts:
    """Compute the parts of the step time.

    Args:
        time: Log time parameters, shape (..., 11).
        x: Knobs as shares of the top mode, shape (..., n, 4).

    Returns:
        Parts of shape (..., n); the leading axes of both arguments are broadcast.
    """
    c, f, g, m = split_knobs(x)
    a, b, q1, k, beta, kappa, delta, w, q2, d, e = split_parameters(time)
    math_s, mem_s = a / g, b / m
    gpu_s = q_norm(1.0 + q1, math_s, mem_s)
    prep_s = k * c**-beta * (1.0 / f + delta / (c * f * f) + kappa / m)
    launch_s, host_s = w / f, d / f
    overlapped_s = q_norm(1.0 + q2, gpu_s, prep_s, launch_s)
    return StepParts(
        overlapped_s + host_s + e,
        overlapped_s=overlapped_s,
        gpu_s=gpu_s,
        math_s=math_s,
        mem_s=mem_s,
        prep_s=prep_s,
        launch_s=launch_s,
        host_s=host_s,
    )


def compute_power_terms(power: Floats, parts: StepParts, x: Floats) -> Floats:
    """Compute the terms of module power in watts, shape (9, ..., n): the four idle terms, then the five busy ones.

    Args:
        power: Log power parameters, shape (..., 13).
        parts: Parts of the step time at the same modes.
        x: Knobs as shares of the top mode, shape (..., n, 4).
    """
    c, f, g, m = split_knobs(x)
    static, cores, cores_use, host, af, gpu, gpu_use, math, r, ag, mem, mem_use, am = split_parameters(power)
    cpu_on, gpu_on = f ** (1.0 + af), g ** (1.0 + ag)
    t = parts.total_s
    busy = (
        cores_use * c * cpu_on * (parts.prep_s / t),
        host * cpu_on * ((parts.launch_s + parts.host_s) / t),
        gpu_use * gpu_on * (parts.gpu_s / t) ** r,
        math * gpu_on * (parts.math_s / t),
        mem_use * m * (parts.mem_s / t),
    )
    idle = (static, cores * c * cpu_on, gpu * gpu_on, mem * m ** (1.0 + am))
    terms = np.empty((len(idle) + len(busy), *busy[0].shape))
    for row, term in zip(terms, (*idle, *busy), strict=True):
        row[...] = term
    return terms


def compute_step_s(coefficients: Coefficients, maxn: PowerMode, modes: Modes) -> Floats:
    """Compute the time per step in every mode, in seconds, shape (n,).

    Args:
        coefficients: The model's log-parameters.
        maxn: The board's top mode.
        modes: The n modes.
    """
    return compute_time_parts(coefficients.time, knob_shares(maxn, modes)).total_s


def compute_power_w(coefficients: Coefficients, maxn: PowerMode, modes: Modes) -> Floats:
    """Compute module power during a step in every mode, in watts, shape (n,).

    Args:
        coefficients: The model's log-parameters.
        maxn: The board's top mode.
        modes: The n modes.
    """
    x = knob_shares(maxn, modes)
    total: Floats = compute_power_terms(coefficients.power, compute_time_parts(coefficients.time, x), x).sum(axis=0)
    return total


def compute_idle_ratio(coefficients: Coefficients, maxn: PowerMode, modes: Modes) -> Floats:
    """Compute idle power in every mode relative to idle power at MAXN, shape (n,).

    Args:
        coefficients: The model's log-parameters.
        maxn: The board's top mode.
        modes: The n modes.
    """
    x = np.vstack([np.ones(4), knob_shares(maxn, modes)])
    idle_w = compute_power_terms(coefficients.power, compute_time_parts(coefficients.time, x), x)[:IDLE_TERMS].sum(
        axis=0
    )
    shape: Floats = idle_w[1:] / idle_w[0]
    return shape


def q_norm(q: Floats | float, *terms: Floats) -> Floats:
    """Return the ``q``-norm of positive terms, computed without overflow for large q.

    Args:
        q: Exponent, at least 1: the sum of the terms for 1, their maximum in the limit.
        *terms: Arrays of one shape, above 0.
    """
    largest = terms[0]
    for term in terms[1:]:
        largest = np.maximum(largest, term)
    joined: Floats = largest * sum((term / largest) ** q for term in terms) ** (1.0 / q)
    return joined
