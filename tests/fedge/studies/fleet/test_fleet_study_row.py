"""A row tells all rounds, and apart those of learning and after."""

from __future__ import annotations

import dataclasses
import math

import pytest

from fedge.studies.fleet.fleet_costs import FleetCost
from fedge.studies.fleet.round_comparison import FleetRun, RoundComparison


def judged_round(number: int, energy_j: float) -> RoundComparison:
    def spent(value_j: float) -> FleetCost:
        return FleetCost(10.0, {"a": value_j}, {"a": 10.0})

    known = {"oracle": 60.0, "every": 50.0, "at_length": 60.0, "maxn": 100.0, "maxn_low": 90.0}
    fixed = {way: spent(value_j) for way, value_j in known.items()}
    return RoundComparison(
        number, 10.0, 11.0, 70.0, spent(energy_j), preset=spent(80.0), capped=spent(85.0), missed=number % 2,
        missed_played=1, objective=energy_j, oracle_objective=60.0, every_objective=50.0, **fixed,
    )  # fmt: skip


def test_a_row_tells_all_rounds_and_apart_those_of_learning_and_after() -> None:
    run = FleetRun(
        "least-energy", 3, tuple(judged_round(i, 80.0 if i < 10 else 61.2) for i in range(1, 13)), (4.0,) * 12
    )

    row = run.row

    assert (row["policy"], row["seed"], row["rounds"], row["modes_explored_mean"]) == ("least-energy", 3, 12, 4.0)
    assert row["objective_gap_pct_settled"] == pytest.approx(2.0)
    assert row["objective_gap_pct_learning"] == pytest.approx(100.0 / 3.0)
    assert row["saving_share_pct_settled"] == pytest.approx(97.0)
    assert row["saving_share_pct"] == pytest.approx(100.0 * (100.0 - (9 * 80 + 3 * 61.2) / 12) / 40.0)
    assert row["deadlines_missed"] == 6
    assert row["preset_energy_j"] == 80.0
    assert row["preset_but_maxn_energy_j"] == 85.0


def test_figures_that_do_not_exist_are_none() -> None:
    row = FleetRun("maxn", 1, (dataclasses.replace(judged_round(1, 100.0), objective=None),), (1.0,)).row

    assert row["objective_gap_pct"] is None
    assert row["round_s_settled"] is None
    assert all(value is None or not isinstance(value, float) or math.isfinite(value) for value in row.values())
