"""Client selection, pure functions that choose the clients of a round: the table of selectors and its look-up."""

from __future__ import annotations

from fedge.protocols import Selector
from fedge.registry import load_named

SELECTORS = {
    "all": "fedge.decisions.selection.basic_selectors:select_all",
    "random": "fedge.decisions.selection.basic_selectors:select_uniform",
    "round-robin": "fedge.decisions.selection.basic_selectors:select_round_robin",
    "power-of-choice": "fedge.decisions.selection.power_of_choice:select_power_of_choice",
    "oort": "fedge.decisions.selection.oort:select_oort",
    "tifl": "fedge.decisions.selection.tifl:select_tifl",
    "energy-aware": "fedge.decisions.selection.energy_aware:select_energy_aware",
    "planner": "fedge.decisions.selection.planner_selector:select_by_plan",
}
"""The function of each selector, by its name in the configuration; ``selector_options`` holds their parameters."""


def load_selector(name: str, where: str = "selection.name") -> Selector:
    """Return the selector behind a name.

    Args:
        name: One of ``SELECTORS`` or the user's own ``module:function``.
        where: The configuration field that errors name.

    Raises:
        UnknownName: If there is no such selector.
        BadInput: If the user's own function cannot be loaded.
    """
    selector: Selector = load_named(where, name, SELECTORS)
    return selector
