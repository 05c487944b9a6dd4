"""``all``, ``random`` and ``round-robin``: everybody, anybody, everybody in turn."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from contracts.selector import SelectorContract, chosen, fleet, often
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.selection.basic_selectors import round_randomly, sample_without_replacement
from fedge.types import ClientStatus, SelectionContext


class TestAll(SelectorContract):
    name = "all"

    def test_it_takes_everybody(self):
        assert chosen("all", fleet(4), SelectionContext(1, 4)).boards == ("a", "b", "c", "d")


class TestRandom(SelectorContract):
    name = "random"

    def test_every_pair_is_as_likely_as_any_other(self):
        pairs = often("random", fleet(4), SelectionContext(1, 2), 3000)

        assert len(pairs) == 6
        assert min(pairs.values()) > 420
        assert max(pairs.values()) < 580


class TestRoundRobin(SelectorContract):
    name = "round-robin"

    @given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 30))
    def test_nobody_is_ever_more_than_one_round_ahead(self, boards, count, rounds):
        clients = {client.board: client for client in fleet(boards)}
        for round_ in range(1, rounds + 1):
            for board in chosen("round-robin", list(clients.values()), SelectionContext(round_, count)).boards:
                told = clients[board]
                clients[board] = dataclasses.replace(told, last_round=round_, rounds=told.rounds + 1)
            served = [client.rounds for client in clients.values()]
            assert max(served) - min(served) <= 1

    @pytest.mark.parametrize(("count", "boards"), [(1, ("d",)), (2, ("c", "d")), (3, ("b", "c", "d"))])
    def test_those_never_asked_come_before_those_asked_longest_ago(self, count, boards):
        told = [
            ClientStatus("a", last_round=5),
            ClientStatus("b", last_round=3),
            ClientStatus("c", last_round=2),
            ClientStatus("d"),
        ]

        assert chosen("round-robin", told, SelectionContext(6, count)).boards == boards


DRAWS = 4000


class TestPowerOfChoice(SelectorContract):
    name = "power-of-choice"

    def test_with_as_many_candidates_as_seats_it_is_random_by_samples(self):
        told = [
            ClientStatus("a", samples=60, loss=0.1),
            ClientStatus("b", samples=30, loss=0.5),
            ClientStatus("c", samples=10, loss=9.0),
        ]
        call = SelectionContext(2, 1, {"candidates": 1.0})
        taken = often(self.name, told, call, DRAWS)

        assert taken["a",] / DRAWS == pytest.approx(0.6, abs=0.03)
        assert taken["b",] / DRAWS == pytest.approx(0.3, abs=0.03)

    def test_with_everybody_a_candidate_it_takes_the_highest_losses(self):
        told = [ClientStatus(board, samples=9, loss=loss) for board, loss in zip("abcde", (3, 1, 4, 2, 5), strict=True)]

        for seed in range(20):
            assert chosen(self.name, told, SelectionContext(2, 2, {"candidates": 5.0}), seed).boards == ("c", "e")

    def test_twice_as_many_candidates_as_seats_are_drawn_by_default(self):
        told = [ClientStatus(board, samples=1, loss=loss) for board, loss in zip("abcd", (1, 2, 3, 4), strict=True)]
        taken = often(self.name, told, SelectionContext(2, 1), DRAWS)

        assert ("a",) not in taken
        assert taken["d",] / DRAWS == pytest.approx(3 / 6, abs=0.03)
        assert taken["b",] / DRAWS == pytest.approx(1 / 6, abs=0.03)

    def test_a_client_that_never_told_its_loss_counts_as_of_the_highest(self):
        told = [ClientStatus("a", loss=8.0), ClientStatus("b"), ClientStatus("c", loss=float("nan"))]

        for seed in range(20):
            assert chosen(self.name, told, SelectionContext(2, 2, {"candidates": 3.0}), seed).boards == ("b", "c")

    def test_fewer_candidates_than_seats_are_as_many_as_seats(self):
        assert len(chosen(self.name, fleet(5), SelectionContext(1, 3, {"candidates": 1.0})).boards) == 3


def test_the_first_draw_is_in_proportion_to_the_weights_and_the_second_among_the_rest():
    rng = np.random.default_rng(1)
    draws = np.array([sample_without_replacement(np.array([6.0, 3.0, 1.0]), 2, rng) for _ in range(20_000)])

    assert np.bincount(draws[:, 0]) / 20_000 == pytest.approx([0.6, 0.3, 0.1], abs=0.015)
    after_the_first = draws[draws[:, 0] == 0, 1]
    assert (after_the_first == 1).mean() == pytest.approx(0.75, abs=0.015)


def test_rows_of_weight_zero_come_last():
    rows = sample_without_replacement(np.array([0.0, 1.0, 0.0, 2.0]), 4, np.random.default_rng(2))

    assert set(rows[:2].tolist()) == {1, 3}
    assert set(rows[2:].tolist()) == {0, 2}


def test_more_than_there_are_draws_them_all():
    assert sorted(sample_without_replacement(np.ones(3), 9, np.random.default_rng(3)).tolist()) == [0, 1, 2]
    assert sample_without_replacement(np.empty(0), 1, np.random.default_rng(3)).shape == (0,)


def test_rounding_at_random_keeps_the_mean_and_leaves_whole_numbers():
    rng = np.random.default_rng(4)

    assert np.mean([round_randomly(2.3, rng) for _ in range(20_000)]) == pytest.approx(2.3, abs=0.015)
    assert {round_randomly(2.0, rng) for _ in range(100)} == {2}
