"""A fleet's study judges by the truth: no luck counts, the oracle is not beaten, presets are tried exhaustively."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from contracts.reports import LOW, MAXN
from contracts.reports import report as made_up
from hypothesis import given
from hypothesis import strategies as st

from fedge import rounds
from fedge.devices.emulated import WARM_UP_STEPS
from fedge.devices.truth import Surface
from fedge.experiment import DataSpec, Experiment, FleetEntry, PolicySpec, WorkloadSpec, boards
from fedge.modes import modes_of
from fedge.seeds import generator
from fedge.studies import fleet
from fedge.studies.fleet import FleetRun, Judged, Nothing, Pinned, Spent, Truth
from fedge.telemetry.rows import RoundRow
from fedge.types import Front, FrontPoint, Measurement, PowerMode, RoundReport, TrainOptions
from fedge.workloads.partitions import split

IDLE_W, STEPS = 2.0, 20
MIDDLE = PowerMode(4, 1132.8, 921.6, 1600.0)
SURFACE = Surface(
    modes_of([MAXN, MIDDLE, LOW]),
    np.array([1.0, 1.25, 2.0]),
    np.array([10.0, 7.0, 4.0]),
    np.array([3.0, 2.5, IDLE_W]),
)
TRUTH = Truth(SURFACE, {"MAXN": MAXN, "low": LOW}, STEPS, np.ones(3, dtype=np.bool_))


def true_front(scale: float = 1.0) -> Front:
    """What ``SURFACE`` gives for ``STEPS`` and the warm-up, times ``scale``."""
    times_s = (STEPS + WARM_UP_STEPS) * SURFACE.step_s * scale
    points = tuple(
        FrontPoint(SURFACE.modes[i], float(time_s), float(time_s * SURFACE.power_w[i]))
        for i, time_s in enumerate(times_s)
    )
    return Front(points, points[0], IDLE_W, 2.0, 3.0)


def report_of(board: str, *parts: Measurement) -> RoundReport:
    *probes, measured = parts
    report = made_up(board, 1.0, truth=true_front())
    return dataclasses.replace(report, probes=tuple(probes), measured=measured, idle_w=IDLE_W)


def in_mode(mode: PowerMode, steps: int, luck: float = 1.0, *, first: bool = True) -> Measurement:
    """A measurement that is ``luck`` times as long as it should be."""
    step_s = luck * float(SURFACE.step_s[SURFACE.row(mode)])
    return Measurement(mode, steps, step_s, 99.0, warm_up_s=WARM_UP_STEPS * step_s if first else 0.0)


def row_of(number: int = 1, deadline_s: float | None = None) -> RoundRow:
    nothing = dict.fromkeys(("oracle_energy_j", "maxn_round_s", "maxn_energy_j", "maxn_parked_energy_j"))
    counts = dict.fromkeys(("selected", "done", "late", "failed"), 1)
    return RoundRow(
        round=number, start_s=0.0, end_s=9.0, round_s=9.0, deadline_s=deadline_s, straggler="", energy_j=77.0,
        train_energy_j=0.0, loss=0.0, accuracy=0.0, **counts, **nothing,
    )  # fmt: skip


# Who works how much ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 5000), st.integers(1, 700), st.data())
def test_every_board_is_told_an_experiment_in_which_its_share_is_the_steps_asked_for(
    count: int, steps: int, batch_size: int, data: st.DataObject
) -> None:
    experiment = Experiment(
        fleet=(FleetEntry(device="nano", count=count),),
        workload=WorkloadSpec(batch_size=batch_size),
        data=DataSpec(partition="iid"),
    )
    board = boards(experiment)[data.draw(st.integers(0, count - 1))]

    told = fleet.as_played_by(experiment, board, steps)

    share = split(told.data, Nothing().labels, count, generator(1, "partition"))[board.index]
    assert rounds.steps_of(len(share), told.workload.batch_size, told.workload.local_epochs) == steps


def test_a_board_works_about_half_a_minute_at_maxn_unless_told_otherwise() -> None:
    experiment = Experiment(
        fleet=(FleetEntry(device="agx-orin-64gb", count=8), FleetEntry(device="nano", count=8)),
    )

    steps = fleet.steps_of_boards(experiment, None)

    for board in boards(experiment):
        average = fleet.kind_of(board, experiment.workload).average
        assert 19.0 < steps[board.name] * float(average.step_s.min()) < 41.0
    assert len(set(steps.values())) > 10, "boards hold different amounts of data"
    assert set(fleet.steps_of_boards(experiment, 7).values()) == {7}


def test_nothing_is_learnt_from_nothing() -> None:
    task = Nothing()
    arrays = task.initial_arrays(1)
    training = task.start(arrays, np.arange(3), 1, TrainOptions(1, 1, 0.1))
    training.advance(5)

    assert training.result().arrays is arrays
    assert task.evaluate(arrays) == (0.0, 0.0)


# What a round costs ---------------------------------------------------------------------------------------------------


def test_a_round_is_worth_what_its_modes_really_cost_whatever_was_measured() -> None:
    parts = in_mode(LOW, 5), in_mode(MAXN, 15, first=False)
    lucky = in_mode(LOW, 5, 0.5), in_mode(MAXN, 15, 3.0, first=False)
    link = report_of("a", *parts).link

    for told in (parts, lucky):
        spent = fleet.worth(
            {"a": report_of("a", *told), "b": report_of("b", in_mode(LOW, 20))}, {"a": TRUTH, "b": TRUTH}
        )

        work_s = (5 + WARM_UP_STEPS) * 2.0 + 15 * 1.0
        round_s = link.down_s + link.up_s + (20 + WARM_UP_STEPS) * 2.0
        energy_j = (5 + WARM_UP_STEPS) * 2.0 * 4.0 + 15 * 10.0 + IDLE_W * (round_s - work_s) + link.radio_j
        assert spent.round_s == pytest.approx(round_s)
        assert spent.energies_j["a"] == pytest.approx(energy_j)
        assert spent.busy_s["a"] == pytest.approx(link.down_s + link.up_s + work_s)


MODES = st.sampled_from([MAXN, MIDDLE, LOW])


@given(st.lists(MODES, min_size=1, max_size=5), st.floats(0.0, 1.0), st.floats(1.0, 3.0))
def test_no_choice_of_modes_within_the_limit_beats_the_oracle(
    modes: list[PowerMode], time_weight: float, max_slowdown: float
) -> None:
    reports = {f"b{i}": report_of(f"b{i}", in_mode(mode, STEPS)) for i, mode in enumerate(modes)}
    policy = PolicySpec(name="balanced", time_weight=time_weight, max_slowdown=max_slowdown)

    judged = fleet.judge(row_of(), reports, dict.fromkeys(reports, TRUTH), policy)

    assert judged.objective is not None
    assert judged.oracle_objective is not None
    if judged.chosen.round_s <= max_slowdown * judged.maxn.round_s:
        assert judged.objective >= judged.oracle_objective * (1 - 1e-9)
    assert judged.oracle.round_s <= max_slowdown * judged.maxn.round_s * (1 + 1e-9)
    assert judged.maxn_low.energy_j <= judged.maxn.energy_j
    assert judged.at_length.energy_j <= min(judged.chosen.energy_j, judged.oracle.energy_j) * (1 + 1e-9)


def test_without_a_plan_the_oracle_takes_the_rounds_own_length() -> None:
    reports = {"a": report_of("a", in_mode(MAXN, STEPS)), "b": report_of("b", in_mode(LOW, STEPS))}

    judged = fleet.judge(row_of(), reports, dict.fromkeys(reports, TRUTH), PolicySpec(name="maxn"))

    assert judged.objective is None
    assert judged.oracle.round_s == pytest.approx(judged.chosen.round_s)
    assert judged.oracle.energy_j < judged.chosen.energy_j


def test_a_deadline_is_missed_by_choice_or_by_bad_luck() -> None:
    busy_s = report_of("a", in_mode(LOW, STEPS)).busy_s
    reports = {
        "chose": report_of("chose", in_mode(LOW, STEPS)),
        "unlucky": report_of("unlucky", in_mode(MAXN, STEPS, 3.0)),
    }

    judged = fleet.judge(row_of(deadline_s=0.9 * busy_s), reports, dict.fromkeys(reports, TRUTH), PolicySpec())

    assert (judged.missed, judged.missed_played) == (1, 2)
    assert (judged.played_s, judged.played_j) == (9.0, 77.0)


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
        f"b{i}": [Pinned(float(t), float(t), float(t * (p + idle)), float(idle)) for t, p, idle in of_board]
        for i, of_board in enumerate(fleet_of)
    }

    def aim(spent: Spent) -> float:
        return spent.energy_j

    found = fleet.best_presets(options, dict.fromkeys(options, 0.0), float(limit_s), aim)

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

    judged = fleet.judge(row_of(), reports, {"a": TRUTH}, PolicySpec(name="balanced", time_weight=1.0))

    assert judged.preset.round_s == pytest.approx(judged.maxn.round_s)
    assert judged.capped.round_s == pytest.approx(2.0 + (STEPS + WARM_UP_STEPS) * 2.0)


# Figures --------------------------------------------------------------------------------------------------------------


def judged_round(number: int, energy_j: float) -> Judged:
    def spent(value_j: float) -> Spent:
        return Spent(10.0, {"a": value_j}, {"a": 10.0})

    known = {"oracle": 60.0, "every": 50.0, "at_length": 60.0, "maxn": 100.0, "maxn_low": 90.0}
    fixed = {way: spent(value_j) for way, value_j in known.items()}
    return Judged(
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


def test_the_oracle_leaves_implausible_modes_alone_unless_all_rows_count() -> None:
    truth = dataclasses.replace(TRUTH, plausible=np.array([True, False, True]))
    reports = {"a": report_of("a", in_mode(MAXN, STEPS))}
    policy = PolicySpec(name="least-energy", max_slowdown=1.5)

    judged = fleet.judge(row_of(), reports, {"a": truth}, policy)

    assert judged.oracle.energy_j == pytest.approx(judged.maxn_low.energy_j)
    assert judged.every.energy_j < judged.oracle.energy_j
    assert judged.every_objective == pytest.approx(judged.every.energy_j)
