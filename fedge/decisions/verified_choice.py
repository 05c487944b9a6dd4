"""Choose a mode, measure it, and probe another where that pays, so that the limit holds as measured.

Symbols: q the limited quantity (watts, or seconds per step) with standard deviation s (log), c the cost to minimise
(seconds, or joules per step), L the limit, b the least c of the modes measured to hold L, Phi the normal distribution.
Measuring a mode is expected to save Phi((log L - log q) / s) max(0, log b - log c) of the cost: the probability that it
holds, times the share by which it is cheaper. That is the constrained expected improvement of Bayesian optimisation
(Schonlau 1998; Gardner et al., ICML 2014) without the cost's own standard deviation: it is as careful as the fallback
is good, and bolder once a mode is known to hold. Margins that grow from probe to probe lost more time on measured
tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from fedge.decisions.limits import format_figure, mask_within
from fedge.modes import CLOCK_TOLERANCE_MHZ, find_mode_index
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

MAX_PROBES = 2
MIN_EXPECTED_SAVING = 0.003
"""Least expected saving, as a share of the cost, of a further measurement.

On measured tables a smaller one measures more and saves no more.
"""
MIN_SD_LOG = 0.02
"""Least standard deviation (log) of the limited quantity that is assumed.

Of thousands of modes the chosen one is the one most flattered by error, and some predictors state no deviation at all.
"""

_TINY = 1e-300

Measure = Callable[[PowerMode], Measurement]
Learn = Callable[[Sequence[Measurement]], Predictions]
"""Predict the same modes from all measurements so far."""


@dataclass(frozen=True, slots=True)
class VerifiedChoice:
    """A mode chosen by prediction and measurement.

    Attributes:
        mode: The chosen mode.
        extra: Measurements made for the choice, in their order.
        feasible: Whether the mode was measured to hold the limit.
        why: The reason, as one sentence for the user.
    """

    mode: PowerMode
    extra: tuple[Measurement, ...]
    feasible: bool
    why: str


def choose_verified_within_power(
    predictions: Predictions,
    limit_w: float,
    measure: Measure,
    learn: Learn,
    seen: Sequence[Measurement],
    tries: int = MAX_PROBES,
) -> VerifiedChoice:
    """Choose the fastest mode measured to draw at most ``limit_w``.

    Each time the mode of largest expected saving is measured. Measurements of other boards, and of a board that
    throttled, do not count.

    Args:
        predictions: Every mode that may be chosen, learnt from ``seen``.
        limit_w: Power limit in watts.
        measure: Measures one mode on the board.
        learn: Returns new predictions from all measurements; called between two measurements only, and not if the first
            one leaves nothing to save.
        seen: Measurements made before; their modes are not measured again.
        tries: Number of further measurements at most.

    Returns:
        The choice; if no measured mode holds the limit, the mode of least power, marked as not feasible.
    """
    aim = _LimitedObjective(
        limit_w,
        unit="W",
        title="Fastest mode",
        limited=lambda p: (p.power_w, p.power_w_sd_log),
        cost=lambda p: p.step_s,
        measured_limited=lambda m: m.power_w,
        measured_cost=lambda m: m.step_s,
    )
    return _choose_verified(aim, predictions=predictions, measure=measure, learn=learn, seen=seen, tries=tries)


@dataclass(frozen=True, slots=True)
class _LimitedObjective:
    """The limited quantity and the cost, in predictions (with the limited figure's log deviation) and measurements."""

    limit: float
    unit: str
    title: str
    limited: Callable[[Predictions], tuple[Floats, Floats]]
    cost: Callable[[Predictions], Floats]
    measured_limited: Callable[[Measurement], float]
    measured_cost: Callable[[Measurement], float]


@dataclass(frozen=True, slots=True)
class _MeasuredFigures:
    """The medians of a mode's measurements."""

    limited: float
    cost: float


def _choose_verified(
    aim: _LimitedObjective,
    predictions: Predictions,
    measure: Measure,
    learn: Learn,
    seen: Sequence[Measurement],
    tries: int,
) -> VerifiedChoice:
    by_row = _group_by_row(predictions, seen)
    extra: list[Measurement] = []
    while len(extra) < tries:
        row = _find_next_row(aim, predictions, by_row)
        if row is not None and extra:
            predictions = learn([*seen, *extra])
            row = _find_next_row(aim, predictions, by_row)
        if row is None:
            break
        extra.append(measure(predictions.modes[row]))
        by_row.setdefault(row, []).append(extra[-1])
    return _build_choice(aim, predictions, _summarize_measured(aim, by_row), tuple(extra))


def _group_by_row(predictions: Predictions, seen: Sequence[Measurement]) -> dict[int, list[Measurement]]:
    """Return the board's own measurements by row of the predictions."""
    by_row: dict[int, list[Measurement]] = {}
    for measurement in seen:
        if measurement.board is not None or measurement.throttled:
            continue
        row = _find_row(predictions.modes, measurement.mode)
        if row is not None:
            by_row.setdefault(row, []).append(measurement)
    return by_row


def _find_row(modes: Modes, mode: PowerMode) -> int | None:
    """Return the row of a mode, searching the modes of its GPU clock only: much faster with thousands of modes."""
    near = np.flatnonzero(np.abs(modes.knobs[:, 2] - mode.gpu_mhz) < CLOCK_TOLERANCE_MHZ)
    place = find_mode_index(Modes(modes.knobs[near]), mode)
    return None if place is None else int(near[place])


def _summarize_measured(
    aim: _LimitedObjective, by_row: Mapping[int, Sequence[Measurement]]
) -> dict[int, _MeasuredFigures]:
    proofs = {row: [m for m in measurements if not m.throttled] for row, measurements in by_row.items()}
    return {
        row: _MeasuredFigures(median(map(aim.measured_limited, kept)), median(map(aim.measured_cost, kept)))
        for row, kept in proofs.items()
        if kept
    }


def _find_best(aim: _LimitedObjective, known: Mapping[int, _MeasuredFigures]) -> int | None:
    """Return the measured row of least cost that holds the limit, the first of equals."""
    holding = [row for row, of in known.items() if mask_within(np.array(of.limited), aim.limit)]
    return min(holding, key=lambda row: (known[row].cost, known[row].limited, row), default=None)


def _find_next_row(
    aim: _LimitedObjective, predictions: Predictions, by_row: Mapping[int, Sequence[Measurement]]
) -> int | None:
    """Return the row to measure next, or None if no measurement is worth it, or every row was measured."""
    known = _summarize_measured(aim, by_row)
    best = _find_best(aim, known)
    saving = _expected_saving(aim, predictions, None if best is None else known[best].cost)
    saving[list(by_row)] = -np.inf
    row = int(np.argmax(saving))
    least = -np.inf if best is None else MIN_EXPECTED_SAVING
    return row if saving[row] > least else None


def _expected_saving(aim: _LimitedObjective, predictions: Predictions, best_cost: float | None) -> Floats:
    """Return the share of the cost that measuring each row should save, shape (n,); -inf without a finite prediction.

    As long as no mode is known to hold the limit, the dearest prediction stands for the best cost: finding a mode that
    holds at all is then worth most.
    """
    limited, sd_log = aim.limited(predictions)
    cost = aim.cost(predictions)
    finite = np.isfinite(limited) & np.isfinite(cost)
    saving: Floats = np.full(len(cost), -np.inf)
    if not finite.any():
        return saving
    least = float(cost[finite].max()) if best_cost is None else best_cost
    saving[finite] = compute_expected_savings(
        limited[finite], sd_log[finite], cost=cost[finite], limit=aim.limit, least=least
    )
    return saving


def compute_expected_savings(limited: Floats, sd_log: Floats, *, cost: Floats, limit: float, least: float) -> Floats:
    """Return the share of the cost that measuring each mode is expected to save, shape (n,).

    Args:
        limited: Finite predictions of the limited quantity, shape (n,).
        sd_log: Their standard deviations (log), shape (n,).
        cost: Finite predictions of the cost, shape (n,).
        limit: The limit.
        least: Cost of the best mode that is known to hold the limit.
    """
    savings = np.zeros(len(cost))
    cheaper = np.flatnonzero(cost < least)
    room = np.log(max(limit, _TINY) / limited[cheaper]) / np.maximum(sd_log[cheaper], MIN_SD_LOG)
    savings[cheaper] = _normal_cdf(room) * np.log(least / cost[cheaper])
    return savings


def _normal_cdf(values: Floats) -> Floats:
    return np.array([0.5 * math.erfc(-v) for v in (values / math.sqrt(2.0)).tolist()], dtype=np.float64)


def _build_choice(
    aim: _LimitedObjective,
    predictions: Predictions,
    known: Mapping[int, _MeasuredFigures],
    extra: tuple[Measurement, ...],
) -> VerifiedChoice:
    spent = f"after {len(extra)} further measurement{'' if len(extra) == 1 else 's'}"
    best, limit = _find_best(aim, known), f"{format_figure(aim.limit)} {aim.unit}"
    if best is not None:
        why = f"{aim.title} measured within {limit}: {format_figure(known[best].limited)} {aim.unit}, {spent}."
        return VerifiedChoice(predictions.modes[best], extra, feasible=True, why=why)
    limited = np.nan_to_num(aim.limited(predictions)[0], nan=np.inf)
    for row, of in known.items():
        limited[row] = of.limited
    row = int(np.argmin(limited))
    how = "measured" if row in known else "expected"
    why = f"No measured mode holds {limit} {spent}; the lowest {how} is {format_figure(limited[row])} {aim.unit}."
    return VerifiedChoice(predictions.modes[row], extra, feasible=False, why=why)
