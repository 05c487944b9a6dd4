"""The built-in policies: MAXN, presets, limits of the user, and the default and planned policies of least energy.

Symbols: steps n, step time t, power p, idle power i, link l, standard deviations s_t and s_p (log), margin
z = Phi^-1(confidence).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import (
    LIMIT_ROUNDING,
    add_margin,
    compute_margin_z,
    find_best_row,
    format_figure,
    mask_within,
)
from fedge.decisions.mode_mix import find_best_split
from fedge.decisions.mode_objectives import find_fastest_within_power
from fedge.decisions.planning.fleet_planners import CONFIDENCE, MAX_SLOWDOWN, TIME_WEIGHT
from fedge.decisions.planning.front_columns import board_maxn_energy_j
from fedge.errors import BadInput, FedgeError, UnknownName
from fedge.pareto import find_nearest_row
from fedge.types import Decision, DeviceSpec, Floats, Front, ModeMix, Modes, PowerMode, Predictions, RoundGoal


def compute_busy_s(predictions: Predictions, offer: Front, goal: RoundGoal, z: float = 0.0) -> Floats:
    """Return the seconds from the round's start to the end of the upload, l + n t exp(z s_t); shape (modes,)."""
    work_s: Floats = goal.steps * predictions.step_s
    return offer.link_s + work_s * np.exp(z * predictions.step_s_sd_log)


def compute_above_idle_j(predictions: Predictions, offer: Front, goal: RoundGoal, z: float = 0.0) -> Floats:
    """Return the energy of the work beyond idling for the same time in joules, n t (p - i); shape (modes,).

    Args:
        predictions: One row per mode.
        offer: The board's front, for its idle power.
        goal: The round's goal, for its steps.
        z: Margin in standard deviations on time and power: n t exp(z s_t) (p exp(z s_p) - i). Near idle power p - i is
            small and its error large, so that the least of thousands of expected values is mostly the luckiest.
    """
    work_s = goal.steps * predictions.step_s * np.exp(z * predictions.step_s_sd_log)
    energy: Floats = work_s * (predictions.power_w * np.exp(z * predictions.power_w_sd_log) - offer.idle_w)
    return energy


def effective_deadline_s(goal: RoundGoal) -> float | None:
    """Return the shorter of the user's own and the planned deadline in seconds, or None if there is neither."""
    given = [d for d in (goal.limits.get("deadline_s"), goal.deadline_s) if d is not None]
    return min(given, default=None)


@dataclass(frozen=True, slots=True, eq=False)
class ModeFigures:
    """Time and energy of the round by mode, with margins and as expected.

    Attributes:
        modes: The n modes.
        safe_s: End of the round with the margin, in seconds, shape (n,).
        safe_j: Energy above idling with the margin, in joules, shape (n,).
        expected_s: Expected end of the round, in seconds, shape (n,).
        expected_j: Expected energy above idling, in joules, shape (n,).
    """

    modes: Modes
    safe_s: Floats
    safe_j: Floats
    expected_s: Floats
    expected_j: Floats


def decide_least_energy(
    figures: ModeFigures, offer: Front, goal: RoundGoal, deadline_s: float, usable: NDArray[np.bool_], margin: str
) -> Decision:
    """Decide on the mode, or split over two modes, of least energy that ends by the deadline.

    The slower mode runs first, so that its real duration is known when the rest is decided on.

    Args:
        figures: Time and energy by mode.
        offer: The board's front, for its link time, idle power and cost of a mode change.
        goal: The round's goal, for its steps.
        deadline_s: Deadline in seconds after the round's start.
        usable: Mask of the modes to choose from, shape (modes,).
        margin: How the margin is described in the decision's reason.

    Raises:
        FedgeError: If no usable mode alone ends in time.
    """
    step_s = np.where(usable, (figures.safe_s - offer.link_s) / goal.steps, np.inf)
    switch_j = offer.switch_s * max(0.0, offer.maxn.work_j / offer.maxn.work_s - offer.idle_w)
    # As mask_within: a rounding that a deadline allows must not exceed the room, which may be much shorter.
    room_s = deadline_s + LIMIT_ROUNDING * abs(deadline_s) - offer.link_s
    split = find_best_split(
        step_s, figures.safe_j / goal.steps, goal.steps, room_s, switch_s=offer.switch_s, switch_j=switch_j
    )
    if split is None:
        raise FedgeError(f"no mode ends within {format_figure(deadline_s)} s")
    share = split.steps / goal.steps
    time_s, energy_j = (
        share * column[split.slow] + (1.0 - share) * column[split.fast]
        for column in (figures.expected_s, figures.expected_j)
    )
    found = f"{format_figure(time_s)} s and {format_figure(energy_j)} J above idling expected"
    why = f"Least energy within {format_figure(deadline_s)} s {margin}: {found}"
    if split.steps == 0:
        return Decision(figures.modes[split.fast], f"{why}.")
    parts = f"{split.steps} of {goal.steps:.0f} minibatches in {figures.modes[split.slow]} first"
    return Decision(figures.modes[split.fast], f"{why}, {parts}.", mix=ModeMix(figures.modes[split.slow], split.steps))


