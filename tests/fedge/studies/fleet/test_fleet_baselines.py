"""At MAXN every board works in it; what it waits in is what the two rounds differ by."""

from __future__ import annotations

import pytest
from contracts.true_board import true_front

from fedge.studies.fleet.fleet_costs import cost_at_maxn, cost_at_maxn_waiting_low


def test_waiting_low_saves_the_difference_of_the_two_idle_powers_outside_the_work() -> None:
    fronts = {"a": true_front(), "b": true_front(2.0)}
    radio_j = {"a": 1.0, "b": 2.0}

    high, low = cost_at_maxn(fronts, radio_j), cost_at_maxn_waiting_low(fronts, radio_j)

    assert high.round_s == low.round_s == fronts["b"].link_s + fronts["b"].maxn.work_s
    for board, front in fronts.items():
        resting_s = high.round_s - front.maxn.work_s
        assert high.energies_j[board] == pytest.approx(radio_j[board] + front.maxn.work_j + 3.0 * resting_s)
        assert high.energies_j[board] - low.energies_j[board] == pytest.approx((3.0 - 2.0) * resting_s)
