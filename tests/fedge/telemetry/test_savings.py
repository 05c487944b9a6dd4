"""Savings against MAXN, and shares of the oracle's: given where they mean something, with a reason elsewhere."""

import dataclasses

import pytest
from contracts.board_runs import client, round_of

from fedge.telemetry.savings import compute_saving, select_comparable, share_of_saving

ROUND = round_of(1, [client(1, "nano-1", "nano", 0)])


@pytest.mark.parametrize(
    ("saving", "oracle", "policy", "share", "why"),
    [
        (0.06, 0.08, "balanced", 0.75, ""),
        (0.085, 0.08, "balanced", 0.085 / 0.08, ""),
        (-0.158, 0.077, "balanced", None, "nothing was saved"),
        (0.0, 0.08, "balanced", None, "nothing was saved"),
        (0.016, 0.005, "balanced", None, "the oracle saves less than 2 %"),
        (0.10, 0.03, "balanced", None, "the run saved more than the oracle"),
        (-0.158, 0.077, "maxn", None, "the run itself is at MAXN"),
        (None, 0.2, "maxn", None, "the run itself is at MAXN"),
        (None, 0.2, "balanced", None, ""),
        (0.1, None, "balanced", None, ""),
    ],
)
def test_a_share_of_the_oracles_saving_is_given_only_where_it_means_something(saving, oracle, policy, share, why):
    found = share_of_saving(saving, oracle, policy)
    assert found.share == (None if share is None else pytest.approx(share))
    assert found.why == why


def test_a_run_at_maxn_saves_nothing_against_itself_but_is_compared_with_waiting_low():
    assert compute_saving([ROUND], "maxn", "maxn", "energy_j") is None
    assert compute_saving([ROUND], "maxn", "maxn_parked", "energy_j") == pytest.approx(1 - 1 / 1.1)
    assert compute_saving([ROUND], "balanced", "maxn", "energy_j") == pytest.approx(1 - 1 / 1.25)
    oracle_known = dataclasses.replace(ROUND, oracle_energy_j=0.7 * ROUND.energy_j)
    assert compute_saving([oracle_known], "maxn", "maxn", "oracle_energy_j") == pytest.approx(1 - 0.7 / 1.25)


def test_rounds_with_late_boards_or_unknown_truth_are_not_compared():
    unknown, late = dataclasses.replace(ROUND, maxn_energy_j=None), dataclasses.replace(ROUND, late=1)
    assert select_comparable([ROUND, unknown, late]) == (ROUND,)
    assert compute_saving([], "balanced", "maxn", "energy_j") is None
