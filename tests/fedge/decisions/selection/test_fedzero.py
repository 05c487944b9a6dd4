"""``fedzero-like``: Oort's order among clients that are not blocked for having taken part too often."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from contracts.selector import SelectorContract, chosen, fleet

from fedge.decisions.selection import load_selector
from fedge.decisions.selection.fedzero import EXCESS_SELECTOR, compute_release_chances
from fedge.types import ClientStatus, SelectionContext

TOLD = {"samples": 10, "loss": 1.0, "last_round": 9}


class TestFedzero(SelectorContract):
    name = EXCESS_SELECTOR

    def test_clients_of_high_utility_are_preferred(self):
        told = [
            dataclasses.replace(c, loss=loss) for c, loss in zip(fleet(4, **TOLD), (0.1, 2.0, 0.2, 2.0), strict=True)
        ]
        assert chosen(self.name, told, SelectionContext(10, 2)).boards == ("b", "d")


def released_share(rounds: int, alpha: float = 1.0, draws: int = 400) -> float:
    """How often a blocked client of so many rounds is chosen again, beside nine of two rounds; all are wanted."""
    told = [*(ClientStatus(f"o{i}", rounds=2, **TOLD) for i in range(9)), ClientStatus("much", rounds=rounds, **TOLD)]
    call = SelectionContext(10, 10, options={"alpha": alpha}, memory={"blocked:much": 1.0})
    rng = np.random.default_rng(1)
    return sum("much" in load_selector(EXCESS_SELECTOR)(told, call, rng).boards for _ in range(draws)) / draws


def test_the_more_rounds_a_client_has_above_the_mean_the_longer_it_stays_blocked():
    assert released_share(2) == released_share(3) == 1.0
    assert released_share(7) == pytest.approx(1 / 4.5, abs=0.07)
    assert released_share(22) == pytest.approx(1 / 18, abs=0.04)
    assert released_share(22, alpha=18.0) == 1.0


def test_chances_of_release_are_those_of_the_authors_program():
    told = [ClientStatus(f"{i}", rounds=rounds) for i, rounds in enumerate((0, 2, 4, 10))]
    assert compute_release_chances(told, 1.0).tolist() == [1.0, 1.0, 1.0, 1.0 / 6.0]
    assert compute_release_chances([], 1.0).tolist() == []


def test_who_took_part_is_blocked_and_who_is_away_stays_so():
    told = [ClientStatus(name, rounds=rounds, **TOLD) for name, rounds in (("a", 1), ("b", 1), ("c", 90))]
    call = SelectionContext(10, 2, options={"alpha": 0.0}, memory={"blocked:c": 1.0, "blocked:gone": 1.0})
    first = chosen(EXCESS_SELECTOR, told, call)
    assert first.boards == ("a", "b")
    assert {name for name in first.memory if name.startswith("blocked:")} == {
        f"blocked:{n}" for n in ("a", "b", "c", "gone")
    }


def test_if_all_are_blocked_all_may_take_part():
    told = [ClientStatus("a", rounds=50, **TOLD), ClientStatus("b", rounds=0, last_round=None)]
    call = SelectionContext(10, 1, options={"alpha": 0.0}, memory={"blocked:a": 1.0})
    assert chosen(EXCESS_SELECTOR, told[:1], call).boards == ("a",)
