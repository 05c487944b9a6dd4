"""Rows of a measured table that are implausible, and values predicted from a mode's neighbours.

An implausible row is far off the physical model and off its neighbours.

Symbols: y a row's seconds or watts, v the physical model fitted to the whole table under Student-t noise, r = log(y/v),
s = 1.4826 median |r - median r| (a standard deviation that outliers do not move), n the median r of the row's
neighbours, which are the rows one step away in one knob. A row is implausible when in time or in power
|r| > log 1.15,  |r| > 5 s  and  |r - n| > log 1.15.
The last keeps rows that the smooth model itself misses, such as a corner of the grid, where neighbours are off alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedge.knowledge.table_background import find_board_spec, resolve_maxn
from fedge.physics import time_power_model
from fedge.physics.model_fit import fit_table
from fedge.physics.robust_fit import robust_sd
from fedge.serving.job_pair import JobPair, ModeKey, list_mode_keys, select_pair_modes
from fedge.types import Floats, Modes, PowerMode, ProfileTable

OUTLIER_LOG = math.log(1.15)
OUTLIER_SD = 5.0
MIN_ROWS = 24
"""With fewer rows than this the model follows every row, so that none can be called implausible.

The three limits are defaults: lower ones drop more rows, among them some that a board would reproduce.
"""


@functools.lru_cache(maxsize=64)  # studies judge many methods on one table
def find_plausible_rows(table: ProfileTable, maxn: PowerMode) -> NDArray[np.bool_]:
    """Return a mask of the rows that are not implausible, shape (n,); all rows of a table below ``MIN_ROWS``.

    The mask is shared by all callers: copy it to change it.
    """
    if len(table.modes) < MIN_ROWS:
        return np.ones(len(table.modes), dtype=np.bool_)
    near = _find_neighbours(table.modes)
    slow, thirsty = (_find_outliers(residuals, near) for residuals in _fit(table, maxn))
    plausible: NDArray[np.bool_] = ~(slow | thirsty)
    return plausible


@functools.lru_cache(maxsize=64)
def predict_from_neighbours(table: ProfileTable, maxn: PowerMode) -> tuple[Floats, Floats]:
    """Return seconds and watts of every mode as predicted from its neighbours: v exp(n), each of shape (n,).

    A mode's own measurement enters only through the fit of v, to which it is one of many.
    """
    neighbours = _find_neighbours(table.modes)
    slow, thirsty = (
        np.exp([_find_median(residuals, rows) for rows in neighbours] - residuals) for residuals in _fit(table, maxn)
    )
    return table.step_s * slow, table.power_w * thirsty


def _fit(table: ProfileTable, maxn: PowerMode) -> tuple[Floats, Floats]:
    """Return r of time and of power, each of shape (n,)."""
    fitted = fit_table(table.modes, maxn, table.step_s, table.power_w)
    modelled_s = time_power_model.compute_step_s(fitted, maxn, table.modes)
    modelled_w = time_power_model.compute_power_w(fitted, maxn, table.modes)
    return np.log(table.step_s / modelled_s), np.log(table.power_w / modelled_w)


def _find_outliers(residuals: Floats, near: list[list[int]]) -> NDArray[np.bool_]:
    sd = robust_sd(residuals - np.median(residuals))
    far = (np.abs(residuals) > OUTLIER_LOG) & (np.abs(residuals) > OUTLIER_SD * sd)
    for row in np.flatnonzero(far):
        far[row] = abs(residuals[row] - _find_median(residuals, near[row])) > OUTLIER_LOG
    return far


def _find_median(residuals: Floats, rows: list[int]) -> float:
    return float(np.median(residuals[rows])) if rows else 0.0


def _find_neighbours(modes: Modes) -> list[list[int]]:
    """Return, per row, the rows that differ by one step of the table's own values in one knob."""
    steps = np.stack([np.unique(knob, return_inverse=True)[1].reshape(-1) for knob in modes.knobs.T], axis=1)
    places = [tuple(int(i) for i in place) for place in steps]
    at = {place: row for row, place in enumerate(places)}
    return [[at[other] for other in _adjacent_places(place) if other in at] for place in places]


def _adjacent_places(place: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [(*place[:k], place[k] + step, *place[k + 1 :]) for k in range(len(place)) for step in (-1, 1)]


def restrict_to_plausible(pair: JobPair, tables: Iterable[ProfileTable]) -> JobPair:
    """Return the pair in the modes that are plausible in all of ``tables``, the only ones for optima and choices.

    Raises:
        BadInput: If no mode is left.
    """
    odd = frozenset[ModeKey]().union(*map(_find_implausible_keys, tables))
    return select_pair_modes(pair, np.array([key not in odd for key in list_mode_keys(pair.modes)]))


@functools.lru_cache(maxsize=64)  # a table belongs to several pairs
def _find_implausible_keys(table: ProfileTable) -> frozenset[ModeKey]:
    rows = find_plausible_rows(table, resolve_maxn(table, find_board_spec(table.device)))
    return frozenset(key for key, fine in zip(list_mode_keys(table.modes), rows, strict=True) if not fine)
