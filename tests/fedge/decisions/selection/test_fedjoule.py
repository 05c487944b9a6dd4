"""``fedjoule-like``: most value within the round's energy by brute force, then the shortest such round."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from contracts.selector import FrontSelectorContract, a_front, chosen, fleet, some_clients
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.planning.front_columns import board_round_energy_j, find_least_energy_point
from fedge.decisions.selection.planner_selector import compute_gains
from fedge.types import ClientStatus, Front, SelectionContext

PLAIN = {"confidence": 0.5}
"""No margin on times."""


def front_of(client: ClientStatus) -> Front:
    assert client.front is not None
    return client.front


def fleet_energy_j(clients: list[ClientStatus], boards: tuple[str, ...], end_s: float) -> float:
    """Joules of all clients in a round until ``end_s`` in which ``boards`` work."""
    fronts = [front_of(c) for c in clients if c.board in boards]
    if any(front.link_s + front.points[0].work_s > end_s for front in fronts):
        return np.inf
    working = sum(board_round_energy_j(f, find_least_energy_point(f, end_s), end_s) for f in fronts)
    return working + end_s * sum(front_of(c).idle_w for c in clients if c.board not in boards)


class TestFedjoule(FrontSelectorContract):
    name = "fedjoule-like"

    @given(some_clients, st.integers(1, 5), st.sampled_from([200.0, 500.0, 1500.0]), st.sampled_from([0.0, 0.2]))
    def test_no_other_clients_are_worth_more_and_no_such_round_is_shorter(self, told, count, allowed_j, tolerance):
        limits = {**PLAIN, "budget_j": allowed_j, "rounds_left": 1.0}
        call = SelectionContext(5, count, {"tolerance": tolerance}, policy="energy-budget", limits=limits)
        answer = chosen(self.name, told, call)
        worth = dict(zip((c.board for c in told), compute_gains(told, call, 0.0).tolist(), strict=True))
        ends_s = sorted({front_of(c).link_s + point.work_s for c in told for point in front_of(c).points})
        kept = [
            (end_s, sum(worth[board] for board in some))
            for end_s in ends_s
            for n in range(1, count + 1)
            for some in combinations(worth, n)
            if fleet_energy_j(told, some, end_s) <= allowed_j * (1.0 - 1e-6)
        ]
        if not kept:
            return
        least = (1.0 - tolerance) * max(value for _, value in kept) * (1.0 - 1e-6)

        assert answer.why == ""
        assert answer.deadline_s is not None
        assert fleet_energy_j(told, answer.boards, answer.deadline_s) <= allowed_j * (1.0 + 1e-6)
        assert sum(worth[board] for board in answer.boards) >= least
        assert answer.deadline_s <= min(end_s for end_s, value in kept if value >= least) * (1.0 + 1e-9)

    def test_less_energy_left_takes_fewer_clients(self):
        told = [ClientStatus(f"{i}", a_front(10.0 + i), samples=10, loss=1.0, last_round=1) for i in range(6)]

        def count(budget_j: float, spent_j: float) -> int:
            limits = {"budget_j": budget_j, "spent_j": spent_j, "rounds_left": 2.0}
            return len(chosen(self.name, told, SelectionContext(2, 6, policy="energy-budget", limits=limits)).boards)

        assert count(10_000.0, 0.0) == 6
        assert 1 <= count(2_000.0, 0.0) < 6
        assert count(2_000.0, 1_000.0) < count(2_000.0, 0.0)

    def test_boards_that_were_not_offered_draw_their_idle_power_from_the_budget_too(self):
        told = [ClientStatus(f"{i}", a_front(10.0), samples=10, loss=1.0, last_round=1) for i in range(6)]
        limits = {"budget_j": 1_000.0, "rounds_left": 1.0}
        few, many = (
            chosen(
                self.name, told, SelectionContext(2, 6, policy="energy-budget", limits=limits | {"resting_w": watts})
            )
            for watts in (0.0, 20.0)
        )

        assert len(many.boards) < len(few.boards)

    def test_without_a_budget_the_most_valuable_clients_work_in_the_shortest_round_of_nearly_their_value(self):
        told = [
            ClientStatus("good", a_front(10.0), samples=100, loss=1.0, last_round=1),
            ClientStatus("slow", a_front(50.0), samples=2, loss=1.0, last_round=1),
            ClientStatus("fast", a_front(5.0), samples=1, loss=1.0, last_round=1),
        ]

        assert chosen(self.name, told, SelectionContext(2, 2, limits=PLAIN)).deadline_s == pytest.approx(11.0)
        assert chosen(self.name, told, SelectionContext(2, 2, {"tolerance": 0.0})).boards == ("good", "slow")

    def test_a_pinned_mode_gets_no_deadline(self):
        assert chosen(self.name, fleet(3, front=a_front()), SelectionContext(2, 2, policy="maxn")).deadline_s is None

    def test_a_client_that_was_never_selected_counts_as_the_one_of_highest_loss(self):
        told = [
            ClientStatus("new", a_front(), samples=10),
            ClientStatus("known", a_front(), samples=10, loss=0.5, last_round=1),
            ClientStatus("lossy", a_front(), samples=10, loss=2.0, last_round=1),
        ]

        assert chosen(self.name, told, SelectionContext(2, 2)).boards == ("lossy", "new")

    def test_if_nothing_keeps_the_budget_the_cheapest_goes_alone(self):
        told = [ClientStatus("dear", a_front(20.0)), ClientStatus("cheap", a_front(5.0))]
        limits = {"budget_j": 1.0, "rounds_left": 1.0}
        answer = chosen(self.name, told, SelectionContext(1, 2, policy="energy-budget", limits=limits))

        assert answer.boards == ("cheap",)
        assert answer.why.startswith("No board keeps the round's 1 J")
