"""The formula of a board's total power: the preferred one, else the input rail, else the sum of all rails."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedge.errors import SensorLost

INPUT_RAILS = ("VIN", "POM_5V_IN", "VDD_IN")
"""Rails that measure the module's whole input; the first one present is used."""


def rails_in_formula(formula: str) -> tuple[str, ...]:
    """Return the rails of a formula, such as ``("A", "B")`` for ``"A + B"``."""
    return tuple(rail.strip() for rail in formula.split("+"))


def choose_total_formula(labels: Collection[str], wanted: str | None, where: str) -> str:
    """Choose the formula of total power.

    ``wanted`` is used if all of its rails exist.

    Raises:
        SensorLost: The board has no rails.
    """
    if wanted is not None and all(rail in labels for rail in rails_in_formula(wanted)):
        return wanted
    if not labels:
        raise SensorLost(f"no power rail found: {where}")
    return next((rail for rail in INPUT_RAILS if rail in labels), " + ".join(labels))


def evaluate_formula_w(formula: str, rails_w: Mapping[str, float]) -> float | None:
    """Return total power in watts, or None if one of the formula's rails is missing."""
    parts = [rails_w.get(rail) for rail in rails_in_formula(formula)]
    return None if None in parts else sum(part for part in parts if part is not None)


def require_total_w(formula: str, rails_w: Mapping[str, float], source: str) -> float:
    """Return total power in watts.

    Raises:
        SensorLost: ``source``, such as "a line", lacks a rail of the formula.
    """
    total_w = evaluate_formula_w(formula, rails_w)
    if total_w is None:
        missing = [rail for rail in rails_in_formula(formula) if rail not in rails_w]
        raise SensorLost(f"{source} lacks {', '.join(missing)} of the total {formula}")
    return total_w
