"""Client selection, pure functions that choose who takes part in a round: the name table and its look-up."""

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
"""A selector's name in the configuration -> its function; its own numbers are in
``fedge.decisions.selection.selector_options``."""


def load_selector(name: str, where: str = "selection.name") -> Selector:
    """The selector behind ``name``: one of ``SELECTORS`` or the user's own ``module:function``.

    Raises ``UnknownName`` or ``BadInput`` for the field ``where``.
    """
    selector: Selector = load_named(where, name, SELECTORS)
    return selector
