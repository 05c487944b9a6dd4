"""A round costs what its modes really cost: no luck counts, every change of mode does."""

from __future__ import annotations

import pytest
from contracts.reports import LOW, MAXN
from contracts.true_board import IDLE_W, TRUTH, in_mode, report_of

from fedge.devices.emulated_board import MODE_SWITCH_S, WARM_UP_STEPS
from fedge.studies.fleet.fleet_costs import compute_true_cost


def test_a_round_is_worth_what_its_modes_really_cost_whatever_was_measured() -> None:
    parts = in_mode(LOW, 5), in_mode(MAXN, 15, first=False, changed=True)
    lucky = in_mode(LOW, 5, 0.5), in_mode(MAXN, 15, 3.0, first=False, changed=True)
    link = report_of("a", *parts).link

    for told in (parts, lucky):
        spent = compute_true_cost(
            {"a": report_of("a", *told), "b": report_of("b", in_mode(LOW, 20))}, {"a": TRUTH, "b": TRUTH}
        )

        work_s = (5 + WARM_UP_STEPS) * 2.0 + 15 * 1.0 + MODE_SWITCH_S
        round_s = link.down_s + link.up_s + (20 + WARM_UP_STEPS) * 2.0
        energy_j = (
            (5 + WARM_UP_STEPS) * 2.0 * 4.0 + (15 + MODE_SWITCH_S) * 10.0 + IDLE_W * (round_s - work_s) + link.radio_j
        )
        assert spent.round_s == pytest.approx(round_s)
        assert spent.energies_j["a"] == pytest.approx(energy_j)
        assert spent.busy_s["a"] == pytest.approx(link.down_s + link.up_s + work_s)
