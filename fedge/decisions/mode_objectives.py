"""Choose a row of the predictions: the Pareto front, the best within a limit, the knee, the best weighted sum.

Symbols: t seconds per step, p watts of the whole module, e = t p joules per step, s_t and s_p standard deviations of t
and p (log), z the margin in standard deviations (``fedge.decisions.limits.compute_margin_z`` of a confidence). Ties go
to the cheaper, or the faster, row, then to the first. Rows whose prediction is not finite are never chosen;
``FedgeError`` is raised if there is no other. All functions are O(n log n).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import add_margin, find_best_row, format_figure, mask_within
from fedge.errors import BadInput, FedgeError
from fedge.pareto import front_mask
from fedge.types import Floats, Predictions

FrontCost = Literal["power", "energy"]
"""The cost of a front against time: power in watts, or energy in joules per step."""


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """The chosen row of the predictions.

    Attributes:
        row: Index into the predictions.
        feasible: Whether the row is expected to keep the limit.
        why: The reason, as one sentence for the user.
    """

    row: int
    feasible: bool
    why: str


def compute_step_energy_j(predictions: Predictions) -> Floats:
    """Return the energy per step in joules, t p; shape (modes,)."""
    joules: Floats = predictions.step_s * predictions.power_w
    return joules


def find_front_rows(predictions: Predictions, against: FrontCost) -> NDArray[np.intp]:
    """Return the rows of the Pareto front of time and ``against``, from fastest to cheapest.

    Of equal rows the first is kept.

    Raises:
        FedgeError: If no mode has a finite prediction of time and power.
    """
    rows = np.flatnonzero(front_mask(predictions.step_s, _front_cost(predictions, against)))
    if len(rows) == 0:
        raise FedgeError(f"none of the {len(predictions.modes):,} modes has a finite prediction of time and power")
    return rows[np.argsort(predictions.step_s[rows])]


def find_fastest_within_power(predictions: Predictions, limit_w: float, z: float = 0.0) -> ModeChoice:
    """Choose the fastest mode whose power, with the margin, keeps a limit.

    Args:
        predictions: One row per mode.
        limit_w: Upper limit of p exp(z s_p), in watts of the whole module.
        z: Margin in standard deviations.

    Returns:
        The mode of least t, or, if none keeps the limit, that of least p exp(z s_p), marked as not feasible.
    """
    careful_w = add_margin(predictions.power_w, predictions.power_w_sd_log, z)
    allowed = mask_within(careful_w, limit_w) & np.isfinite(predictions.step_s)
    if not allowed.any():
        row = find_best_row(careful_w, predictions.step_s)
        why = (
            f"No mode is expected within {format_figure(limit_w)} W{_describe_margin(z)}; the lowest is "
            f"{format_figure(careful_w[row])} W{' with it' if z else ''}."
        )
        return ModeChoice(row, feasible=False, why=why)
    row = find_best_row(predictions.step_s, careful_w, allowed)
    found = (
        f"of {allowed.sum():,} modes within {format_figure(limit_w)} W{_describe_margin(z)}: "
        f"{_describe_expected(predictions, row)}"
    )
    return ModeChoice(row, feasible=True, why=f"Fastest {found}.")


def find_largest_power_within(predictions: Predictions, limit_w: float) -> ModeChoice:
    """Choose the mode of largest power within ``limit_w`` watts on the front of time and power.

    On a front the mode of largest power is the fastest, so this equals ``find_fastest_within_power`` without margin.

    Returns:
        The choice, or, if no mode is within the limit, the mode of least power, marked as not feasible.

    References:
        PowerTrain, FGCS 2024 (choice under a power budget).
    """
    rows = find_front_rows(predictions, "power")
    power_w = predictions.power_w[rows]
    allowed = mask_within(power_w, limit_w)
    row = int(rows[np.argmax(allowed)] if allowed.any() else rows[-1])
    if not allowed.any():
        lowest = f"the lowest is {format_figure(predictions.power_w[row])} W"
        return ModeChoice(row, feasible=False, why=f"No mode is expected within {format_figure(limit_w)} W; {lowest}.")
    found = (
        f"of {len(rows):,} modes on the front within {format_figure(limit_w)} W: {_describe_expected(predictions, row)}"
    )
    return ModeChoice(row, feasible=True, why=f"Largest power {found}.")


def find_least_energy_within_deadline(predictions: Predictions, limit_s: float, z: float = 0.0) -> ModeChoice:
    """Choose the mode of least energy whose step time, with the margin, keeps a limit.

    Args:
        predictions: One row per mode.
        limit_s: Upper limit of t exp(z s_t), in seconds per step.
        z: Margin in standard deviations.

    Returns:
        The mode of least t p, or, if none keeps the limit, that of least t exp(z s_t), marked as not feasible.
    """
    careful_s = add_margin(predictions.step_s, predictions.step_s_sd_log, z)
    allowed = mask_within(careful_s, limit_s) & np.isfinite(predictions.power_w)
    if not allowed.any():
        row = find_best_row(careful_s, compute_step_energy_j(predictions))
        fastest = f"the fastest takes {format_figure(careful_s[row])} s{' with it' if z else ''}"
        why = f"No mode is expected within {format_figure(limit_s)} s per step{_describe_margin(z)}; {fastest}."
        return ModeChoice(row, feasible=False, why=why)
    row = find_best_row(compute_step_energy_j(predictions), careful_s, allowed)
    found = (
        f"of {allowed.sum():,} modes within {format_figure(limit_s)} s per step{_describe_margin(z)}: "
        f"{_describe_expected(predictions, row)}"
    )
    return ModeChoice(row, feasible=True, why=f"Least energy {found}.")


def find_least_energy_within_slowdown(
    predictions: Predictions, maxn_row: int, max_slowdown: float, z: float = 0.0
) -> ModeChoice:
    """Choose the mode of least energy whose step time, with the margin, is at most a multiple of MAXN's.

    Args:
        predictions: One row per mode.
        maxn_row: Row of MAXN, which always is within the limit.
        max_slowdown: Upper limit of t exp(z s_t) / t_MAXN, at least 1.
        z: Margin in standard deviations.
    """
    sd_log = predictions.step_s_sd_log.copy()
    sd_log[maxn_row] = 0.0
    limit_s = max_slowdown * float(predictions.step_s[maxn_row])
    choice = find_least_energy_within_deadline(replace(predictions, step_s_sd_log=sd_log), limit_s, z)
    if choice.row != maxn_row:
        return choice
    limit = f"{format_figure(max_slowdown)} times MAXN's time{_describe_margin(z)}"
    advice = " Measure more modes." if z else ""  # which narrows the margin
    return replace(choice, why=f"No lower mode saves energy within {limit}: MAXN stays.{advice}")


def find_knee(predictions: Predictions, against: FrontCost) -> ModeChoice:
    """Choose the point of the front farthest below the chord between its ends, in normalised logarithms.

    The front counts only up to the slowest mode that takes no more energy per step than the fastest: slower modes draw
    less power but waste energy, and the slowest of all would otherwise decide where the knee is. With x and y the
    logarithms of time and of ``against``, each scaled to 0..1 over that front, the chord is x + y = 1 and the distance
    below it (1 - x - y) / sqrt(2). Of equally far points the faster is chosen, and the fastest mode if no point lies
    below the chord.
    """
    front = find_front_rows(predictions, against)
    joules = compute_step_energy_j(predictions)[front]
    rows = front[: int(np.flatnonzero(joules <= joules[0])[-1]) + 1]
    x, y = (
        _scale_to_unit(np.log(predictions.step_s[rows])),
        _scale_to_unit(np.log(_front_cost(predictions, against)[rows])),
    )
    row = int(rows[np.argmax(np.round(1.0 - x - y, 12))])  # rounded: the chord's ends must tie
    found = (
        f"of {len(rows):,} modes on the front of time and {against} worth their energy: "
        f"{_describe_expected(predictions, row)}"
    )
    return ModeChoice(row, feasible=True, why=f"Knee {found}.")


def find_best_weighted(predictions: Predictions, time_weight: float) -> ModeChoice:
    """Choose the mode of least w t / t_f + (1 - w) e / e_f, where f is the fastest mode.

    Args:
        predictions: One row per mode.
        time_weight: The weight w, 0 to 1: 1 gives the fastest mode, 0 the mode of least energy.

    Raises:
        BadInput: If ``time_weight`` is outside [0, 1].
    """
    if not 0.0 <= time_weight <= 1.0:
        raise BadInput("time_weight", f"{time_weight:g}", "a number from 0 to 1")
    joules = compute_step_energy_j(predictions)
    fastest = find_best_row(predictions.step_s, joules)
    time, energy = predictions.step_s / predictions.step_s[fastest], joules / joules[fastest]
    if time_weight in (0.0, 1.0):  # nothing times what is infinite is not a number
        first, second = (time, energy) if time_weight == 1.0 else (energy, time)
    else:
        first, second = time_weight * time + (1.0 - time_weight) * energy, time
    row = find_best_row(first, second)
    shares = f"{time[row]:.0%} of the fastest mode's time and {energy[row]:.0%} of its energy"
    return ModeChoice(row, feasible=True, why=f"Best balance: {shares}, {_describe_expected(predictions, row)}.")


def _front_cost(predictions: Predictions, against: FrontCost) -> Floats:
    return predictions.power_w if against == "power" else compute_step_energy_j(predictions)


def _scale_to_unit(values: Floats) -> Floats:
    """Scale the values to 0..1; zeros if all are equal."""
    low, high = values.min(), values.max()
    scaled: Floats = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return scaled


def _describe_margin(z: float) -> str:
    return f" with {format_figure(z)} spreads of margin" if z else ""


def _describe_expected(predictions: Predictions, row: int) -> str:
    return (
        f"{format_figure(predictions.step_s[row])} s per step and {format_figure(predictions.power_w[row])} W expected"
    )
