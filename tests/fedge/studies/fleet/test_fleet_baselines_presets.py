"""The best presets are found as if all were tried; MAXN is one of them only where it may be."""

from __future__ import annotations

import itertools

import pytest
from contracts.reports import MAXN
from contracts.true_board import STEPS, TRUTH, in_mode, report_of, row_of
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.emulated_board import WARM_UP_STEPS
from fedge.experiment import PolicySpec
from fedge.studies.fleet.fleet_costs import FleetCost, PresetWork, find_best_presets
from fedge.studies.fleet.round_comparison import compare_round


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=3),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 10),
)
def test_the_best_presets_are_those_of_trying_all(fleet_of: list[list[tuple[int, int, int]]], limit_s: int) -> None:
    options = {
        f"b{i}": [PresetWork(float(t), float(t), float(t * (p + idle)), float(idle)) for t, p, idle in of_board]
        for i, of_board in enumerate(fleet_of)
    }

    def aim(spent: FleetCost) -> float:
        return spent.energy_j

    found = find_best_presets(options, dict.fromkeys(options, 0.0), float(limit_s), aim)

    limit = max(float(limit_s), *(min(o.busy_s for o in of_board) for of_board in options.values()))
    energies_j = []
    for picked in itertools.product(*options.values()):
        round_s = max(option.busy_s for option in picked)
        if round_s <= limit:
            energies_j.append(sum(option.energy_j(round_s) for option in picked))
    assert found.energy_j == pytest.approx(min(energies_j))
    assert found.round_s <= limit


def test_a_preset_that_is_maxn_counts_only_where_maxn_may() -> None:
    reports = {"a": report_of("a", in_mode(MAXN, STEPS))}

    judged = compare_round(row_of(), reports, {"a": TRUTH}, PolicySpec(name="balanced", time_weight=1.0))

    assert judged.preset.round_s == pytest.approx(judged.maxn.round_s)
    assert judged.capped.round_s == pytest.approx(2.0 + (STEPS + WARM_UP_STEPS) * 2.0)
