"""A smooth model of one minibatch's time and of module power over a board's four knobs, with physical terms only.

Symbols (knobs are shares of the board's maximum; every parameter is positive and held as its natural logarithm):

======  ========================  ==========================================================================
c f     cores, CPU clock          share of the largest count and of the top clock
g m     GPU and memory clock      share of the top clock
a       ``gpu_s``                 GPU arithmetic at the top clocks, seconds
b       ``mem_s``                 GPU memory traffic at the top clocks, seconds
q1      ``gpu_mem_overlap``       1 + its value is the norm that joins a/g and b/m (1: in turn, infinite: overlapped)
k       ``prep_s``                loading and preprocessing on all cores at the top clocks, seconds
beta    ``prep_core_exponent``    how preprocessing scales with the cores, c**-beta
kappa   ``prep_mem_share``        preprocessing that follows the memory clock, relative to k
delta   ``prep_crowding``         extra cost of few slow cores, grows as 1 / (c f)
w       ``launch_s``              kernel launches by one core, overlapped with the GPU, seconds
q2      ``stage_overlap``         1 + its value is the norm that joins the GPU, preprocessing and launches
d       ``host_s``                host work that nothing hides, follows the CPU clock, seconds
e       ``fixed_s``               time that no clock changes, seconds
======  ========================  ==========================================================================

G = ((a/g)^q1 + (b/m)^q1)^(1/q1),  C = k c^-beta (1/f + delta/(c f^2) + kappa/m),  W = w/f
t = (G^q2 + C^q2 + W^q2)^(1/q2) + d/f + e

Power adds what is on (``*_idle_w``) and what is used (``*_busy_w``), the latter weighted with each part's share of the
step: u_C = C/t, u_D = (W + d/f)/t, u_G = G/t, u_A = (a/g)/t, u_M = (b/m)/t. Clocks bring voltage with them, hence
F = f^(1+cpu_exponent), H = g^(1+gpu_exponent), L = m^(1+mem_exponent), and r = gpu_use_exponent:

P = static + c F (cores_idle + cores_busy u_C) + host_busy u_D F
    + H (gpu_idle + gpu_busy u_G^r + gpu_math u_A) + mem_idle L + mem_busy u_M m
"""

from __future__ import annotations

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
"""The time parameters, in the order of ``Coefficients.time``."""
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
"""The power parameters, in the order of ``Coefficients.power``."""
IDLE_TERMS = 4
"""How many of the power terms need no use of the board: static, cores, GPU, memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """Natural logarithms of the parameters: ``time`` of shape (11,), ``power`` of shape (13,)."""

    time: Floats
    power: Floats


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """A step's time and its parts in seconds, arrays of shape (n,); G, a/g, b/m, C, W and d/f of the table above."""

    total_s: Floats
    overlapped_s: Floats
    """What G, C and W take together."""
    gpu_s: Floats
    math_s: Floats
    mem_s: Floats
    prep_s: Floats
    launch_s: Floats
    host_s: Floats


def knob_shares(maxn: PowerMode, modes: Modes) -> Floats:
    """The knobs as shares of the board's maximum, shape (n, 4)."""
    top = np.array([maxn.cores, maxn.cpu_mhz, maxn.gpu_mhz, maxn.mem_mhz])
    x: Floats = modes.knobs / top
    return x


def compute_time_parts(time: Floats, x: Floats) -> StepParts:
    """The step's parts at shares ``x`` (n, 4) for log-parameters ``time`` (11,)."""
    c, f, g, m = x.T
    a, b, q1, k, beta, kappa, delta, w, q2, d, e = np.exp(time)
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
    """The summands of module power in watts, shape (9, n): the four idle terms first, then the five busy ones."""
    c, f, g, m = x.T
    static, cores, cores_use, host, af, gpu, gpu_use, math, r, ag, mem, mem_use, am = np.exp(power)
    cpu_on, gpu_on = f ** (1.0 + af), g ** (1.0 + ag)
    t = parts.total_s
    terms: Floats = np.stack(
        [
            np.full(len(x), static),
            cores * c * cpu_on,
            gpu * gpu_on,
            mem * m ** (1.0 + am),
            cores_use * c * cpu_on * (parts.prep_s / t),
            host * cpu_on * ((parts.launch_s + parts.host_s) / t),
            gpu_use * gpu_on * (parts.gpu_s / t) ** r,
            math * gpu_on * (parts.math_s / t),
            mem_use * m * (parts.mem_s / t),
        ]
    )
    return terms


def compute_step_s(coefficients: Coefficients, maxn: PowerMode, modes: Modes) -> Floats:
    """Seconds per minibatch in every mode, shape (n,); ``maxn`` is the board with every knob at its top."""
    return compute_time_parts(coefficients.time, knob_shares(maxn, modes)).total_s


def compute_power_w(coefficients: Coefficients, maxn: PowerMode, modes: Modes) -> Floats:
    """Module watts during the minibatch in every mode, shape (n,)."""
    x = knob_shares(maxn, modes)
    total: Floats = compute_power_terms(coefficients.power, compute_time_parts(coefficients.time, x), x).sum(axis=0)
    return total


def compute_idle_ratio(coefficients: Coefficients, maxn: PowerMode, modes: Modes) -> Floats:
    """Modelled power at zero use in every mode, divided by the same at MAXN, shape (n,)."""
    x = np.vstack([np.ones(4), knob_shares(maxn, modes)])
    idle_w = compute_power_terms(coefficients.power, compute_time_parts(coefficients.time, x), x)[:IDLE_TERMS].sum(
        axis=0
    )
    shape: Floats = idle_w[1:] / idle_w[0]
    return shape


def q_norm(q: float, *terms: Floats) -> Floats:
    """The ``q``-norm of positive terms, between their sum (1) and their maximum (infinite); safe for large q."""
    largest = terms[0]
    for term in terms[1:]:
        largest = np.maximum(largest, term)
    joined: Floats = largest * sum((term / largest) ** q for term in terms) ** (1.0 / q)
    return joined
