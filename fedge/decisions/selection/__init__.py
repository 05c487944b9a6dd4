"""Client selection, pure functions that choose the clients of a round: the table of selectors and its look-up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedge.errors import BadInput
from fedge.protocols import Selector
from fedge.registry import call_plugin, describe_value, load_named
from fedge.types import ClientStatus, SelectionContext, SelectionResult

SELECTORS = {
    "all": "fedge.decisions.selection.basic_selectors:select_all",
    "random": "fedge.decisions.selection.basic_selectors:select_uniform",
    "round-robin": "fedge.decisions.selection.basic_selectors:select_round_robin",
    "power-of-choice": "fedge.decisions.selection.basic_selectors:select_power_of_choice",
    "oort": "fedge.decisions.selection.oort:select_oort",
    "pyramidfl-like": "fedge.decisions.selection.pyramidfl:select_pyramidfl",
    "tifl": "fedge.decisions.selection.tifl:select_tifl",
    "fedjoule-like": "fedge.decisions.selection.fedjoule:select_fedjoule",
    "fedzero-like": "fedge.decisions.selection.fedzero:select_fedzero",
    "energy-aware": "fedge.decisions.selection.energy_aware:select_energy_aware",
    "planner": "fedge.decisions.selection.planner_selector:select_by_plan",
}
"""The function of each selector, by its name in the configuration; ``selector_options`` holds their parameters."""
WHERE = "selection.name"
"""The configuration field that errors name."""


def load_selector(name: str) -> Selector:
    """Return the selector behind a name.

    Args:
        name: One of ``SELECTORS`` or the user's own ``module:function``.

    Raises:
        UnknownName: If there is no such selector.
        BadInput: If the user's own function cannot be loaded.
    """
    selector: Selector = load_named(WHERE, name, SELECTORS)
    return selector if name in SELECTORS else _check_results(selector, name)


def _check_results(selector: Selector, name: str) -> Selector:
    """Return the user's own selector, whose calls raise ``BadInput`` unless it selects clients that were offered."""
    if not callable(selector):
        raise BadInput(WHERE, repr(name), "a function or a class")

    def select(clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator) -> SelectionResult:
        result = call_plugin(WHERE, name, SelectionResult, lambda: selector(clients, call, rng))
        offered = {client.board for client in clients}
        boards: object = result.boards
        if not isinstance(boards, tuple | list) or not all(isinstance(board, str) for board in boards):
            raise BadInput(WHERE, f"{name!r}, which chose {describe_value(boards)}", "a tuple of names, client.board")
        if unknown := sorted(set(boards) - offered):
            right = "names of the clients that it was called with, client.board"
            raise BadInput(WHERE, f"{name!r}, which chose {unknown[0]!r}", right)
        if wrong := [share for share in result.shares.values() if not 0.0 < share < math.inf]:
            raise BadInput(WHERE, f"{name!r}, which gave a share of {wrong[0]:g}", "shares of the steps above 0")
        return result

    return select
