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

Modes are tabulated as shares of the top mode. The GPU's part depends on the clocks of GPU and memory, the host's on
cores, CPU clock and memory clock. A board with thousands of modes has some fifty combinations of the former and some
hundreds of the latter, so a part is computed once per combination and then looked up for every mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats, Modes, PowerMode

CORES, CPU, GPU, MEM = range(4)
"""Columns of the knobs."""


@dataclass(frozen=True, slots=True, eq=False)
class KnobCombinations:
    """The combinations of some knobs that occur among n modes.

    Attributes:
        x: One mode's shares for each of the u combinations, shape (u, 4), in single or double precision; only the
            combined knobs may be used.
        index: Combination of each mode, shape (n,); None if every mode counts as its own combination.
    """

    x: Floats
    index: NDArray[np.intp] | None = None

    def split(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the shares of cores, CPU, GPU and memory, each of shape (u,)."""
        return self.x[..., CORES], self.x[..., CPU], self.x[..., GPU], self.x[..., MEM]

    def expand(self, values: Floats) -> Floats:
        """Return values per combination, shape (..., u), as values per mode, shape (..., n)."""
        # Every index is right: not to check each saves a quarter of the time.
        return values if self.index is None else values.take(self.index, axis=-1, mode="clip")


@dataclass(frozen=True, slots=True, eq=False)
class KnobTable:
    """n modes as shares of the top mode.

    Attributes:
        x: Shares of cores, CPU, GPU and memory, shape (n, 4).
        host: Combinations of cores, CPU and memory.
        gpu: Combinations of GPU and memory.
        axes: For each knob its values in ascending order, and the place of each mode's value among them, shape (n,).
    """

    x: Floats
    host: KnobCombinations
    gpu: KnobCombinations
    axes: tuple[tuple[Floats, NDArray[np.intp]], ...] = ()

    def select(self, rows: NDArray[np.intp]) -> KnobTable:
        """Return a table of some rows, in which each is its own combination."""
        places = (rows if side.index is None else side.index[rows] for side in (self.host, self.gpu))
        host, gpu = (KnobCombinations(side.x[at]) for side, at in zip((self.host, self.gpu), places, strict=True))
        return KnobTable(self.x[rows], host, gpu)


def as_knob_table(x: Floats | KnobTable) -> KnobTable:
    """Return shares of shape (..., n, 4) as a table in which every mode is its own combination; a table as it is."""
    if isinstance(x, KnobTable):
        return x
    each = KnobCombinations(x)
    return KnobTable(x, each, each)


def tabulate_shares(x: Floats) -> KnobTable:
    """Return shares of shape (n, 4) as a table of their combinations, in single precision.

    Curves of single precision take half of the time and differ by about 1e-6: exponentials and logarithms of double
    precision are not vectorised on most processors.
    """
    axes = tuple(split_axis(knob) for knob in x.T)
    return KnobTable(x, _combine_knobs(x, (CORES, CPU, MEM)), _combine_knobs(x, (GPU, MEM)), axes)


def split_axis(knob: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Return a knob's distinct values in ascending order, and the place of each mode's value among them."""
    values, which = np.unique(knob, return_inverse=True)
    return values, which.reshape(-1)


def _combine_knobs(x: Floats, knobs: Sequence[int]) -> KnobCombinations:
    _, first, index = np.unique(x[:, list(knobs)], axis=0, return_index=True, return_inverse=True)
    return KnobCombinations(x[first].astype(np.float32), index.reshape(-1))


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
class JoinedTerms:
    """A q-norm of positive terms T_i, arrays of one shape.

    Attributes:
        log: Logarithm of the norm N.
        shares: (T_i / N)^q of each term, which add up to 1: also the derivatives of log N by log T_i.
        by_q: Derivative of log N by q.
    """

    log: Floats
    shares: tuple[Floats, ...]
    by_q: Floats


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """A step's time and its parts in seconds; symbols as in the module's docstring.

    Attributes:
        knobs: The n modes.
        total_s: t, shape (..., n).
        overlapped_s: Joint time of G, C and W, shape (..., n).
        gpu_s: G by combination of the GPU's knobs, like the next two.
        math_s: a/g.
        mem_s: b/m.
        prep_s: C by combination of the host's knobs, like the next two.
        launch_s: W.
        host_s: d/f.
    """

    knobs: KnobTable
    total_s: Floats
    overlapped_s: Floats
    gpu_s: Floats
    math_s: Floats
    mem_s: Floats
    prep_s: Floats
    launch_s: Floats
    host_s: Floats

    def select(self, members: NDArray[np.intp]) -> StepParts:
        """Return some of several boards' parts; their modes must be their own combinations (``as_knob_table``)."""
        seconds = [getattr(self, name)[members] for name in self.__slots__[1:]]
        return StepParts(as_knob_table(self.knobs.x[members]), *seconds)


@dataclass(frozen=True, slots=True, eq=False)
class JoinedParts:
    """The parts of a step and how they join.

    Attributes:
        parts: The parts.
        gpu: a/g and b/m, joined to G, by combination of the GPU's knobs.
        stages: G, C and W, joined, arrays of shape (..., n).
    """

    parts: StepParts
    gpu: JoinedTerms
    stages: JoinedTerms


def knob_shares(maxn: PowerMode, modes: Modes) -> Floats:
    """Return the knobs as shares of the board's top mode, shape (n, 4).

    Args:
        maxn: The board's top mode.
        modes: The n modes.
    """
    top = np.array([maxn.cores, maxn.cpu_mhz, maxn.gpu_mhz, maxn.mem_mhz])
    x: Floats = modes.knobs / top
    return x


@lru_cache(maxsize=64)
def tabulate_modes(maxn: PowerMode, modes: Modes) -> KnobTable:
    """Return ``knob_shares`` as a table; cached, because a client predicts the same modes again and again."""
    return tabulate_shares(knob_shares(maxn, modes))


def split_parameters(logs: Floats, knobs: KnobTable) -> list[Floats]:
    """Return the parameters given as logs of shape (..., k): k arrays of shape (..., 1), as precise as the knobs."""
    values = np.exp(logs)[..., None].astype(knobs.host.x.dtype, copy=False)
    return [values[..., place, :] for place in range(logs.shape[-1])]


def compute_time_parts(time: Floats, x: Floats | KnobTable) -> StepParts:
    """Compute the parts of the step time.

    Args:
        time: Log time parameters, shape (..., 11).
        x: Knobs as shares of the top mode, shape (..., n, 4), or their table.

    Returns:
        Parts; the leading axes of both arguments are broadcast.
    """
    return join_time_parts(time, x).parts


def join_time_parts(time: Floats, x: Floats | KnobTable) -> JoinedParts:
    """Compute the parts of the step time, as ``compute_time_parts``, and how they join."""
    knobs = as_knob_table(x)
    a, b, q1, k, beta, kappa, delta, w, q2, d, e = split_parameters(time, knobs)
    _, _, g, m = knobs.gpu.split()
    math_s, mem_s = a / g, b / m
    gpu = join_terms(1.0 + q1, np.log(math_s), np.log(mem_s))
    c, f, _, m = knobs.host.split()
    prep_s = k * np.exp(-beta * np.log(c)) * (1.0 / f + delta / (c * f * f) + kappa / m)
    launch_s, host_s = w / f, d / f
    expand = knobs.host.expand
    stages = join_terms(1.0 + q2, knobs.gpu.expand(gpu.log), expand(np.log(prep_s)), expand(np.log(launch_s)))
    overlapped_s = np.exp(stages.log)
    parts = StepParts(
        knobs,
        total_s=overlapped_s + expand(host_s) + e,
        overlapped_s=overlapped_s,
        gpu_s=np.exp(gpu.log),
        math_s=math_s,
        mem_s=mem_s,
        prep_s=prep_s,
        launch_s=launch_s,
        host_s=host_s,
    )
    return JoinedParts(parts, gpu, stages)


def compute_power_terms(power: Floats, parts: StepParts) -> Floats:
    """Compute the terms of module power in watts, shape (9, ..., n): the four idle terms, then the five busy ones.

    Args:
        power: Log power parameters, shape (..., 13).
        parts: Parts of the step time.
    """
    host, gpu_side = parts.knobs.host, parts.knobs.gpu
    c, f, _, _ = host.split()
    _, _, g, m = gpu_side.split()
    static, cores, cores_use, host_use, af, gpu, gpu_use, math, r, ag, mem, mem_use, am = split_parameters(
        power, parts.knobs
    )
    cpu_on, gpu_on = np.exp((1.0 + af) * np.log(f)), np.exp((1.0 + ag) * np.log(g))
    t = parts.total_s
    busy = (
        host.expand(cores_use * c * cpu_on * parts.prep_s) / t,
        host.expand(host_use * cpu_on * (parts.launch_s + parts.host_s)) / t,
        gpu_side.expand(gpu_use * gpu_on) * np.exp(r * np.log(gpu_side.expand(parts.gpu_s) / t)),
        gpu_side.expand(math * gpu_on * parts.math_s) / t,
        gpu_side.expand(mem_use * m * parts.mem_s) / t,
    )
    idle = (
        static,
        host.expand(cores * c * cpu_on),
        gpu_side.expand(gpu * gpu_on),
        gpu_side.expand(mem * np.exp((1.0 + am) * np.log(m))),
    )
    terms = np.empty((len(idle) + len(busy), *busy[0].shape), dtype=t.dtype)
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
    total: Floats = compute_power_terms(coefficients.power, compute_time_parts(coefficients.time, x)).sum(axis=0)
    return total


def compute_idle_ratio(coefficients: Coefficients, maxn: PowerMode, modes: Modes) -> Floats:
    """Compute idle power in every mode relative to idle power at MAXN, shape (n,).

    Args:
        coefficients: The model's log-parameters.
        maxn: The board's top mode.
        modes: The n modes.
    """
    x = np.vstack([np.ones(4), knob_shares(maxn, modes)])
    idle_w = compute_power_terms(coefficients.power, compute_time_parts(coefficients.time, x))[:IDLE_TERMS].sum(axis=0)
    shape: Floats = idle_w[1:] / idle_w[0]
    return shape


def join_terms(q: Floats | float, *logs: Floats) -> JoinedTerms:
    """Join positive terms by their ``q``-norm, without overflow for large q.

    Args:
        q: Exponent, at least 1: the norm is the sum of the terms for 1, their maximum in the limit.
        *logs: Logarithms of the terms, arrays of one shape.
    """
    largest = logs[0]
    for log in logs[1:]:
        largest = np.maximum(largest, log)
    exponents = [q * (log - largest) for log in logs]
    shares = [np.exp(exponent) for exponent in exponents]
    total = sum(shares[1:], start=shares[0])
    log_total = np.log(total)
    shares = [share / total for share in shares]
    spread = sum((share * exponent for share, exponent in zip(shares, exponents, strict=True)), start=-log_total)
    return JoinedTerms(largest + log_total / q, tuple(shares), spread / q**2)


def q_norm(q: Floats | float, *terms: Floats) -> Floats:
    """Return the ``q``-norm of terms of one shape, 0 or above (see ``join_terms``)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        joined: Floats = np.exp(join_terms(q, *(np.log(term) for term in terms)).log)
    return joined
