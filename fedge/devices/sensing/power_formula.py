"""Which rails are the board's total: the formula that is asked for, else the input rail, else the sum of all rails."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedge.errors import SensorLost

INPUT_RAILS = ("VIN", "POM_5V_IN", "VDD_IN")
"""Rails that are the whole module's input, the first that is there."""


def rails_in_formula(formula: str) -> tuple[str, ...]:
    """``"A + B"`` -> ``("A", "B")``."""
    return tuple(rail.strip() for rail in formula.split("+"))


def choose_total_formula(labels: Collection[str], wanted: str | None, where: str) -> str:
    """The formula of the total from the rails that are there; ``wanted`` counts when it has all its rails.

    Raises ``SensorLost`` when there is no rail at all; ``where`` says what was looked at, and what to do.
    """
    if wanted is not None and all(rail in labels for rail in rails_in_formula(wanted)):
        return wanted
    if not labels:
        raise SensorLost(f"no power rail found: {where}")
    return next((rail for rail in INPUT_RAILS if rail in labels), " + ".join(labels))


def evaluate_formula_w(formula: str, rails_w: Mapping[str, float]) -> float | None:
    """The total, watts; None when one of its rails is missing."""
    parts = [rails_w.get(rail) for rail in rails_in_formula(formula)]
    return None if None in parts else sum(part for part in parts if part is not None)
