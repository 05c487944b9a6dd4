"""``energy-aware``: spares empty and hot boards, keeps the power budget, shares the work."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from contracts.selector import SelectorContract, a_front, chosen, clients, fleet
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.selection import load_selector
from fedge.decisions.selection.energy_aware import estimate_budget_w, find_unfit_reason
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, SelectionContext

fleets = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1).flatmap(
    lambda names: st.tuples(*(clients(name, 9) for name in names))
)


class TestEnergyAware(SelectorContract):
    name = "energy-aware"

    def everybody(self, offered: list[ClientStatus], call: SelectionContext) -> set[str]:
        """All that are fit, or, when none is, the one that goes alone."""
        fit = {
            client.board
            for client in offered
            if find_unfit_reason(client, call, complete_options(self.name, {})) is None
        }
        return fit or set(chosen(self.name, offered, call).boards)

    @given(fleets, st.integers(1, 9))
    def test_no_board_below_its_floor_or_too_hot_is_taken_while_another_is_left(self, offered, count):
        answer = load_selector(self.name)(offered, SelectionContext(9, count), np.random.default_rng(1))
        spared = {
            c.board
            for c in offered
            if (c.charge is not None and c.charge < 0.2) or (c.temperature_c is not None and c.temperature_c > 80.0)
        }
        if answer.why.startswith("No board is fit"):
            assert len(answer.boards) == 1
        else:
            assert not spared & set(answer.boards)
        if all(client.charge_j is None for client in offered):
            assert answer.why.startswith("No board is fit") == (len(spared) == len(offered))

    @given(st.lists(st.floats(1.0, 60.0), min_size=1, max_size=8), st.integers(1, 8), st.floats(1.0, 150.0))
    def test_the_power_budget_is_kept_unless_a_single_board_breaks_it(self, watts, count, power_w):
        told = {f"{i}": ClientStatus(f"{i}", front=a_front(power_w=w)) for i, w in enumerate(watts)}
        answer = chosen(self.name, list(told.values()), SelectionContext(1, count, {"power_w": power_w}))
        drawn_w = sum(watts[int(board)] for board in answer.boards)

        if min(watts) <= power_w * (1 - 1e-9):
            assert drawn_w <= power_w * (1 + 1e-9)
            left = [w for i, w in enumerate(watts) if str(i) not in answer.boards]
            assert len(answer.boards) == count or not left or drawn_w + min(left) > power_w * (1 - 1e-9)
        elif min(watts) > power_w * (1 + 1e-9):
            assert drawn_w == min(watts)
            assert answer.why.startswith(f"No board keeps {power_w:g} W by itself")

    def test_when_no_board_is_fit_the_fullest_and_then_the_coolest_goes_alone_and_it_says_why(self):
        told = [
            ClientStatus("a", charge=0.1),
            ClientStatus("b", charge=0.15),
            ClientStatus("c", charge=0.9, temperature_c=95.0),
            ClientStatus("d", charge=0.9, temperature_c=90.0),
        ]
        answer = chosen(self.name, told, SelectionContext(1, 2))

        assert answer.boards == ("d",)
        assert answer.why == "No board is fit (above 80 degrees; below 20% charge): the fullest goes alone."

    def test_a_battery_that_holds_less_than_the_round_takes_is_spared(self):
        told = [
            ClientStatus("a", charge=0.9, charge_j=50.0, front=a_front()),
            ClientStatus("b", charge=0.3, front=a_front()),
        ]
        answer = chosen(self.name, told, SelectionContext(1, 2))

        assert answer.boards == ("b",)
        assert answer.why == "1 of 2 boards are spared."

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ({"charge": 0.9}, {"charge": 0.5}),
            ({"charge": None}, {"charge": 0.99}),
            ({"front": a_front(power_w=10.0)}, {"front": a_front(power_w=12.0)}),
            ({"rounds": 3}, {"rounds": 4}),
        ],
    )
    def test_the_fuller_the_cheaper_and_the_less_asked_go_first(self, first, second):
        told = [dataclasses.replace(ClientStatus("b", front=a_front(), rounds=9), **first)]
        told += [dataclasses.replace(ClientStatus("a", front=a_front(), rounds=9), **second)]

        assert chosen(self.name, told, SelectionContext(10, 1)).boards == ("b",)

    def test_a_dear_board_has_its_turn_more_rarely_but_has_it(self):
        told = {c.board: c for c in [*fleet(3, front=a_front()), ClientStatus("dear", front=a_front(power_w=40.0))]}
        for round_ in range(1, 201):
            for board in chosen(self.name, list(told.values()), SelectionContext(round_, 1)).boards:
                told[board] = dataclasses.replace(told[board], rounds=told[board].rounds + 1, last_round=round_)
        rounds = Counter({board: client.rounds for board, client in told.items()})

        assert rounds["dear"] / rounds["a"] == pytest.approx(0.5, abs=0.05)
        assert max(rounds[b] for b in "abc") - min(rounds[b] for b in "abc") <= 1

    def test_the_watts_are_the_most_a_board_may_draw_unless_the_policy_keeps_a_limit(self):
        told = [
            ClientStatus("a", front=a_front(power_w=20.0)),
            ClientStatus("b"),
            ClientStatus("c", front=a_front(power_w=8.0)),
        ]

        assert estimate_budget_w(told, SelectionContext(1, 1)) == pytest.approx([20.0, 20.0, 8.0])
        assert estimate_budget_w(told, SelectionContext(1, 1, limits={"power_w": 12.0})) == pytest.approx(
            [12.0, 12.0, 8.0]
        )
        assert estimate_budget_w(told, SelectionContext(1, 1, limits={"power_w": 5.0})) == pytest.approx(
            [10.0, 10.0, 5.0]
        )
        assert estimate_budget_w(told, SelectionContext(1, 1, limits={"fleet_power_w": 30.0})) == pytest.approx(
            [10.0, 10.0, 4.0]
        )

    def test_the_budget_of_the_whole_fleet_counts_when_it_has_none_of_its_own(self):
        told = fleet(5, front=a_front(power_w=20.0))

        assert len(chosen(self.name, told, SelectionContext(1, 5, limits={"fleet_power_w": 30.0})).boards) == 3
        assert len(chosen(self.name, told, SelectionContext(1, 5, {"power_w": 45.0})).boards) == 2
