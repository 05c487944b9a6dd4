"""Marks rows of a measured table that no board can have meant: far off the physical model and off their neighbours.

Symbols: y a row's seconds or watts, v the physical model fitted to the whole table under Student-t noise, r = log(y/v),
s = 1.4826 median |r - median r| (a standard deviation that outliers do not move), n the median r of the row's
neighbours, which are the rows one step away in one knob. A row is implausible when in time or in power
|r| > log 1.15,  |r| > 5 s  and  |r - n| > log 1.15.
The last keeps the rows that the smooth model itself misses, a corner of the grid, say: there neighbours are off alike.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedge.physics import model
from fedge.physics.fit import fit_table
from fedge.types import Floats, Modes, PowerMode, ProfileTable

FAR_LOG = math.log(1.15)
FAR_SD = 5.0
FEWEST_ROWS = 24
"""With as many parameters as rows or more the model follows every row, and nothing can be said. The three limits were
chosen by us."""


def plausible_rows(table: ProfileTable, maxn: PowerMode) -> NDArray[np.bool_]:
    """True where a row is not implausible, shape (n,); all of a table of fewer than ``FEWEST_ROWS`` rows."""
    if len(table.modes) < FEWEST_ROWS:
        return np.ones(len(table.modes), dtype=np.bool_)
    fitted = fit_table(table.modes, maxn, table.step_s, table.power_w)
    near = _neighbours(table.modes)
    slow = _far(np.log(table.step_s / model.step_s(fitted, maxn, table.modes)), near)
    thirsty = _far(np.log(table.power_w / model.power_w(fitted, maxn, table.modes)), near)
    plausible: NDArray[np.bool_] = ~(slow | thirsty)
    return plausible


def _far(residuals: Floats, near: list[list[int]]) -> NDArray[np.bool_]:
    sd = 1.4826 * float(np.median(np.abs(residuals - np.median(residuals))))
    far = (np.abs(residuals) > FAR_LOG) & (np.abs(residuals) > FAR_SD * sd)
    for row in np.flatnonzero(far):
        around = float(np.median(residuals[near[row]])) if near[row] else 0.0
        far[row] = abs(residuals[row] - around) > FAR_LOG
    return far


def _neighbours(modes: Modes) -> list[list[int]]:
    """Per row the rows that differ by one step of the table's own values in one knob."""
    steps = np.stack([np.unique(knob, return_inverse=True)[1].reshape(-1) for knob in modes.knobs.T], axis=1)
    places = [tuple(int(i) for i in place) for place in steps]
    at = {place: row for row, place in enumerate(places)}
    return [[at[other] for other in _around(place) if other in at] for place in places]


def _around(place: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [(*place[:k], place[k] + step, *place[k + 1 :]) for k in range(len(place)) for step in (-1, 1)]