CLOCK_TOLERANCE = 0.01
"""Relative difference below which clocks are the same: a preset's cap need not be a step of the board's clock table."""


def choose_maxn(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose MAXN, every knob at its top."""
    row = find_nearest_row(predictions.modes, offer.maxn.mode)
    return Decision(predictions.modes[row], f"MAXN: {_describe_expected(predictions, goal, row)}.")


def choose_preset(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose the board's preset named in ``goal.policy`` (``preset:NAME``), or the nearest candidate as not feasible.

    Raises:
        UnknownName: If the board has no such preset; names those that it has.
    """
    name = goal.policy.removeprefix("preset:")
    if name not in spec.presets:
        raise UnknownName(f"policy: preset of {spec.name}", name, tuple(spec.presets))
    wanted = spec.presets[name]
    row = find_nearest_row(predictions.modes, wanted)
    mode, expected = predictions.modes[row], _describe_expected(predictions, goal, row)
    if _is_same_mode(mode, wanted):
        return Decision(mode, f"Preset {name}: {expected}.")
    why = (
        f"Preset {name} ({wanted}) is not among the {len(predictions.modes)} candidates; the nearest takes {expected}."
    )
    return Decision(mode, why, feasible=False)


def _describe_expected(predictions: Predictions, goal: RoundGoal, row: int) -> str:
    work_s, power_w = goal.steps * predictions.step_s[row], predictions.power_w[row]
    return f"{format_figure(work_s)} s of work at {format_figure(power_w)} W expected"


def _is_same_mode(a: PowerMode, b: PowerMode) -> bool:
    clocks = np.array([[m.cpu_mhz, m.gpu_mhz, m.mem_mhz] for m in (a, b)])
    return a.cores == b.cores and bool((np.abs(clocks[0] - clocks[1]) <= CLOCK_TOLERANCE * clocks[1]).all())


ENERGY_MARGIN_SHARE = 0.5
"""Share of the time margin that energy gets, so that the luckiest of thousands of predictions is not simply chosen."""
KNOWN_SD_LOG = 0.06
"""Standard deviation (log) up to which a step time counts as known."""


def choose_balanced(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose least energy within the planned deadline, or, without one, the least weighted sum of own time and energy.

    A planned round was weighed when its deadline was planned (``fedge.decisions.planning.cost_sweep``).
    """
    deadline_s = effective_deadline_s(goal)
    if deadline_s is None:
        return choose_by_weight(predictions, offer, goal, TIME_WEIGHT)
    return choose_by_deadline(predictions, offer, goal, deadline_s)


def choose_by_deadline(
    predictions: Predictions, offer: Front, goal: RoundGoal, deadline_s: float, among: NDArray[np.bool_] | None = None
) -> Decision:
    """Choose least energy above idling in time, both with the margin; else in time as expected; else the fastest mode.

    The plan leaves the slowest board no room for a margin: once it knows its times, it takes the cheapest of the modes
    expected in time.

    Args:
        predictions: One row per mode.
        offer: The board's front, for its link time, idle power and MAXN.
        goal: The round's goal; ``limits["confidence"]`` (0.84) gives the margin.
        deadline_s: Deadline in seconds after the round's start.
        among: Mask of the modes to choose from, shape (modes,), at least one of them finite; all by default.
    """
    among = np.ones(len(predictions.modes), dtype=np.bool_) if among is None else among
    confidence = goal.limits.get("confidence", CONFIDENCE)
    z = compute_margin_z(confidence, "policy.confidence")
    time_s, energy_j = compute_busy_s(predictions, offer, goal), compute_above_idle_j(predictions, offer, goal)
    careful_j = compute_above_idle_j(predictions, offer, goal, ENERGY_MARGIN_SHARE * z)
    safe = among & mask_within(compute_busy_s(predictions, offer, goal, z), deadline_s)
    expected = among & mask_within(time_s, deadline_s) & (predictions.step_s_sd_log <= KNOWN_SD_LOG)
    if not safe.any() and not expected.any():
        row = find_best_row(time_s, energy_j, among)
        if mask_within(time_s, deadline_s)[row]:
            why = (
                f"Fastest mode: {format_figure(time_s[row])} s expected, too uncertain for less in "
                f"{format_figure(deadline_s)} s."
            )
            return Decision(predictions.modes[row], why)
        late = f"later than the {format_figure(deadline_s)} s left"
        return Decision(
            predictions.modes[row], f"Fastest mode: {format_figure(time_s[row])} s expected, {late}.", False
        )
    usable = among if safe.any() else among & (predictions.step_s_sd_log <= KNOWN_SD_LOG)
    kept_s = compute_busy_s(predictions, offer, goal, z) if safe.any() else time_s
    margin = f"with {confidence:.0%} confidence" if safe.any() else "without margin"
    return decide_least_energy(
        ModeFigures(predictions.modes, safe_s=kept_s, safe_j=careful_j, expected_s=time_s, expected_j=energy_j),
        offer=offer,
        goal=goal,
        deadline_s=deadline_s,
        usable=usable,
        margin=margin,
    )


def choose_by_weight(predictions: Predictions, offer: Front, goal: RoundGoal, time_weight: float) -> Decision:
    """Choose least w T/T_maxn + (1-w) E/E_maxn; T and E run from the round's start to the board's own end.

    Args:
        predictions: One row per mode.
        offer: The board's front, for its link time, idle power and MAXN.
        goal: The round's goal; ``limits["max_slowdown"]`` keeps T within that multiple of T_maxn.
        time_weight: The weight w, 0 to 1, unless ``limits["time_weight"]`` is given.
    """
    weight = goal.limits.get("time_weight", time_weight)
    time_s = compute_busy_s(predictions, offer, goal)
    own_j = offer.idle_w * time_s + compute_above_idle_j(predictions, offer, goal)
    maxn_s = offer.link_s + offer.maxn.work_s
    maxn_j = board_maxn_energy_j(offer, maxn_s)
    allowed = mask_within(time_s, goal.limits.get("max_slowdown", np.inf) * maxn_s)
    if not allowed.any():
        row = find_best_row(time_s, own_j)
        longest = f"{goal.limits['max_slowdown']:g} times MAXN's {format_figure(maxn_s)} s"
        why = f"No mode ends within {longest}; the fastest takes {format_figure(time_s[row])} s."
        return Decision(predictions.modes[row], why, feasible=False)
    row = find_best_row(weight * time_s / maxn_s + (1.0 - weight) * own_j / maxn_j, time_s, allowed)
    found = (
        f"{time_s[row] / maxn_s:.0%} of MAXN's {format_figure(maxn_s)} s, {own_j[row] / maxn_j:.0%} of its "
        f"{format_figure(maxn_j)} J"
    )
    return Decision(predictions.modes[row], f"Best balance: {found} expected.")


def choose_least_energy_within_deadline(
    predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec
) -> Decision:
    """Choose least energy above idling with l + n t exp(z s_t) <= the deadline.

    Args:
        predictions: One row per mode.
        offer: The board's front, for its link time l and idle power.
        goal: The round's goal; the deadline is the shorter of ``limits["deadline_s"]`` and the round's, and
            ``limits["confidence"]`` (0.84) gives z.
        spec: The board's specification (unused).

    Returns:
        The decision; if no mode ends in time, the fastest mode, marked as not feasible.

    Raises:
        BadInput: If there is no deadline.
    """
    deadline_s = effective_deadline_s(goal)
    if deadline_s is None:
        example = "seconds from the round's start, e.g. {name: least-energy-within-deadline, deadline_s: 90}"
        raise BadInput("policy.deadline_s", "nothing", example)
    confidence = goal.limits.get("confidence", CONFIDENCE)
    time_s, energy_j = compute_busy_s(predictions, offer, goal), compute_above_idle_j(predictions, offer, goal)
    cautious_s = compute_busy_s(predictions, offer, goal, compute_margin_z(confidence, "policy.confidence"))
    allowed = mask_within(cautious_s, deadline_s) & np.isfinite(energy_j)
    if allowed.any():
        figures = ModeFigures(
            predictions.modes, safe_s=cautious_s, safe_j=energy_j, expected_s=time_s, expected_j=energy_j
        )
        usable = np.isfinite(cautious_s)
        return decide_least_energy(
            figures,
            offer=offer,
            goal=goal,
            deadline_s=deadline_s,
            usable=usable,
            margin=f"with {confidence:.0%} confidence",
        )
    row = find_best_row(time_s, energy_j)
    ends = (
        f"the fastest takes {format_figure(time_s[row])} s, {format_figure(cautious_s[row])} s at "
        f"{confidence:.0%} confidence"
    )
    return Decision(
        predictions.modes[row], f"No mode ends within {format_figure(deadline_s)} s; {ends}.", feasible=False
    )


def choose_fastest_within_power(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose the fastest mode with p exp(z s_p) <= ``limits["power_w"]``, in watts of the whole module.

    Args:
        predictions: One row per mode.
        offer: The board's front, for its link time.
        goal: The round's goal; ``limits["confidence"]`` (0.5: no margin) gives z.
        spec: The board's specification (unused).

    Returns:
        The decision; if no mode keeps the limit, the mode of least power, marked as not feasible.

    Raises:
        BadInput: If ``limits["power_w"]`` is missing.
    """
    if "power_w" not in goal.limits:
        raise BadInput(
            "policy.power_w", "nothing", "the module's watts, e.g. {name: fastest-within-power, power_w: 20}"
        )
    limit_w = goal.limits["power_w"]
    confidence = goal.limits.get("confidence", 0.5)
    z = compute_margin_z(confidence, "policy.confidence")
    choice = find_fastest_within_power(predictions, limit_w, z)
    mode, time_s = predictions.modes[choice.row], compute_busy_s(predictions, offer, goal)[choice.row]
    power_w = add_margin(predictions.power_w, predictions.power_w_sd_log, z)
    at = "" if confidence == 0.5 else f" at {confidence:.0%} confidence"
    if not choice.feasible:
        lowest = f"the lowest is {format_figure(power_w[choice.row])} W"
        return Decision(mode, f"No mode stays within {format_figure(limit_w)} W{at}; {lowest}.", feasible=False)
    found = f"Fastest of {mask_within(power_w, limit_w).sum():,} modes within {format_figure(limit_w)} W"
    return Decision(mode, f"{found}: {format_figure(power_w[choice.row])} W{at}, {format_figure(time_s)} s.")


def choose_least_energy(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose least energy within the planned deadline or the user's own, with the margins of ``balanced``.

    With neither, the limit is ``limits["max_slowdown"]`` (1.05) times the board's own round at MAXN.
    """
    deadline_s = effective_deadline_s(goal)
    if deadline_s is None:
        deadline_s = goal.limits.get("max_slowdown", MAX_SLOWDOWN) * (offer.link_s + offer.maxn.work_s)
    return choose_by_deadline(predictions, offer, goal, deadline_s)


def choose_within_budget(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose least energy within the planned deadline, or, without one, least own energy until the board's own end.

    Without a deadline ``limits["time_weight"]`` (0) weighs time against energy.
    """
    deadline_s = effective_deadline_s(goal)
    if deadline_s is None:
        return choose_by_weight(predictions, offer, goal, 0.0)
    return choose_by_deadline(predictions, offer, goal, deadline_s)


def choose_fastest(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose least energy within the planned deadline among the modes that draw at most ``limits["power_w"]`` watts.

    The limit is the board's share of the fleet's power; without one every mode is allowed. If no mode keeps it, the
    mode of least power is chosen, marked as not feasible. Without a deadline the fastest mode within the limit is
    chosen.
    """
    time_s, power_w = compute_busy_s(predictions, offer, goal), predictions.power_w
    cap_w = goal.limits.get("power_w", np.inf)
    allowed = (power_w <= np.inf) if cap_w == np.inf else mask_within(power_w, cap_w)
    allowed = allowed & np.isfinite(time_s)
    share = "" if cap_w == np.inf else f" within its {format_figure(cap_w)} W"
    if not allowed.any():
        row = find_best_row(power_w, time_s)
        why = f"No mode stays{share}; the lowest draws {format_figure(power_w[row])} W."
        return Decision(predictions.modes[row], why, feasible=False)
    deadline_s = effective_deadline_s(goal)
    if deadline_s is None:
        row = find_best_row(time_s, compute_above_idle_j(predictions, offer, goal), allowed)
        why = f"Fastest mode{share}: {format_figure(time_s[row])} s and {format_figure(power_w[row])} W expected."
        return Decision(predictions.modes[row], why)
    decision = choose_by_deadline(predictions, offer=offer, goal=goal, deadline_s=deadline_s, among=allowed)
    return dataclasses.replace(decision, why=f"{decision.why.removesuffix('.')}{share}.")
