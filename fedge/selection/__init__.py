"""Client selection, pure functions that choose who takes part in a round: the name table and its look-up."""

from __future__ import annotations

from fedge.interfaces import Selector
from fedge.registry import load

SELECTORS = {
    "all": "fedge.selection.everybody:everybody",
    "random": "fedge.selection.uniform:uniform",
    "round-robin": "fedge.selection.in_turns:in_turns",
    "power-of-choice": "fedge.selection.power_of_choice:power_of_choice",
    "oort": "fedge.selection.oort:oort",
    "tifl": "fedge.selection.tifl:tifl",
    "energy-aware": "fedge.selection.energy_aware:energy_aware",
    "planner": "fedge.selection.planner:planner",
}
"""A selector's name in the configuration -> its function; its own numbers are in ``fedge.selection.options``."""


def selector_for(name: str, where: str = "selection.name") -> Selector:
    """The selector behind ``name``: one of ``SELECTORS`` or the user's own ``module:function``.

    Raises ``UnknownName`` or ``BadInput`` for the field ``where``.
    """
    selector: Selector = load(where, name, SELECTORS)
    return selector
