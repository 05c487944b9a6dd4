"""``planner``: the best gain per price by brute force, nobody left out for ever, budgets, and unknown clients."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from contracts.selector import FrontSelectorContract, a_front, chosen, fleet, often, some_clients
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.planning.front_columns import (
    board_maxn_energy_j,
    board_round_energy_j,
    build_columns,
    find_least_energy_point,
)
from fedge.decisions.selection.planner_selector import compute_allowance_j, compute_gains, compute_prices
from fedge.types import ClientStatus, Front, SelectionContext


def ratio(fronts: list[Front], gain: float, deadline_s: float, price: tuple[float, float]) -> float:
    """Gain per price of a round of these boards until ``deadline_s``; 0 when one of them cannot end by then."""
    if any(front.link_s + front.points[0].work_s > deadline_s for front in fronts):
        return 0.0
    joules = sum(
        board_round_energy_j(front, find_least_energy_point(front, deadline_s), deadline_s) for front in fronts
    )
    return gain / (price[0] * deadline_s + price[1] * joules)


class TestPlanner(FrontSelectorContract):
    name = "planner"

    @given(some_clients, st.integers(1, 5), st.sampled_from([0.0, 0.3, 1.0]))
    def test_no_other_clients_are_worth_more_per_price(self, told, count, weight):
        call = SelectionContext(5, count, limits={"time_weight": weight})
        fronts = {c.board: c.front for c in told if c.front is not None}
        price = compute_prices(build_columns(fronts), call)
        worth = dict(zip(fronts, compute_gains(told, call, 0.1), strict=True))
        ends_s = {front.link_s + point.work_s for front in fronts.values() for point in front.points}

        def best(boards: tuple[str, ...]) -> float:
            mine = [fronts[board] for board in boards]
            return max(ratio(mine, sum(worth[b] for b in boards), end_s, price) for end_s in ends_s)

        most = max(best(some) for n in range(1, count + 1) for some in combinations(fronts, n))
        assert best(chosen(self.name, told, call).boards) == pytest.approx(most, rel=1e-6)

    def test_a_second_costs_its_share_of_the_maxn_round_and_so_does_a_joule(self):
        fronts = {"a": a_front(10.0), "b": a_front(19.0)}
        maxn_j = sum(board_maxn_energy_j(front, 20.0) for front in fronts.values())

        assert compute_prices(build_columns(fronts), SelectionContext(1, 1)) == pytest.approx(
            (0.5 / 20.0, 0.5 / maxn_j)
        )
        assert compute_prices(build_columns(fronts), SelectionContext(1, 1, limits={"time_weight": 0.9}))[
            0
        ] == pytest.approx(0.9 / 20.0)
        assert compute_prices(build_columns(fronts), SelectionContext(1, 1, policy="energy-budget")) == (0.0, 1.0)

    def test_the_gain_is_samples_times_loss_and_a_bonus_for_waiting(self):
        told = [
            ClientStatus("a", samples=10, loss=2.0, last_round=9),
            ClientStatus("b", samples=5, loss=1.0, last_round=2),
            ClientStatus("c", samples=5),
        ]

        assert compute_gains(told, SelectionContext(10, 1), 0.0) == pytest.approx([1.0, 0.25, 0.5])
        assert compute_gains(told, SelectionContext(10, 1), 0.1) - compute_gains(
            told, SelectionContext(10, 1), 0.0
        ) == pytest.approx([0.1 * (1 / 3) ** 2, 0.1 * (8 / 3) ** 2, 0.1 * (10 / 3) ** 2])

    def test_a_loss_beyond_all_numbers_does_not_end_the_run(self):
        told = [ClientStatus("a", a_front(), 10, 1e308), ClientStatus("b", a_front(), 10, 1.0)]

        assert np.isfinite(compute_gains(told, SelectionContext(1, 1), 0.1)).all()
        assert chosen(self.name, told, SelectionContext(1, 1)).boards == ("a",)

    def test_a_slow_hungry_client_has_its_turn_too(self):
        told = {c.board: c for c in fleet(9, front=a_front(), samples=10)}
        told["slow"] = ClientStatus("slow", a_front(80.0, 60.0), 10)
        for round_ in range(1, 301):
            for board in chosen(self.name, list(told.values()), SelectionContext(round_, 3), round_).boards:
                client = told[board]
                loss = 2.0 / (1.0 + client.rounds)
                told[board] = dataclasses.replace(client, loss=loss, last_round=round_, rounds=client.rounds + 1)
        rounds = Counter({board: client.rounds for board, client in told.items()})

        assert rounds["slow"] >= 3
        assert rounds["slow"] < min(rounds[c.board] for c in fleet(9)) / 2

    def test_with_a_budget_the_plan_keeps_the_round_s_share_and_gives_its_deadline(self):
        told = fleet(6, front=a_front(), samples=10, loss=1.0, last_round=1)
        limits = {"budget_j": 3000.0, "spent_j": 1000.0, "rounds_left": 4.0}
        answer = chosen(self.name, told, SelectionContext(2, 6, policy="energy-budget", limits=limits))
        point = find_least_energy_point(told[0].front, answer.deadline_s)
        one_j = board_round_energy_j(told[0].front, point, answer.deadline_s)

        assert compute_allowance_j(limits) == 500.0
        idle_j, count = told[0].front.idle_w * answer.deadline_s, len(answer.boards)

        def fleet_j(boards: int) -> float:
            return boards * one_j + (6 - boards) * idle_j

        assert fleet_j(count) <= 500.0 < fleet_j(count + 1)
        assert answer.why == ""
        assert chosen(self.name, told, SelectionContext(2, 6)).deadline_s is None

    def test_the_round_s_share_of_a_budget_is_also_that_of_the_boards_at_rest(self):
        told = fleet(6, front=a_front(), samples=10, loss=1.0, last_round=1)
        limits = {"budget_j": 3600.0, "spent_j": 1000.0, "rounds_left": 4.0}
        alone = SelectionContext(2, 6, policy="energy-budget", limits=limits)
        many = chosen(self.name, told, alone)
        few = chosen(self.name, told, dataclasses.replace(alone, limits=limits | {"resting_w": 1.0}))

        assert 0 < len(few.boards) < len(many.boards)

    def test_a_budget_that_is_used_up_still_gives_the_cheapest_client(self):
        told = [ClientStatus("a", a_front(power_w=30.0)), ClientStatus("b", a_front(power_w=10.0))]
        limits = {"budget_j": 10.0, "spent_j": 20.0, "rounds_left": 1.0}

        assert compute_allowance_j(limits) == 0.0
        answer = chosen(self.name, told, SelectionContext(1, 2, policy="energy-budget", limits=limits))
        assert answer.boards == ("b",)
        assert answer.why.startswith("No board keeps the round's 0 J of the budget")
        assert compute_allowance_j({}) is None

    def test_clients_without_a_front_get_a_tenth_of_the_seats_and_those_nobody_else_fills(self):
        told = [
            *fleet(6, front=a_front(), samples=10, loss=1.0, last_round=4),
            ClientStatus("new"),
            ClientStatus("newer"),
        ]
        taken = often(self.name, told, SelectionContext(5, 2), 600)

        assert sum(times for boards, times in taken.items() if "new" in boards) / 600 == pytest.approx(0.2, abs=0.05)
        assert not any("newer" in boards for boards in taken)
        assert set(chosen(self.name, told, SelectionContext(5, 8)).boards) == {c.board for c in told}

    def test_where_the_policy_pins_the_mode_only_maxn_counts(self):
        slow_and_cheap = dataclasses.replace(a_front(10.0, 20.0), maxn=a_front(30.0, 20.0).maxn)
        told = [ClientStatus("a", slow_and_cheap, 10, 1.0), ClientStatus("b", a_front(20.0, 20.0), 10, 1.0)]

        assert chosen(self.name, told, SelectionContext(1, 1, policy="balanced")).boards == ("a",)
        assert chosen(self.name, told, SelectionContext(1, 1, policy="maxn")).boards == ("b",)
        assert chosen(self.name, told, SelectionContext(1, 1, policy="preset:MAXN")).boards == ("b",)
