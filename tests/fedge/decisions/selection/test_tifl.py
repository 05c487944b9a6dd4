"""``tifl``: one tier a round, credits that run out, weak tiers more often."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from contracts.selector import SelectorContract, a_front, chosen, often
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.selection.tifl import (
    TierState,
    build_tiers,
    change_probabilities,
    compute_accuracies,
    update_tiers,
)
from fedge.types import ClientStatus, SelectionContext

EIGHT = [ClientStatus(f"{i}", front=a_front(10.0 * (i + 1)), samples=10) for i in range(8)]
TIERS = {("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")}


class TestTifl(SelectorContract):
    name = "tifl"

    def test_a_round_s_clients_are_of_one_tier_and_every_tier_has_its_turn(self):
        taken = often(self.name, EIGHT, SelectionContext(1, 2), 800)

        assert set(taken) == TIERS
        assert min(taken.values()) > 150

    def test_tiers_go_by_what_was_seen_where_that_is_known_and_the_unknown_is_slowest(self):
        told = [*EIGHT[:3], dataclasses.replace(EIGHT[3], busy_s=1.0), ClientStatus("new")]

        assert [[c.board for c in tier] for tier in build_tiers(told, 2)] == [["3", "0", "1"], ["2", "new"]]

    @given(st.integers(1, 12), st.integers(1, 12))
    def test_every_tier_has_enough_clients_for_a_round(self, boards, count):
        told = [ClientStatus(f"{i:02d}") for i in range(boards)]

        assert len(chosen(self.name, told, SelectionContext(1, count)).boards) == min(count, boards)

    def test_credits_run_out_and_are_renewed_when_all_have(self):
        memory: dict[str, float] = {}
        taken = []
        for round_ in range(1, 25):
            answer = chosen(
                self.name, EIGHT, SelectionContext(round_, 2, {"credits": 3.0, "interval": 99.0}, memory), round_
            )
            taken.append(answer.boards)
            memory = dict(answer.memory)

        assert Counter(taken[:12]) == dict.fromkeys(TIERS, 3)
        assert Counter(taken[12:]) == dict.fromkeys(TIERS, 3)

    def test_the_lower_the_accuracy_the_likelier_the_tier(self):
        assert change_probabilities(np.array([0.9, 0.2, 0.5, 0.7]), np.ones(4)) == pytest.approx(
            [0.0, 3 / 6, 2 / 6, 1 / 6]
        )
        assert change_probabilities(np.array([0.9, 0.2, 0.5]), np.array([1.0, 0.0, 1.0])) == pytest.approx(
            [0.0, 0.0, 1.0]
        )
        assert change_probabilities(np.array([0.9, 0.2]), np.array([1.0, 0.0])) == pytest.approx([1.0, 0.0])

    @given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
    def test_changed_probabilities_sum_to_one(self, accuracy):
        assert change_probabilities(np.array(accuracy), np.ones(len(accuracy))).sum() == pytest.approx(1.0)

    def test_probabilities_change_only_when_the_last_tier_did_not_improve(self):
        seen = TierState(np.ones(2), np.array([0.5, 0.5]), np.array([0.6, 0.4]))

        assert update_tiers(seen, np.array([0.7, 0.4]), 0.0).probability == pytest.approx([0.5, 0.5])
        assert update_tiers(seen, np.array([0.7, 0.4]), 1.0).probability == pytest.approx([0.0, 1.0])
        assert update_tiers(seen, np.array([0.7, 0.4]), None).probability == pytest.approx([0.5, 0.5])

    def test_the_last_tier_of_a_fleet_that_has_fewer_tiers_now_did_not_stall(self):
        seen = TierState(np.ones(2), np.array([0.5, 0.5]), np.array([0.6, 0.4]))

        for last in (2.0, 3.0):
            assert update_tiers(seen, np.array([0.6, 0.4]), last).probability == pytest.approx([0.5, 0.5])

    def test_a_stalled_fleet_turns_to_its_weakest_tier(self):
        told = [dataclasses.replace(c, accuracy=0.2 if i >= 6 else 0.9, last_round=1) for i, c in enumerate(EIGHT)]
        memory = {"tier": 0.0, "accuracy:0": 0.9}
        taken = often(self.name, told, SelectionContext(11, 2, {}, memory), 600)

        assert taken["6", "7"] / 600 == pytest.approx(0.5, abs=0.06)

    def test_a_tier_s_accuracy_is_weighed_by_samples_and_zero_when_unknown(self):
        told = [
            ClientStatus("a", samples=30, accuracy=0.8),
            ClientStatus("b", samples=10, accuracy=0.4),
            ClientStatus("c", samples=10),
        ]

        assert compute_accuracies([told, [ClientStatus("d")]]) == pytest.approx([0.7, 0.0])
