"""A study's rows do not depend on how many processes played it, and no process outlives it."""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from fedge.child_processes import THREAD_VARIABLES, limit_to_one_thread
from fedge.studies.prediction_cells import CellResult, MethodSetup, PredictionTarget, row_to_dict
from fedge.studies.prediction_study import PredictionStudy, run_prediction_study

TIMES = ("fit_s", "predict_s", "explore_s")


def study_of(target: PredictionTarget, plug_ins: str, *methods: str, seeds: int = 2) -> PredictionStudy:
    ways = tuple(MethodSetup(method, f"{plug_ins}:Draw", "plain") for method in methods)
    return PredictionStudy((target,), ways, (5, 10), seeds)


def figures(outcomes: list[CellResult]) -> list[dict[str, Any]]:
    rows = [dict(row_to_dict(outcome.row)) for outcome in outcomes]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def test_there_is_a_row_per_method_target_modes_and_seed_in_order(target, plug_ins):
    constant = f"{plug_ins}:Constant"
    other = dataclasses.replace(target, table=dataclasses.replace(target.table, path="other.csv"))
    study = dataclasses.replace(study_of(target, plug_ins, "physical", constant), targets=(target, other))

    rows = [outcome.row for outcome in run_prediction_study(study, 1)]

    assert [(r.target, r.method, r.modes, r.seed) for r in rows] == [
        (path, method, count, seed)
        for path in (target.table.path, "other.csv")
        for method in ("physical", constant)
        for count in (5, 10)
        for seed in (0, 1)
    ]
    assert all(row.error is None for row in rows)


def test_predictions_are_kept_of_the_first_seed_only(target, plug_ins):
    outcomes = run_prediction_study(study_of(target, plug_ins, "physical"), 1)

    assert [outcome.predictions is not None for outcome in outcomes] == [outcome.cell.seed == 0 for outcome in outcomes]


def test_every_step_is_told(target, plug_ins):
    study = study_of(target, plug_ins, "physical")
    told: list[str] = []

    run_prediction_study(study, 1, told.append)

    assert len(told) == study.step_count
    assert told[0] == "prepare physical"
    assert told[-1] == "physical, 10 modes, seed 1"


def test_one_failing_method_does_not_disturb_the_others(target, plug_ins):
    outcomes = run_prediction_study(study_of(target, plug_ins, f"{plug_ins}:Broken", "physical"), 1)

    assert [outcome.row.error is None for outcome in outcomes] == [False] * 4 + [True] * 4


@pytest.mark.slow
def test_rows_are_the_same_in_one_process_and_in_several(target, plug_ins):
    study = study_of(target, plug_ins, "physical", f"{plug_ins}:Constant", f"{plug_ins}:Broken")
    before = living_children()

    alone, two = (run_prediction_study(study, workers) for workers in (1, 2))

    assert figures(alone) == figures(two)
    assert living_children() <= before


def living_children() -> set[int]:
    """The processes that this one started and that have not ended, those of Ray among them."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            if int(parent) == os.getpid() and state not in "ZX":
                found.add(int(path.parent.name))
    return found


def test_libraries_are_held_to_one_thread_and_the_environment_is_put_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)

    with limit_to_one_thread():
        assert {os.environ[name] for name in THREAD_VARIABLES} == {"1"}

    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in os.environ
