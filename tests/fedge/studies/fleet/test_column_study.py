"""A study in columns: equal seeds, books that add up, batteries, absences, and agreement with the coordinator."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.backends.study_backend import run_study_fleet
from fedge.errors import BadInput, RunFailed
from fedge.experiment import (
    AvailabilitySpec,
    BatterySpec,
    Experiment,
    ExplorationSpec,
    FleetEntry,
    LateReplySpec,
    PolicySpec,
    SelectionSpec,
)
from fedge.studies import fleet
from fedge.studies.fleet.client_columns import build_fleet_columns, mask_available, start_state
from fedge.studies.fleet.column_rounds import simulate_round
from fedge.studies.fleet.column_study import check_columns, run_column_study

ORIN, NANO = FleetEntry(name="orin", device="agx-orin-64gb"), FleetEntry(name="nano", device="nano")


def experiment(*entries: FleetEntry, rounds: int = 4, policy: str = "balanced", **fields: object) -> Experiment:
    base = Experiment(fleet=entries, exploration=ExplorationSpec(modes=8), **fields)  # type: ignore[arg-type]
    return fleet.build_run_experiment(base, PolicySpec(name=policy), seed=1, rounds=rounds)


def of(entry: FleetEntry, count: int, **changes: object) -> FleetEntry:
    return entry.model_copy(update={"count": count, **changes})


def test_equal_seeds_give_equal_rows_and_others_differ() -> None:
    asked = experiment(of(ORIN, 30), of(NANO, 20), selection=SelectionSpec(name="oort", count=10), rounds=3)
    first, again = run_column_study(asked, None).row, run_column_study(asked, None).row
    other = run_column_study(asked.model_copy(update={"seed": 2}), None).row

    assert first == again
    assert first["energy_j"] != other["energy_j"]
    assert first["engine"] == "columns"


def test_every_round_adds_up_and_the_oracle_is_not_beaten() -> None:
    run = run_column_study(experiment(of(ORIN, 12), of(NANO, 9), rounds=6), None)

    for one in run.rounds:
        assert one.clients == 21
        assert one.chosen.round_s == pytest.approx(max(one.chosen.busy_s.values()))
        assert set(one.chosen.energies_j) == {"orin", "nano"}
        assert one.at_length.energy_j <= one.chosen.energy_j
        assert one.oracle.energy_j <= one.maxn_low.energy_j <= one.maxn.energy_j
        assert one.oracle_objective is not None
        assert one.objective is not None
        assert one.preset.energy_j >= one.oracle.energy_j * (1.0 - 1e-6) or one.preset.round_s > one.oracle.round_s
    assert run.row["deadlines"] == 6 * 21
    assert run.explored[0] <= 4.0
    assert run.explored[-1] > run.explored[0]


def test_maxn_costs_what_maxn_costs() -> None:
    run = run_column_study(experiment(of(ORIN, 10), of(NANO, 10), policy="maxn", rounds=2), None)

    for one in run.rounds:
        assert one.chosen.energy_j == pytest.approx(one.maxn.energy_j)
        assert one.chosen.round_s == pytest.approx(one.maxn.round_s)
    assert run.row["saving_pct"] == pytest.approx(0.0, abs=1e-9)


def test_a_preset_pins_the_mode_of_work_and_of_waiting() -> None:
    run = run_column_study(experiment(of(NANO, 10), policy="preset:5W", rounds=2), None)

    assert run.rounds[0].chosen.round_s > 1.2 * run.rounds[0].maxn.round_s
    assert run.explored == (1.0, 1.0)


def test_a_battery_loses_what_its_board_draws_and_sits_rounds_out_below_its_floor() -> None:
    battery = BatterySpec(capacity_wh=1.0, charge=0.5, floor=0.2)
    asked = experiment(of(NANO, 8, battery=battery), of(ORIN, 2), rounds=8)
    columns = build_fleet_columns(asked, None)
    state = start_state(columns, 1)
    for number in range(1, 9):
        before, offered = state.left_j, mask_available(columns, state)
        state, played = simulate_round(columns, asked, state, number)
        nano = played.clients[played.clients < 8]
        spent = played.settled.energy_j[: len(nano)]
        assert state.left_j[nano] == pytest.approx(np.maximum(0.0, before[nano] - spent))
        assert (played.clients == np.flatnonzero(offered)).all()

    assert (state.left_j[:8] < 0.2 * 3600.0).all()
    assert np.isinf(state.left_j[8:]).all()
    assert (state.last_round[:8] < 8).all()
    assert (state.last_round[8:] == 8).all()


def test_clients_that_go_away_fail_and_take_part_later() -> None:
    present = AvailabilitySpec(on_s=60.0, off_s=60.0)
    asked = experiment(of(NANO, 200, availability=present), rounds=6, late=LateReplySpec(action="drop"))
    columns = build_fleet_columns(asked, None)
    state, failed, asked_count = start_state(columns, 1), 0, []
    for number in range(1, 7):
        state, played = simulate_round(columns, asked, state, number)
        failed += int(played.settled.failed.sum())
        asked_count.append(len(played.clients))
        assert not (played.settled.failed & played.settled.done).any()
        assert played.settled.round_s <= 1.25 * (played.deadline_s or 0.0) + 1e-9

    assert 60 < np.mean(asked_count) < 140, "half of them are there"
    assert failed > 100, "a round takes about as long as a stay"


def test_a_fleet_that_can_never_be_asked_again_ends_with_one_line() -> None:
    battery = BatterySpec(capacity_wh=0.05, charge=1.0, floor=0.9)

    with pytest.raises(RunFailed, match="no client can be asked, now or later"):
        run_column_study(experiment(of(NANO, 3, battery=battery), rounds=10), None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"policy": PolicySpec(name="fastest", round_energy_j=1e6)}, "policy.name"),
        ({"policy": PolicySpec(name="mine:policy")}, "policy.name"),
        ({"selection": SelectionSpec(name="tifl", count=3)}, "selection.name"),
        ({"late": LateReplySpec(action="discount")}, "late.action"),
        ({"share_samples": False}, "share_samples"),
        ({"exploration": ExplorationSpec(modes=None)}, "exploration.modes"),
        ({"fleet": (of(ORIN, 2), of(NANO, 2, ambient_c=40.0))}, r"fleet\[1\].ambient_c"),
        ({"fleet": (of(ORIN, 2), of(NANO, 2, width=0.5))}, r"fleet\[1\].width"),
        ({"fleet": (of(ORIN, 2, availability=AvailabilitySpec(trace="a.csv")),)}, r"fleet\[0\].availability.trace"),
    ],
)
def test_what_columns_do_not_play_is_refused_by_its_name(changes: dict[str, object], field: str) -> None:
    asked = experiment(of(ORIN, 2))
    check_columns(asked)

    with pytest.raises(BadInput, match=field) as caught:
        check_columns(asked.model_copy(update=changes))

    assert "--engine coordinator" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_save_about_as_much_as_the_coordinator() -> None:
    asked = experiment(of(ORIN, 3), of(NANO, 3), rounds=6)
    coordinated = run_study_fleet(asked, fleet.count_board_steps(asked, 40))
    columns = run_column_study(asked, 40)

    for run in (coordinated, columns):
        assert run.rounds[-1].chosen.round_s == pytest.approx(run.rounds[-1].maxn.round_s, rel=0.08)
    saved, by_columns = (
        [1.0 - one.chosen.energy_j / one.maxn.energy_j for one in run.rounds[2:]] for run in (coordinated, columns)
    )
    assert np.mean(by_columns) == pytest.approx(np.mean(saved), abs=0.04)
    assert columns.explored[-1] == pytest.approx(coordinated.explored[-1], abs=3.0)
