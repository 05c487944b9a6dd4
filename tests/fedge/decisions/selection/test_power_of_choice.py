"""``power-of-choice``: candidates by samples, of those the highest losses."""

from __future__ import annotations

import pytest
from contracts.selector import SelectorContract, chosen, fleet, often

from fedge.types import ClientStatus, SelectionContext

DRAWS = 4000


class TestPowerOfChoice(SelectorContract):
    name = "power-of-choice"

    def test_with_as_many_candidates_as_seats_it_is_random_by_samples(self) -> None:
        told = [
            ClientStatus("a", samples=60, loss=0.1),
            ClientStatus("b", samples=30, loss=0.5),
            ClientStatus("c", samples=10, loss=9.0),
        ]
        call = SelectionContext(2, 1, {"candidates": 1.0})
        taken = often(self.name, told, call, DRAWS)

        assert taken["a",] / DRAWS == pytest.approx(0.6, abs=0.03)
        assert taken["b",] / DRAWS == pytest.approx(0.3, abs=0.03)

    def test_with_everybody_a_candidate_it_takes_the_highest_losses(self) -> None:
        told = [ClientStatus(board, samples=9, loss=loss) for board, loss in zip("abcde", (3, 1, 4, 2, 5), strict=True)]

        for seed in range(20):
            assert chosen(self.name, told, SelectionContext(2, 2, {"candidates": 5.0}), seed).boards == ("c", "e")

    def test_twice_as_many_candidates_as_seats_are_drawn_by_default(self) -> None:
        told = [ClientStatus(board, samples=1, loss=loss) for board, loss in zip("abcd", (1, 2, 3, 4), strict=True)]
        taken = often(self.name, told, SelectionContext(2, 1), DRAWS)

        assert ("a",) not in taken
        assert taken["d",] / DRAWS == pytest.approx(3 / 6, abs=0.03)
        assert taken["b",] / DRAWS == pytest.approx(1 / 6, abs=0.03)

    def test_a_client_that_never_told_its_loss_counts_as_of_the_highest(self) -> None:
        told = [ClientStatus("a", loss=8.0), ClientStatus("b"), ClientStatus("c", loss=float("nan"))]

        for seed in range(20):
            assert chosen(self.name, told, SelectionContext(2, 2, {"candidates": 3.0}), seed).boards == ("b", "c")

    def test_fewer_candidates_than_seats_are_as_many_as_seats(self) -> None:
        assert len(chosen(self.name, fleet(5), SelectionContext(1, 3, {"candidates": 1.0})).boards) == 3
