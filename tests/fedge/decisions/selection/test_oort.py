"""``oort``: utility, exploration that fades, and the pacer that lets slower clients in."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from contracts.selector import SelectorContract, a_front, chosen, fleet, often

from fedge.decisions.selection.oort import (
    Pacer,
    compute_statistical_utility,
    compute_utilities,
    exploration_share,
    update_pacer,
)
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, SelectionContext

NUMBERS = complete_options("oort", {})
ALIKE = {"front": a_front(), "samples": 10, "loss": 1.0, "busy_s": 10.0, "last_round": 9, "rounds": 3}


class TestOort(SelectorContract):
    name = "oort"

    def test_the_share_that_explores_fades_from_nine_tenths_to_a_fifth(self):
        assert exploration_share(1, NUMBERS) == 0.9
        assert exploration_share(2, NUMBERS) == pytest.approx(0.882)
        assert exploration_share(1000, NUMBERS) == 0.2

    def test_so_many_seats_go_to_clients_that_never_took_part(self):
        old = [dataclasses.replace(client, board=f"old-{client.board}") for client in fleet(12, **ALIKE)]
        explored = [
            sum(
                not board.startswith("old-")
                for board in chosen(self.name, [*old, *fleet(12)], SelectionContext(31, 4), seed).boards
            )
            for seed in range(1500)
        ]

        assert np.mean(explored) == pytest.approx(4 * 0.9 * 0.98**30, abs=0.05)

    def test_unexplored_clients_are_drawn_by_speed(self):
        told = [ClientStatus("fast", front=a_front(9.0)), ClientStatus("slow", front=a_front(29.0))]
        taken = often(self.name, told, SelectionContext(1, 1), 4000)

        assert taken["fast",] / 4000 == pytest.approx(0.75, abs=0.03)

    def test_exploitation_draws_by_utility_among_those_near_the_cut_off(self):
        losses = {"a": 1.0, "b": 0.99, "c": 0.5, "d": 0.0}
        told = [dataclasses.replace(fleet(1, **ALIKE)[0], board=board, loss=loss) for board, loss in losses.items()]
        options = {"exploration": 0.0, "exploration_least": 0.0, "clip": 1.0}
        taken = often(self.name, told, SelectionContext(10, 1, options), 500)

        assert set(taken) == {("a",), ("b",)}
        assert min(taken.values()) > 200

    def test_the_utility_is_samples_times_loss_scaled_with_a_bonus_for_long_ago(self):
        told = [
            ClientStatus("a", samples=10, loss=2.0, last_round=4, busy_s=5.0),
            ClientStatus("b", samples=30, loss=1.0, last_round=1, busy_s=5.0),
            ClientStatus("c", samples=10, loss=1.0, last_round=9, busy_s=5.0),
        ]
        bonus = [math.sqrt(0.1 * math.log(10) / last) for last in (4, 1, 9)]

        assert compute_statistical_utility(told).tolist() == [20.0, 30.0, 10.0]
        assert compute_utilities(told, 10, 100.0, {**NUMBERS, "clip": 1.0}) == pytest.approx(
            [0.5 + bonus[0], 1.0 + bonus[1], 0.0 + bonus[2]]
        )

    def test_a_client_slower_than_preferred_is_worth_less_by_the_square_of_how_much(self):
        told = [
            ClientStatus(b, samples=10, loss=1.0, last_round=9, busy_s=t)
            for b, t in zip("abc", (5, 10, 20), strict=True)
        ]
        free, penalised = (compute_utilities(told, 10, percentile, NUMBERS) for percentile in (100.0, 50.0))

        assert free == pytest.approx([free[0]] * 3)
        assert penalised / free == pytest.approx([1.0, 1.0, 0.25])

    def test_one_outlier_does_not_make_all_others_worthless(self):
        ordinary = [
            ClientStatus(f"c{i:02d}", samples=10, loss=1.0 + 0.01 * i, last_round=9, busy_s=5.0) for i in range(20)
        ]
        outlier = ClientStatus("wild", samples=10, loss=1e6, last_round=9, busy_s=5.0)
        utility = compute_utilities([*ordinary, outlier], 10, 100.0, NUMBERS)

        assert utility[10] > 0.4
        assert utility[-1] == pytest.approx(utility[-2], rel=0.01)

    def test_the_pacer_relaxes_when_a_window_brings_less_than_the_one_before(self):
        pacer = Pacer(30.0)
        for reward in [5.0] * 20 + [4.0] * 20 + [6.0] * 20:
            pacer = update_pacer(pacer, reward, NUMBERS)
        assert pacer.percentile == 35.0

        for reward in [1.0] * 400:
            pacer = update_pacer(pacer, reward, NUMBERS)
        assert pacer.percentile == 40.0

    def test_the_pacer_ends_at_no_preference(self):
        pacer = Pacer(98.0, 19.0, 1.0, 5.0)
        assert update_pacer(pacer, 1.0, NUMBERS).percentile == 100.0

    def test_falling_losses_relax_the_preferred_duration_over_a_run(self):
        clients, memory = {c.board: c for c in fleet(8, samples=10, front=a_front())}, {}
        for round_ in range(1, 23):
            answer = chosen(
                self.name, list(clients.values()), SelectionContext(round_, 2, {"pacer_window": 5.0}, memory), round_
            )
            memory = answer.memory
            for board in answer.boards:
                clients[board] = dataclasses.replace(clients[board], loss=5.0 / round_, busy_s=9.0, last_round=round_)

        assert memory["percentile"] == 30.0 + 3 * 5.0

    def test_a_client_that_failed_its_only_round_is_not_new_any_more(self):
        told = [*fleet(3, **ALIKE), ClientStatus("failing", last_round=1)]
        taken = often(self.name, told, SelectionContext(10, 1), 200)

        assert taken["failing",] < 20
