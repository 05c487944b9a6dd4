"""Oracle, MAXN and presets of a round in columns are those of the study by boards, for the same true boards."""

from __future__ import annotations

import numpy as np
import pytest

from fedge import pareto
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.devices.emulated_board import WARM_UP_STEPS
from fedge.devices.mode_surface import ModeSurface
from fedge.experiment import Experiment, FleetEntry, LinkSpec, PolicySpec
from fedge.studies.fleet import fleet_costs
from fedge.studies.fleet.client_columns import FleetColumns, build_fleet_columns, start_state
from fedge.studies.fleet.column_rounds import simulate_round
from fedge.studies.fleet.column_study import compare_columns
from fedge.studies.fleet.fleet_costs import (
    BoardTruth,
    FleetCost,
    cost_at_maxn,
    cost_at_maxn_waiting_low,
    cost_waiting_in_lowest_mode,
    exclude_maxn,
    find_best_presets,
    find_least_energy_work,
    list_preset_work,
    plan_oracle_work,
)
from fedge.types import Front, Predictions

FLEET = (
    FleetEntry(name="orin", device="agx-orin-64gb", count=4, link=LinkSpec(latency_s=1.0)),
    FleetEntry(name="nano", device="nano", count=3),
)
POLICY = PolicySpec(name="balanced", max_slowdown=1.2)


@pytest.fixture(scope="module")
def columns() -> FleetColumns:
    return build_fleet_columns(Experiment(fleet=FLEET, policy=POLICY), None)


def truths(columns: FleetColumns) -> dict[str, BoardTruth]:
    """The clients as boards."""
    found = {}
    for client in range(len(columns)):
        kind = columns.kinds[columns.kind[client]]
        slower, power = np.exp(columns.log_time[client]), np.exp(columns.log_power[client])
        shared = kind.surface
        own = ModeSurface(shared.modes, shared.step_s * slower, shared.power_w * power, shared.idle_w * power)
        presets = {name: shared.modes[row] for name, row in kind.presets.items()}
        every = np.ones(len(shared.modes), dtype=np.bool_)
        found[f"b{client}"] = BoardTruth(own, presets, int(columns.steps[client]), every)
    return found


def true_front(columns: FleetColumns, client: int, truth: BoardTruth) -> Front:
    kind = columns.kinds[columns.kind[client]]
    kept = truth.surface.select_rows(mask_above_floor(truth.surface.modes))
    none, warm = np.zeros(len(kept.modes)), (truth.steps + WARM_UP_STEPS) / truth.steps
    known = Predictions(kept.modes, kept.step_s * warm, kept.power_w, none, none)
    return pareto.build_front(
        known,
        steps=truth.steps,
        idle_w=float(truth.surface.idle_w[kind.low]),
        link_s=float(columns.link_s[columns.entry[client]]),
        maxn=kind.surface.modes[kind.top],
        maxn_idle_w=float(truth.surface.idle_w[kind.top]),
        limit=None,
    )


def is_like(found: FleetCost, expected: FleetCost, rel: float) -> bool:
    return found.energy_j == pytest.approx(expected.energy_j, rel=rel) and found.round_s == pytest.approx(
        expected.round_s, rel=rel
    )


def test_baselines_are_those_of_single_boards(columns: FleetColumns) -> None:
    experiment = Experiment(fleet=FLEET, policy=POLICY)
    _, played = simulate_round(columns, experiment, start_state(columns, 1), 1)
    found = compare_columns(columns, played, POLICY, 1)
    boards = truths(columns)
    fronts = {name: true_front(columns, place, truth) for place, (name, truth) in enumerate(boards.items())}
    radio_j = {name: float(columns.radio_w[0]) * front.link_s for name, front in fronts.items()}
    maxn = cost_at_maxn(fronts, radio_j)
    steps = {name: truth.steps for name, truth in boards.items()}
    work = plan_oracle_work(fronts, steps, POLICY, 0.0)
    options = {name: list_preset_work(fronts[name], boards[name]) for name in fronts}
    capped = {name: exclude_maxn(own) for name, own in options.items()}

    def aim(spent: FleetCost) -> float:
        return fleet_costs.compute_objective_or_balance(POLICY, spent, maxn)

    limit_s = fleet_costs.max_round_s(POLICY, maxn.round_s)
    assert is_like(found.maxn, maxn, 1e-9)
    assert is_like(found.maxn_low, cost_at_maxn_waiting_low(fronts, radio_j), 1e-9)
    assert is_like(found.oracle, cost_waiting_in_lowest_mode(fronts, radio_j, work), 0.01)
    assert is_like(found.preset, find_best_presets(options, radio_j, limit_s, aim), 1e-9)
    assert is_like(found.capped, find_best_presets(capped, radio_j, np.inf, aim), 1e-9)
    within = {
        name: find_least_energy_work(front, steps[name], max(found.oracle.round_s, found.chosen.round_s))
        for name, front in fronts.items()
    }
    least = cost_waiting_in_lowest_mode(fronts, radio_j, within)
    assert found.at_length.round_s == pytest.approx(least.round_s, rel=0.002)
    for name, places in (("orin", range(4)), ("nano", range(4, 7))):
        expected_j = sum(least.energies_j[f"b{place}"] for place in places)
        assert found.at_length.energies_j[name] == pytest.approx(expected_j, rel=5e-4)
    assert found.chosen.energy_j > found.at_length.energy_j
    assert found.played_j == pytest.approx(found.chosen.energy_j, rel=0.1)
