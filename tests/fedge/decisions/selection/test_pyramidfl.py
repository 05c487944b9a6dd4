"""``pyramidfl-like``: Oort's order of utility with the authors' numbers, and more steps for those who would wait."""

from __future__ import annotations

import dataclasses

import pytest
from contracts.selector import SelectorContract, a_front, chosen, fleet, often

from fedge.decisions.selection.pyramidfl import compute_shares
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, SelectionContext

TOLD = {"samples": 10, "last_round": 9, "rounds": 3}


class TestPyramidfl(SelectorContract):
    name = "pyramidfl-like"

    def test_its_numbers_are_those_of_the_authors_program(self):
        numbers = {"exploration_decay": 0.95, "preferred_percentile": 10.0, "clip": 0.98, "more_steps": 10.0}
        assert complete_options(self.name, {}) == numbers

    def test_clients_of_high_utility_are_preferred(self):
        told = [
            dataclasses.replace(c, loss=loss) for c, loss in zip(fleet(4, **TOLD), (0.1, 2.0, 0.2, 2.0), strict=True)
        ]
        taken = often(self.name, told, SelectionContext(10, 2), 100)

        assert set(taken) == {("b", "d")}

    def test_the_fast_train_until_the_slowest_ends(self):
        told = [ClientStatus("fast", a_front(10.0), **TOLD), ClientStatus("slow", a_front(40.0), **TOLD)]
        answer = chosen(self.name, told, SelectionContext(10, 2))

        assert answer.shares == {"fast": pytest.approx(4.0)}

    def test_a_longer_last_round_does_not_make_a_client_slow(self):
        told = [ClientStatus("fast", a_front(10.0), busy_s=41.0, **TOLD), ClientStatus("slow", a_front(40.0), **TOLD)]

        assert chosen(self.name, told, SelectionContext(10, 2)).shares == {"fast": pytest.approx(4.0)}


def test_nobody_does_more_than_eleven_times_its_steps():
    told = [ClientStatus("fast", a_front(1.0)), ClientStatus("slow", a_front(100.0))]

    assert compute_shares(told, {"fast", "slow"}, 10.0) == {"fast": 11.0}


def test_what_a_round_takes_whatever_its_steps_leaves_time_for_more_of_them():
    warm = dataclasses.replace(a_front(10.0), fixed_share=0.5)
    told = [ClientStatus("fast", warm), ClientStatus("slow", a_front(20.0))]

    assert compute_shares(told, {"fast", "slow"}, 10.0) == {"fast": pytest.approx(3.0)}


def test_only_those_selected_are_waited_for_and_a_client_without_a_front_does_its_share():
    told = [ClientStatus("a", a_front(10.0)), ClientStatus("b", a_front(90.0)), ClientStatus("c", busy_s=21.0)]

    assert compute_shares(told, {"a", "c"}, 10.0) == {"a": pytest.approx(2.0)}
