"""Reference tables of other workloads on similar boards: fitted coefficients, and the residuals of the fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedge.call_cache import cache_last_call
from fedge.physics.model_fit import fit_table
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s, knob_shares
from fedge.types import Floats, Modes, PowerMode, ProfileTable

LARGEST_RESIDUAL = 0.3
"""Residuals are clipped to this, log units: larger ones are outliers of the table, not properties of the board."""
RESIDUAL_REACH = 0.3
"""Distance in log-knobs over which a residual decays for modes that the table lacks. Default; larger values extrapolate
the residuals further."""
USUAL_RESIDUAL_SD = 0.06
"""Spread of residuals up to which a table counts as smooth, log units; the calibrated tables have 0.02 to 0.04."""
DOUBT_SD = 0.03
"""Each further spread of this size makes the table less credible by a factor of e. Default; smaller values reject rough
tables sooner."""
SAME_KIND_TOLERANCE = 0.1
"""Relative difference of top clocks beyond which boards are of different kinds. Default; a smaller value separates
boards with modified clock limits."""
_ROWS = 1200
"""Rows that a reference is fitted to: more hardly change the coefficients but take longer."""


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceFit:
    """A fitted reference table.

    The coefficients of another kind of board hold for shares of its own clocks; its residuals do not apply.

    Attributes:
        coefficients: The physical model fitted to the table.
        residuals: Function from shares (n, 4) to residuals of log time and log power, shape (2, n).
        log_credibility: 0 for a table as smooth as measured ones usually are, negative for a rougher one.
        is_same_kind: Whether the table's board has about the same top clocks.
    """

    coefficients: Coefficients
    residuals: Callable[[Floats], Floats]
    log_credibility: float
    is_same_kind: bool


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceResiduals:
    """Residuals of a table: log measured minus log modelled.

    Attributes:
        axes: Values of each knob that occur in the table, ascending.
        keys: Combined index of the knob values of each row, ascending, shape (rows,).
        values: Residuals of time and power, shape (2, rows), in the order of ``keys``.
    """

    axes: tuple[Floats, ...]
    keys: NDArray[np.int64]
    values: Floats

    def interpolate(self, x: Floats) -> Floats:
        """Return the residuals at the nearest knob values, decaying with distance and 0 where the table has no row.

        Args:
            x: Knobs as shares of the top mode, shape (n, 4).

        Returns:
            Residuals of log time and log power, shape (2, n).
        """
        index, squared = np.zeros(len(x), dtype=np.int64), np.zeros(len(x))
        for axis, wanted in zip(self.axes, x.T, strict=True):
            middles = np.sqrt(axis[1:] * axis[:-1])
            nearest = np.searchsorted(middles, wanted)
            index = index * len(axis) + nearest
            squared += np.square(np.log(wanted / axis[nearest]))
        place = np.minimum(np.searchsorted(self.keys, index), len(self.keys) - 1)
        known = self.keys[place] == index
        found: Floats = np.where(known, self.values[:, place] * np.exp(-squared / RESIDUAL_REACH**2), 0.0)
        return found


@lru_cache(maxsize=16)
def fit_reference(table: ProfileTable, maxn: PowerMode) -> ReferenceFit:
    """Fit the physical model to a reference table; takes about a second.

    Args:
        table: The reference table.
        maxn: Top mode of the board that is to be predicted.
    """
    alike = _is_same_kind(table.maxn, maxn)
    top = maxn if alike else table.maxn
    some = np.random.default_rng(0).permutation(len(table.modes))[:_ROWS]
    rows = Modes(table.modes.knobs[some])
    coefficients = fit_table(rows, top, table.step_s[some], table.power_w[some])
    time = np.log(table.step_s) - np.log(compute_step_s(coefficients, top, table.modes))
    power = np.log(table.power_w) - np.log(compute_power_w(coefficients, top, table.modes))
    x = knob_shares(top, table.modes)
    doubt = sum(max(0.0, float(residual.std()) - USUAL_RESIDUAL_SD) for residual in (time, power)) / DOUBT_SD
    return ReferenceFit(
        coefficients, cache_last_call(_tabulate_residuals(x, np.stack([time, power])).interpolate), -doubt, alike
    )


def _is_same_kind(top: PowerMode, maxn: PowerMode) -> bool:
    """Return whether a table with this top mode is of the same kind of board; it may have fewer cores."""
    pairs = zip((top.cpu_mhz, top.gpu_mhz, top.mem_mhz), (maxn.cpu_mhz, maxn.gpu_mhz, maxn.mem_mhz), strict=True)
    return top.cores <= maxn.cores and all(abs(own / known - 1.0) <= SAME_KIND_TOLERANCE for own, known in pairs)


def _tabulate_residuals(x: Floats, values: Floats) -> ReferenceResiduals:
    axes = tuple(np.unique(knob) for knob in x.T)
    index = np.zeros(len(x), dtype=np.int64)
    for axis, knob in zip(axes, x.T, strict=True):
        index = index * len(axis) + np.searchsorted(axis, knob)
    order = np.argsort(index)
    return ReferenceResiduals(axes, index[order], np.clip(values, -LARGEST_RESIDUAL, LARGEST_RESIDUAL)[:, order])
