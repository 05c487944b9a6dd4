"""Log time and log power with closed-form derivatives by the log-parameters; symbols as in ``time_power_model``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.physics.matern import Float32Array
from fedge.physics.time_power_model import (
    CPU,
    IDLE_TERMS,
    POWER_NAMES,
    TIME_NAMES,
    KnobTable,
    StepParts,
    compute_power_terms,
    join_terms,
    join_time_parts,
    split_parameters,
)
from fedge.types import Floats


@dataclass(frozen=True, slots=True, eq=False)
class LinearizedCurve:
    """A curve at some parameters: its log values and, computed only on demand, its derivatives by the k parameters.

    Thousands of modes times a dozen parameters times several candidates do not fit a processor's cache, so a mean,
    which needs one direction only, is computed without the whole matrix.

    Attributes:
        values: Log values, shape (..., n).
        count: Number k of parameters.
        iterate_rows: Returns an iterator over the derivatives by each parameter, k arrays that broadcast to (..., n).
    """

    values: Floats
    count: int
    iterate_rows: Callable[[], Iterator[Floats]]

    def stack_slopes(self) -> Floats:
        """Return the derivatives, shape (..., k, n)."""
        stacked: Floats = self._fill(np.empty((*self.values.shape[:-1], self.count, self.values.shape[-1])))
        return stacked

    def stack_slopes_single(self) -> Float32Array:
        """Return the derivatives in single precision, shape (..., k, n)."""
        shape = (*self.values.shape[:-1], self.count, self.values.shape[-1])
        stacked: Float32Array = self._fill(np.empty(shape, dtype=np.float32))
        return stacked

    def _fill(self, stacked: NDArray[Any]) -> NDArray[Any]:
        for place, row in enumerate(self.iterate_rows()):
            stacked[..., place, :] = row
        return stacked

    def slope_along(self, direction: Floats) -> Floats:
        """Return the derivative along a direction of shape (..., k), an array of shape (..., n)."""
        total = np.zeros_like(self.values)
        along = direction[..., None].astype(self.values.dtype, copy=False)
        for place, row in enumerate(self.iterate_rows()):
            total += along[..., place, :] * row
        return total

    def select(self, members: NDArray[np.intp]) -> LinearizedCurve:
        """Return some of several curves with a leading axis."""
        return LinearizedCurve(
            self.values[members],
            self.count,
            lambda: (np.broadcast_to(row, self.values.shape)[members] for row in self.iterate_rows()),
        )


def linearize_log_time(time: Floats, x: Floats | KnobTable) -> LinearizedCurve:
    """Linearize the log of the step time.

    Args:
        time: Log time parameters, shape (..., 11).
        x: Knobs as shares of the top mode, shape (..., n, 4), or their table.
    """
    joined = join_time_parts(time, x)
    parts, stages = joined.parts, joined.stages
    host, gpu = parts.knobs.host, parts.knobs.gpu
    _, _, q1, k, beta, kappa, delta, _, q2, _, e = split_parameters(time, parts.knobs)

    def iterate_rows() -> Iterator[Floats]:
        c, f, _, m = host.split()
        log_c = np.log(c)
        overlap = parts.overlapped_s / parts.total_s
        by_gpu, by_prep, by_launch = (share * overlap for share in stages.shares)
        by_math, by_mem = joined.gpu.shares
        per_prep = k * np.exp(-beta * log_c) / parts.prep_s
        yield by_gpu * gpu.expand(by_math)
        yield by_gpu * gpu.expand(by_mem)
        yield by_gpu * gpu.expand(joined.gpu.by_q * q1)
        yield by_prep
        yield by_prep * host.expand(-beta * log_c)
        yield by_prep * host.expand(per_prep * kappa / m)
        yield by_prep * host.expand(per_prep * delta / (c * f * f))
        yield by_launch
        yield stages.by_q * q2 * overlap
        yield host.expand(parts.host_s) / parts.total_s
        yield e / parts.total_s

    return LinearizedCurve(np.log(parts.total_s), len(TIME_NAMES), iterate_rows)


def linearize_log_power(power: Floats, parts: StepParts) -> LinearizedCurve:
    """Linearize the log of module power.

    Args:
        power: Log power parameters, shape (..., 13).
        parts: Parts of the step time.
    """
    terms = compute_power_terms(power, parts)
    total = terms.sum(axis=0)
    terms /= total

    def iterate_rows() -> Iterator[Floats]:
        host, gpu_side = parts.knobs.host, parts.knobs.gpu
        log_f, log_g, log_m = np.log(host.split()[1]), np.log(gpu_side.split()[2]), np.log(gpu_side.split()[3])
        _, _, _, _, af, _, _, _, r, ag, _, _, am = split_parameters(power, parts.knobs)
        static, cores, gpu, mem, cores_use, host_use, gpu_use, math, mem_use = terms
        yield static
        yield cores
        yield cores_use
        yield host_use
        yield (cores + cores_use + host_use) * host.expand(log_f * af)
        yield gpu
        yield gpu_use
        yield math
        yield gpu_use * np.log(gpu_side.expand(parts.gpu_s) / parts.total_s) * r
        yield (gpu + gpu_use + math) * gpu_side.expand(log_g * ag)
        yield mem
        yield mem_use
        yield mem * gpu_side.expand(log_m * am)

    return LinearizedCurve(np.log(total), len(POWER_NAMES), iterate_rows)


def linearize_fed_log_power(power: Floats, parts: StepParts, top_s: float) -> LinearizedCurve:
    """Linearize the log of module power where the next batch may be ready later than the step ends.

    Tables of inference time the batch alone, but their sensor sees the whole loop. While the GPU works, the CPU loads
    the next batch in h t_top / f, f being its clock. So a period takes T = (t^q + (h t_top / f)^q)^(1/q) with
    q = ``FEEDING_NORM``, and busy terms are shares of T instead of t. In batches of 64 of ResNet-50 on AGX Orin, with
    12 cores and the GPU at 931 MHz, a slower CPU (422 instead of 1344 MHz) takes 45 % less power but 20 % more time.

    Args:
        power: Log power parameters and the log of h, shape (..., 14).
        parts: Parts of the step time.
        top_s: t_top, the step time with every knob at its top.
    """
    feed_s = top_s * np.exp(power[..., -1:]) / parts.knobs.x[..., CPU]
    period = join_terms(FEEDING_NORM, np.log(parts.total_s), np.log(feed_s))
    fed = replace(parts, total_s=np.exp(period.log))
    linear = linearize_log_power(power[..., :-1], fed)

    def iterate_rows() -> Iterator[Floats]:
        yield from linear.iterate_rows()
        busy_w = compute_power_terms(power[..., :-1], fed)[IDLE_TERMS:]
        busy_w[_GPU_USE] *= np.exp(power[..., POWER_NAMES.index("gpu_use_exponent"), None])
        yield -busy_w.sum(axis=0) * np.exp(-linear.values) * period.shares[1]

    return LinearizedCurve(linear.values, linear.count + 1, iterate_rows)


FEEDING_NORM = 4.0
"""How a step and the loading of the next batch overlap: 1 is one after the other, infinity side by side. Default."""
_GPU_USE = 2
"""Place of the GPU's term among the busy ones: the one that is not in proportion to its share of the step."""
