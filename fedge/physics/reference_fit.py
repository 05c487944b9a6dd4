"""What another workload's measured table on a like board teaches: its coefficients, and what the curve leaves over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedge.physics.call_cache import cache_last_call
from fedge.physics.model_fit import fit_table
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s, knob_shares
from fedge.types import Floats, Modes, PowerMode, ProfileTable

LARGEST_RESIDUAL = 0.3
"""Residuals are cut at this, log units: what lies further off is a bad row of that table, not the board's way."""
RESIDUAL_REACH = 0.3
"""Distance in log-knobs over which a residual still counts for a mode that the table does not have; chosen by us."""
USUAL_RESIDUAL_SD = 0.06
"""Up to this spread, log units, a table is as smooth as measured ones are; the calibrated tables have 0.02 to 0.04."""
DOUBT_SD = 0.03
"""Each such step beyond makes the table's residuals e times less credible; chosen by us."""
SAME_KIND_TOLERANCE = 0.1
"""Boards whose top clocks differ by more than this share are of different kinds; chosen by us."""
_ROWS = 1200
"""Rows that a reference is fitted to: more change its coefficients little and take longer."""


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceFit:
    """A reference table as the predictor uses it.

    ``residuals`` gives what the curve leaves of log time and of log power (2, n) at shares (n, 4); ``log_credibility``
    is 0 for a table as smooth as measured ones are, and lower for a rougher one. ``alike`` says that the table's board
    has about the same top clocks; another board's coefficients hold for shares of its own clocks, its residuals not.
    """

    coefficients: Coefficients
    residuals: Callable[[Floats], Floats]
    log_credibility: float
    is_same_kind: bool


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceResiduals:
    """Log measured minus log modelled, time and power (2, rows); ``axes`` are the knobs' values, ``keys`` the rows."""

    axes: tuple[Floats, ...]
    keys: NDArray[np.int64]
    values: Floats

    def interpolate(self, x: Floats) -> Floats:
        """The residuals (2, n) at shares ``x`` (n, 4): those of the nearest values, less the further off."""
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
    """Fit the physical model to a reference ``table``, for a board with the top mode ``maxn``; takes about a second."""
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
    """Whether a table with this top is of the same kind of board; it may be of fewer cores."""
    pairs = zip((top.cpu_mhz, top.gpu_mhz, top.mem_mhz), (maxn.cpu_mhz, maxn.gpu_mhz, maxn.mem_mhz), strict=True)
    return top.cores <= maxn.cores and all(abs(own / known - 1.0) <= SAME_KIND_TOLERANCE for own, known in pairs)


def _tabulate_residuals(x: Floats, values: Floats) -> ReferenceResiduals:
    axes = tuple(np.unique(knob) for knob in x.T)
    index = np.zeros(len(x), dtype=np.int64)
    for axis, knob in zip(axes, x.T, strict=True):
        index = index * len(axis) + np.searchsorted(axis, knob)
    order = np.argsort(index)
    return ReferenceResiduals(axes, index[order], np.clip(values, -LARGEST_RESIDUAL, LARGEST_RESIDUAL)[:, order])
