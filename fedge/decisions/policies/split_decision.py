"""Least energy within a deadline in one mode, or in two modes if that saves more than the change of mode costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import LIMIT_ROUNDING, format_figure
from fedge.decisions.mode_mix import find_best_split
from fedge.errors import FedgeError
from fedge.types import Decision, Floats, Front, ModeMix, Modes, RoundGoal


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
