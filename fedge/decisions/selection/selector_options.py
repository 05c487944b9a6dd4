"""The numeric options of each selector, with defaults and ranges, and their check."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedge.errors import BadInput, list_known


@dataclass(frozen=True, slots=True)
class SelectorOption:
    """A number from ``low`` to ``high``; a default of None means that the option may be absent."""

    default: float | None
    low: float
    high: float = math.inf
    whole: bool = False

    @property
    def description(self) -> str:
        """The allowed values, in words."""
        number = "a whole number" if self.whole else "a number"
        if math.isinf(self.high):
            return f"{number} of at least {self.low:g}"
        return f"{number} from {self.low:g} to {self.high:g}"

    def allows(self, value: float) -> bool:
        """Return whether ``value`` is allowed."""
        return math.isfinite(value) and self.low <= value <= self.high and (not self.whole or value == round(value))


SELECTOR_OPTIONS: Mapping[str, Mapping[str, SelectorOption]] = {
    "all": {},
    "random": {},
    "round-robin": {},
    "power-of-choice": {"candidates": SelectorOption(None, 1, whole=True)},
    "oort": {
        "exploration": SelectorOption(0.9, 0.0, 1.0),
        "exploration_decay": SelectorOption(0.98, 0.0, 1.0),
        "exploration_least": SelectorOption(0.2, 0.0, 1.0),
        "slow_penalty": SelectorOption(2.0, 0.0, 100.0),
        "preferred_percentile": SelectorOption(30.0, 0.0, 100.0),
        "pacer_window": SelectorOption(20, 1, whole=True),
        "pacer_percent": SelectorOption(5.0, 0.0, 100.0),
        "cut_off": SelectorOption(0.95, 0.0, 1.0),
        "clip": SelectorOption(0.95, 0.0, 1.0),
    },
    "pyramidfl-like": {
        "exploration_decay": SelectorOption(0.95, 0.0, 1.0),
        "preferred_percentile": SelectorOption(10.0, 0.0, 100.0),
        "clip": SelectorOption(0.98, 0.0, 1.0),
        "more_steps": SelectorOption(10.0, 0.0, 100.0),
    },
    "tifl": {
        "tiers": SelectorOption(5, 1, whole=True),
        "credits": SelectorOption(20, 1, whole=True),
        "interval": SelectorOption(10, 1, whole=True),
    },
    "fedjoule-like": {"tolerance": SelectorOption(0.05, 0.0, 1.0)},
    "fedzero-like": {
        "threshold": SelectorOption(1.0, 0.0, 1e6),
        "alpha": SelectorOption(1.0, 0.0, 1e6),
    },
    "energy-aware": {
        "charge_floor": SelectorOption(0.2, 0.0, 1.0),
        "temperature_c": SelectorOption(80.0, -40.0, 150.0),
        "power_w": SelectorOption(None, 0.1),
        "charge_weight": SelectorOption(1.0, 0.0, 1e6),
        "energy_weight": SelectorOption(1.0, 0.0, 1e6),
        "fairness_weight": SelectorOption(1.0, 0.0, 1e6),
    },
    "planner": {
        "uncertainty": SelectorOption(0.1, 0.0, 1e6),
        "unknown_share": SelectorOption(0.1, 0.0, 1.0),
    },
}
"""Options by name for each selector; docs/explanation/selection.md describes each.

Of ``oort``, the exploration, ``slow_penalty``, ``cut_off``, ``clip`` and ``pacer_window`` are the paper's;
``preferred_percentile`` and ``pacer_percent`` follow the authors' program, because absolute seconds depend on the
fleet. Those of ``pyramidfl-like``, and ``alpha`` of ``fedzero-like``, are their authors' programs'; their others are
``oort``'s. ``tolerance`` of ``fedjoule-like``, ``threshold`` of ``fedzero-like``, ``credits`` and ``interval`` of
``tifl``, its equal tier sizes, and twice the clients as candidates of ``power-of-choice`` are our defaults.
"""


def check_options(selector: str, given: Mapping[str, float], where: str = "selection.options") -> None:
    """Check the options given to a selector.

    Args:
        selector: Name of the selector; one that is not in ``SELECTOR_OPTIONS`` (the user's own) takes any option.
        given: Options by name.
        where: The configuration field that errors name.

    Raises:
        BadInput: For an option that the selector does not take, or a value out of its range.
    """
    if selector not in SELECTOR_OPTIONS:
        return
    known = SELECTOR_OPTIONS[selector]
    for name, value in given.items():
        if name not in known:
            right = list_known(name, known, f"{selector} takes ") if known else f"{selector} takes no options"
            raise BadInput(f"{where}.{name}", f"{value:g}", right)
        if not known[name].allows(value):
            raise BadInput(f"{where}.{name}", f"{value:g}", known[name].description)


def complete_options(selector: str, given: Mapping[str, float]) -> dict[str, float]:
    """Return the given options completed with the defaults; options without a default may be absent.

    Raises:
        BadInput: As in ``check_options``.
    """
    check_options(selector, given)
    defaults = {
        name: option.default for name, option in SELECTOR_OPTIONS[selector].items() if option.default is not None
    }
    return {**defaults, **given}
