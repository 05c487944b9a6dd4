"""Least energy within a deadline in one mode, or in two where that saves more than changing the mode costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.choice.mixing import best_split
from fedge.errors import FedgeError
from fedge.policies.choice import figure
from fedge.types import Decision, Floats, Front, Goal, Mix, Modes


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """Per mode: when the round is over and joules above idling, as they are counted with margins and as expected."""

    modes: Modes
    kept_s: Floats
    kept_j: Floats
    expected_s: Floats
    expected_j: Floats


def least_energy(
    figures: Figures, offer: Front, goal: Goal, deadline_s: float, usable: NDArray[np.bool_], margin: str
) -> Decision:
    """The decision for ``deadline_s``, which one of the ``usable`` modes must keep alone; ``margin`` says how surely.

    The slower mode comes first, so that what it really took is known when the rest is decided on.
    """
    step_s = np.where(usable, (figures.kept_s - offer.link_s) / goal.steps, np.inf)
    switch_j = offer.switch_s * max(0.0, offer.maxn.work_j / offer.maxn.work_s - offer.idle_w)
    room_s = deadline_s - offer.link_s
    split = best_split(
        step_s, figures.kept_j / goal.steps, goal.steps, room_s, switch_s=offer.switch_s, switch_j=switch_j
    )
    if split is None:
        raise FedgeError(f"no mode ends within {figure(deadline_s)} s")
    share = split.steps / goal.steps
    time_s, energy_j = (
        share * column[split.slow] + (1.0 - share) * column[split.fast]
        for column in (figures.expected_s, figures.expected_j)
    )
    found = f"{figure(time_s)} s and {figure(energy_j)} J above idling expected"
    why = f"Least energy within {figure(deadline_s)} s {margin}: {found}"
    if split.steps == 0:
        return Decision(figures.modes[split.fast], f"{why}.")
    parts = f"{split.steps} of {goal.steps:.0f} minibatches in {figures.modes[split.slow]} first"
    return Decision(figures.modes[split.fast], f"{why}, {parts}.", mix=Mix(figures.modes[split.slow], split.steps))
