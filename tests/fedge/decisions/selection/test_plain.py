"""``all``, ``random`` and ``round-robin``: everybody, anybody, everybody in turn."""

from __future__ import annotations

import dataclasses

import pytest
from contracts.selector import SelectorContract, chosen, fleet, often
from hypothesis import given
from hypothesis import strategies as st

from fedge.types import ClientStatus, SelectionContext


class TestAll(SelectorContract):
    name = "all"

    def test_it_takes_everybody(self) -> None:
        assert chosen("all", fleet(4), SelectionContext(1, 4)).boards == ("a", "b", "c", "d")


class TestRandom(SelectorContract):
    name = "random"

    def test_every_pair_is_as_likely_as_any_other(self) -> None:
        pairs = often("random", fleet(4), SelectionContext(1, 2), 3000)

        assert len(pairs) == 6
        assert min(pairs.values()) > 420
        assert max(pairs.values()) < 580


class TestRoundRobin(SelectorContract):
    name = "round-robin"

    @given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 30))
    def test_nobody_is_ever_more_than_one_round_ahead(self, boards: int, count: int, rounds: int) -> None:
        clients = {client.board: client for client in fleet(boards)}
        for round_ in range(1, rounds + 1):
            for board in chosen("round-robin", list(clients.values()), SelectionContext(round_, count)).boards:
                told = clients[board]
                clients[board] = dataclasses.replace(told, last_round=round_, rounds=told.rounds + 1)
            served = [client.rounds for client in clients.values()]
            assert max(served) - min(served) <= 1

    @pytest.mark.parametrize(("count", "boards"), [(1, ("d",)), (2, ("c", "d")), (3, ("b", "c", "d"))])
    def test_those_never_asked_come_before_those_asked_longest_ago(self, count: int, boards: tuple[str, ...]) -> None:
        told = [
            ClientStatus("a", last_round=5),
            ClientStatus("b", last_round=3),
            ClientStatus("c", last_round=2),
            ClientStatus("d"),
        ]

        assert chosen("round-robin", told, SelectionContext(6, count)).boards == boards
