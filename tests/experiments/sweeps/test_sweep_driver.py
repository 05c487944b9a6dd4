"""A sweep runs every point once, whatever interrupts it, and its summary pairs the variants by seed."""

import builtins
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.cli.finished_runs import report as write_run_report
from experiments.report.run.sweep_report import sweep_table
from experiments.sweeps import sweep_driver
from experiments.sweeps.point_plan import (
    POINTS,
    ExperimentPoint,
    ExperimentVariant,
    _pack_folder,
    commit_point,
    find_point,
    list_points,
    plan_sweep,
    run_point,
)
from experiments.sweeps.sweep_driver import check_optuna, check_sweep, propose_variants, run_sweep
from experiments.sweeps.sweep_summary import is_sweep, read_summary
from fedge.atomic_files import FileLock
from fedge.errors import BadInput, FedgeError, RunFailed

POLICIES = {"policy": ["balanced", "maxn"]}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The points that were run, in their order; their runs are made up."""
    done: list[str] = []

    def run(point: ExperimentPoint) -> bytes:
        done.append(str(point))
        return pack_made_up_run(point)

    monkeypatch.setattr(sweep_driver, "run_point", run)
    return done


def pack_made_up_run(point: ExperimentPoint) -> bytes:
    energy_j = 100.0 * point.seed + (10.0 if point.experiment.policy.name == "maxn" else 0.0)
    energy_j += 1000.0 * (point.experiment.policy.time_weight or 0.0)
    with tempfile.TemporaryDirectory() as temp:
        (Path(temp) / "summary.json").write_text(json.dumps({"energy_j": energy_j, "final_accuracy": 0.5}))
        (Path(temp) / "point.json").write_text(json.dumps({"identity": point.identity, "fedge": "0.1.0"}))
        (Path(temp) / "report.html").write_text("large")
        return _pack_folder(Path(temp))


def test_a_sweep_runs_every_point_and_started_again_none(write_sweep, tmp_path, runs):
    plan = plan_sweep(write_sweep(grid=POLICIES, seeds=2))
    reported: list[str] = []

    first = run_sweep(plan, tmp_path / "out", 1, reported.append)

    assert runs == reported == ["balanced, seed 1", "maxn, seed 1", "balanced, seed 2", "maxn, seed 2"]
    assert run_sweep(plan, tmp_path / "out", 1, reported.append) == first == read_summary(tmp_path / "out")
    assert len(runs) == 4
    assert reported[4:] == reported[:4]


def test_a_wider_sweep_runs_only_what_is_new(write_sweep, tmp_path, runs):
    run_sweep(plan_sweep(write_sweep(grid={"policy": ["maxn"]}, seeds=1)), tmp_path / "out", 1)

    summary = run_sweep(plan_sweep(write_sweep(list=[{"policy": "maxn"}, {}], seeds=2)), tmp_path / "out", 1)

    assert runs == ["maxn, seed 1", "as in the file, seed 1", "maxn, seed 2", "as in the file, seed 2"]
    assert summary.finished_count == summary.planned == 4


def test_what_was_cut_off_is_run_again(write_sweep, tmp_path, runs):
    plan = plan_sweep(write_sweep(grid=POLICIES))
    run_sweep(plan, tmp_path / "out", 1)
    cut, whole = list_points(plan.variants, plan.spec.seeds)
    (tmp_path / "out" / POINTS / cut.name / "point.json").write_text("")
    (tmp_path / "out" / POINTS / f".{whole.name}.part").mkdir()

    run_sweep(plan, tmp_path / "out", 1)

    assert runs == ["balanced, seed 1", "maxn, seed 1", "balanced, seed 1"]
    assert find_point(tmp_path / "out", cut) is not None


def test_an_interrupted_sweep_keeps_what_had_ended(write_sweep, tmp_path, runs, monkeypatch):
    plan = plan_sweep(write_sweep(grid=POLICIES, seeds=2))

    def interrupt(point: str) -> None:
        if len(runs) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, tmp_path / "out", 1, interrupt)
    assert read_summary(tmp_path / "out").finished_count == 2

    run_sweep(plan, tmp_path / "out", 1)
    assert sorted(runs) == sorted(set(runs))


def test_a_failed_point_is_told_and_tried_again_and_the_others_go_on(write_sweep, tmp_path, runs, monkeypatch):
    plan = plan_sweep(write_sweep(grid=POLICIES, seeds=2))
    run = sweep_driver.run_point

    def fail(point: ExperimentPoint) -> bytes:
        if str(point) == "maxn, seed 1":
            raise RunFailed("no round was played")
        return run(point)

    monkeypatch.setattr(sweep_driver, "run_point", fail)
    summary = run_sweep(plan, tmp_path / "out", 1)
    assert summary.failures == {"maxn, seed 1": "no round was played"}
    assert summary.finished_count == 3
    assert summary.variants[1].figures["energy_j"].difference.n == 1

    monkeypatch.setattr(sweep_driver, "run_point", run)
    assert not run_sweep(plan, tmp_path / "out", 1).failures
    assert runs == ["balanced, seed 1", "balanced, seed 2", "maxn, seed 2", "maxn, seed 1"]


def test_the_summary_has_means_with_intervals_and_differences_by_seed(write_sweep, tmp_path, runs):
    plan = plan_sweep(write_sweep(grid=POLICIES, seeds=3, figures=["energy_j", "final_accuracy"]))

    first, second = run_sweep(plan, tmp_path / "out", 1).variants

    assert first.figures["energy_j"].mean.mean == 200.0
    assert first.figures["energy_j"].mean.half_width == pytest.approx(4.302653 * 100 / 3**0.5)  # t of 2 degrees
    assert first.figures["energy_j"].difference is None
    # The seeds differ by 100 J each; the pairs by 10 J every time, without any spread.
    assert second.figures["energy_j"].difference.mean == pytest.approx(10.0)
    assert second.figures["energy_j"].difference.half_width == pytest.approx(0.0, abs=1e-9)
    table = sweep_table(read_summary(tmp_path / "out"))
    assert [[cell.plain_text for cell in row] for row in table.rows] == [
        ["energy (J)", "balanced", "3", "200 J ± 248 J", "", ""],
        ["energy (J)", "maxn", "3", "210 J ± 248 J", "10.0 J ± 0.00 J", "worse"],
        ["final accuracy (%)", "balanced", "3", "50.0 % ± 0.0 %", "", ""],
        ["final accuracy (%)", "maxn", "3", "50.0 % ± 0.0 %", "0.0 points ± 0.0 points", "equal"],
    ]
    assert table.csv.splitlines()[2] == "energy (J),maxn,3,210,248.4137712,10,0,worse"


def test_a_metric_of_a_tasks_own_has_its_name_and_no_percent(write_sweep, tmp_path, runs):
    plan = plan_sweep(write_sweep(grid={"workload.metric": ["peak ratio"]}, figures=["final_accuracy"]))
    run_sweep(plan, tmp_path / "out", 1)
    rows = sweep_table(read_summary(tmp_path / "out")).rows
    assert [cell.plain_text for cell in rows[0]][:1] == ["final peak ratio"]
    assert rows[0][3].plain_text.startswith("0.500")


def test_two_starts_at_a_time_are_refused(write_sweep, tmp_path, runs):
    (tmp_path / "out").mkdir()
    lock = FileLock(tmp_path / "out" / sweep_driver.LOCK_FILE, "a sweep")

    with pytest.raises(BadInput, match="a sweep that process"):
        run_sweep(plan_sweep(write_sweep(grid=POLICIES)), tmp_path / "out", 1)
    lock.release()


SAMPLER = {
    "trials": 9,
    "batch": 3,
    "minimise": "energy_j",
    "space": {"policy.time_weight": {"low": 0.0, "high": 1.0}},
}


def test_a_search_goes_on_with_the_same_variants(write_sweep, tmp_path, runs):
    pytest.importorskip("optuna")
    plan = plan_sweep(write_sweep(sampler=SAMPLER, seeds=2, figures=["energy_j"]))

    whole = run_sweep(plan, tmp_path / "whole", 1)
    assert len(runs) == len(set(runs)) == 18
    best = min(whole.variants, key=lambda one: one.figures["energy_j"].mean.mean)
    assert whole.best == best.label

    def stop(_: str) -> None:
        if len(runs) == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, tmp_path / "cut", 1, stop)
    assert run_sweep(plan, tmp_path / "cut", 1) == whole
    assert len(runs) == 2 * 18


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"grid": {"policy": ["maxx"]}}, "sweep.yaml: maxx: policy.name: got 'maxx'"),
        (
            {"grid": POLICIES, "figures": ["energy"]},
            "sweep.yaml: figures: got 'energy'; did you mean energy_j. figures of a run: seed, rounds",
        ),
    ],
)
def test_what_can_be_known_is_told_before_the_start(write_sweep, keys, message):
    with pytest.raises(BadInput, match=message):
        check_sweep(plan_sweep(write_sweep(**keys)))


# With real runs ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_point_is_a_run_like_any_other(write_sweep, tmp_path):
    plan = plan_sweep(write_sweep(grid=POLICIES, seeds=2))
    check_sweep(plan)

    run_sweep(plan, tmp_path / "out", 1)

    folders = sorted((tmp_path / "out" / POINTS).iterdir())
    assert len(folders) == 4
    assert not list(folders[0].glob("report.html"))
    write_run_report([tmp_path / "out"], None, tmp_path / "tables")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Sweep sweep.yaml" in page
    assert "4 runs side by side" in page
    assert (tmp_path / "tables" / "sweep.csv").read_text().startswith("figure,variant,n,mean")
    write_run_report([folders[0]], None)
    assert (folders[0] / "report.html").is_file()


def test_a_sweep_without_a_finished_point_has_no_report(write_sweep, tmp_path, monkeypatch):
    def fail(point: ExperimentPoint) -> bytes:
        raise FedgeError("none")

    monkeypatch.setattr(sweep_driver, "run_point", fail)
    run_sweep(plan_sweep(write_sweep(grid=POLICIES)), tmp_path / "out", 1)

    assert is_sweep(tmp_path / "out")
    with pytest.raises(BadInput, match="a sweep without a finished point"):
        write_run_report([tmp_path / "out"], None)


@pytest.mark.slow
def test_a_point_appears_as_a_whole_or_not_at_all(write_sweep, tmp_path, monkeypatch):
    plan = plan_sweep(write_sweep(grid={"policy": ["maxn"]}))
    [point] = list_points(plan.variants, plan.spec.seeds)
    packed = run_point(point)

    with monkeypatch.context() as cut:
        cut.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError("cut off")))
        with pytest.raises(OSError, match="cut off"):
            commit_point(tmp_path, point, packed)
    assert find_point(tmp_path, point) is None

    synced: list[str] = []
    with monkeypatch.context() as watch:
        watch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
        folder = commit_point(tmp_path, point, packed)
    assert find_point(tmp_path, point) == folder
    assert {path.name for path in folder.rglob("*")} <= {*synced}
    assert {path.name for path in folder.iterdir()} >= {"run.yaml", "summary.json", "store", "model.safetensors"}
    shutil.rmtree(folder)
    assert find_point(tmp_path, point) is None


WEIGHT_SAMPLER = {
    "kind": "optuna",
    "trials": 14,
    "batch": 4,
    "minimise": "energy_j",
    "space": {
        "policy.time_weight": {"low": 0.0, "high": 1.0},
        "rounds": {"low": 1, "high": 9, "step": 2},
        "workload.learning_rate": {"low": 0.001, "high": 0.1, "log": True},
        "strategy": {"choices": ["FedAvg", {"name": "FedProx", "options": {"proximal_mu": 0.1}}]},
    },
}


def score_by_weight(variant: ExperimentVariant) -> float:
    return abs((variant.experiment.policy.time_weight or 0.0) - 0.3)


def collect(path: Any, score: Callable[[ExperimentVariant], float | None]) -> list[tuple[ExperimentVariant, ...]]:
    pytest.importorskip("optuna")
    return list(propose_variants(plan_sweep(path), score))


def test_batches_have_the_size_of_the_file_and_values_of_its_space(write_sweep):
    batches = collect(write_sweep(sampler=WEIGHT_SAMPLER), score_by_weight)

    assert [len(batch) for batch in batches] == [4, 4, 4, 2]
    experiments = [one.experiment for batch in batches for one in batch]
    assert {one.rounds for one in experiments} <= {1, 3, 5, 7, 9}
    assert {one.strategy.name for one in experiments} == {"FedAvg", "FedProx"}
    assert all(0.001 <= one.workload.learning_rate <= 0.1 for one in experiments)
    assert all(one.strategy.options == {"proximal_mu": 0.1} for one in experiments if one.strategy.name == "FedProx")


def test_equal_results_give_equal_proposals_and_others_do_not(write_sweep):
    path = write_sweep(sampler=WEIGHT_SAMPLER)

    assert collect(path, score_by_weight) == collect(path, score_by_weight)
    # The first ten trials are drawn at random; from then on results count.
    assert collect(path, score_by_weight)[-1] != collect(path, lambda one: -score_by_weight(one))[-1]


def test_a_variant_that_failed_is_no_obstacle(write_sweep):
    assert len(collect(write_sweep(sampler=WEIGHT_SAMPLER), lambda _: None)) == 4


def test_without_optuna_the_extra_is_named_in_one_line(write_sweep, monkeypatch):
    found = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "optuna":
            raise ModuleNotFoundError("No module named 'optuna'", name="optuna")
        return found(name, *rest, **more)

    plan = plan_sweep(write_sweep(sampler=WEIGHT_SAMPLER))
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(
        BadInput, match=r"sampler.kind: got 'optuna', which is not installed .*; pip install 'fedge\[opt"
    ):
        check_optuna(plan)
    check_optuna(plan_sweep(write_sweep(grid={"rounds": [1]})))
