"""A replay predicts what a changed run costs on boards that it never sees: only what the first run measured."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.backends.local_backend import run_local
from experiments.backends.run_replay import (
    PRIOR_SD_LOG,
    ReplayFigure,
    ReplayResult,
    _compare_figures,
    _load_changed,
    _predict_by_regression,
    replay_run,
)
from experiments.cli import main
from experiments.cli.finished_runs import _list_notes, build_replay_table
from experiments.report.run.run_summary import summarise_run
from experiments.spec.experiment_loader import load_experiment
from fedge.confidence_interval import student_t
from fedge.devices.board_kinds import build_kind
from fedge.errors import BadInput
from fedge.experiment import list_boards
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow

EXPERIMENT = """
name: small
rounds: 4
backend: local
policy: balanced
workload: {local_epochs: 0.5}
fleet:
  - {device: nano, count: 2}
  - {device: agx-xavier, count: 1}
"""
SHORT = EXPERIMENT.replace("rounds: 4", "rounds: 2")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_changed(tmp_path_factory.mktemp("replayed"))


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds, whose replays take half as long."""
    return run_changed(tmp_path_factory.mktemp("short"), text=SHORT)


def run_changed(where: Path, *changes: str, text: str = EXPERIMENT) -> Path:
    (where / "exp.yaml").write_text(text, encoding="utf-8")
    experiment = load_experiment(where / "exp.yaml", changes)
    folder = where / "run"
    folder.mkdir()
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    run_local(experiment, folder, lambda: None)
    return folder


def summarise(folder: Path) -> dict[str, float]:
    experiment = load_experiment(folder / "run.yaml")
    return summarise_run(experiment, read_rows(folder, RoundRow), read_rows(folder, ClientRow), wall_s=0.0)


def find_figure(result: ReplayResult, name: str) -> ReplayFigure:
    return next(figure for figure in result.figures if figure.name == name)


def test_a_replay_predicts_a_policy_that_the_run_did_not_follow(run_folder, tmp_path):
    real = summarise(run_changed(tmp_path, "policy=maxn"))

    result = replay_run(run_folder, ["policy=maxn"], draws=2, workers=1)

    for name in ("energy_j", "makespan_s"):
        figure = find_figure(result, name)
        assert figure.predicted == pytest.approx(real[name], rel=0.05)
        assert figure.low <= figure.predicted <= figure.high
    energy = find_figure(result, "energy_j")
    assert abs(energy.predicted - real["energy_j"]) < abs(energy.actual - real["energy_j"])
    assert (result.measured, result.siblings, result.modelled) == (3, 0, 0)
    assert result.label == "estimated"


def test_the_run_s_options_that_another_policy_does_not_take_are_named(tmp_path):
    text = EXPERIMENT.replace("policy: balanced", "policy: {name: balanced, max_slowdown: 1.3}")
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    notes: list[str] = []
    _load_changed(tmp_path, ["policy.name=maxn"], 6, notes.append)

    assert notes == ["max_slowdown of the file's policy balanced left out: maxn takes no such option"]


def test_a_replay_without_an_effect_predicts_the_run_itself(short_run):
    result = replay_run(short_run, ["name=other"], draws=1, workers=1)

    for figure in result.figures:
        assert figure.predicted == pytest.approx(figure.actual, rel=1e-12)


def test_a_slower_link_costs_a_real_board_the_model_that_it_trains_and_an_emulated_one_the_priced_one(
    short_run, tmp_path
):
    real = tmp_path / "real"
    shutil.copytree(short_run, real)
    (real / "run.yaml").write_text(SHORT.replace("backend: local", "backend: fleet"), encoding="utf-8")

    longer = {}
    for folder in (short_run, real):
        makespan = find_figure(replay_run(folder, ["fleet.0.link.up_mbps=5"], draws=1, workers=1), "makespan_s")
        longer[folder] = makespan.predicted / makespan.actual
    assert longer[short_run] > 1.5
    assert longer[real] == pytest.approx(1.0, abs=0.02)


def test_boards_that_the_run_had_not_are_drawn_from_their_kind(short_run):
    fleet = "fleet=[{device: nano, count: 3}, {device: agx-xavier}, {device: agx-orin-64gb}]"

    result = replay_run(short_run, [fleet], draws=1, workers=1)

    assert (result.measured, result.siblings, result.modelled) == (3, 1, 1)
    energy = find_figure(result, "energy_j")
    assert energy.predicted > 1.1 * energy.actual
    assert energy.low is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("workload.batch_size=32", "workload.batch_size"),
        ("workload.cost=mobilenetv3-imagenet", "workload.cost"),
        ("policy=nosuch", "policy.name"),
    ],
)
def test_a_change_of_what_was_measured_is_refused(short_run, change, field):
    with pytest.raises(BadInput, match=field):
        replay_run(short_run, [change], draws=1, workers=1)


def test_the_command_prints_the_record(short_run, monkeypatch, capsys):
    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["fedge", "replay", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return int(ended.value.code or 0)

    assert call(str(short_run)) == main.BAD_INPUT
    assert "--policy NAME" in capsys.readouterr().err
    assert call(str(short_run / "none"), "--policy", "maxn") == main.BAD_INPUT
    assert "no such folder" in capsys.readouterr().err

    assert call(str(short_run), "--policy", "maxn", "--draws", "1", "--jobs", "1", "--json") == main.DONE
    record = json.loads(capsys.readouterr().out)
    assert record["changes"] == ["policy=maxn"]
    assert {figure["name"] for figure in record["figures"]} >= {"energy_j", "makespan_s", "final_accuracy"}


def test_a_limit_at_the_edge_of_what_the_fleet_can_do_is_named(run_folder):
    experiment = load_experiment(run_folder / "run.yaml")
    kinds = [build_kind(board, experiment.workload) for board in list_boards(experiment)]
    least_w, most_w = (sum(float(ends(kind.average.power_w)) for kind in kinds) for ends in (min, max))
    for share, named in ((0.03, True), (0.5, False)):
        limit = f"policy={{name: fastest, fleet_power_w: {least_w + share * (most_w - least_w):.2f}}}"
        result = replay_run(run_folder, [limit], draws=1, workers=1)
        warned = any("at the edge of what these boards can do" in note for note in _list_notes(result))
        assert warned == named


def test_draws_that_agree_by_chance_leave_an_interval_and_many_draws_speak_for_themselves():
    agreed, spread = [0.01] * 4, [0.02 * (-1) ** i for i in range(64)]

    def interval(effects: list[float]) -> float:
        pairs = [({"energy_j": 100.0}, {"energy_j": 100.0 * math.exp(effect)}) for effect in effects]
        (figure,) = _compare_figures({"energy_j": 100.0}, pairs)
        return math.log(figure.high / figure.low) / 2

    assert 0.3 * PRIOR_SD_LOG < interval(agreed) < 3 * PRIOR_SD_LOG
    plain = student_t(63, 0.9) * statistics.stdev(spread) * math.sqrt(1 + 1 / 64)
    assert interval(spread) == pytest.approx(plain, rel=0.05)


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_intervals_hold_whatever_share_of_the_errors_both_runs_have_in_common(shared):
    rng, sd, held, errors, ratio_errors = np.random.default_rng(4), 0.02, [], [], []
    for _ in range(600):
        before = rng.normal(0.0, sd, 9)
        after = 0.3 + shared * before + rng.normal(0.0, 0.004, 9)  # the ninth is the real fleet
        predicted, half = _predict_by_regression(before[:8], after[:8], before[8])
        assert half is not None
        held.append(abs(predicted - after[8]) <= half)
        errors.append(abs(predicted - after[8]))
        ratio_errors.append(abs(before[8] + np.mean(after[:8] - before[:8]) - after[8]))
    assert 0.85 <= np.mean(held) <= 0.95
    assert np.mean(errors) <= 1.1 * np.mean(ratio_errors)
    assert shared > 0.0 or np.mean(errors) <= 0.3 * np.mean(ratio_errors)


def test_an_accuracy_is_a_share_and_a_metric_of_a_tasks_own_is_not():
    pairs = [({"final_accuracy": 31.0}, {"final_accuracy": 33.0})] * 2
    (own,) = _compare_figures({"final_accuracy": 30.0, "metric": "peak ratio"}, pairs)
    assert own.predicted == own.low == own.high == 32.0
    (zero,) = _compare_figures(
        {"final_accuracy": 0.0, "metric": "skill"}, [({"final_accuracy": -1.0}, {"final_accuracy": 0.0})]
    )
    assert zero.predicted == 1.0
    (share,) = _compare_figures({"final_accuracy": 0.9}, [({"final_accuracy": 0.5}, {"final_accuracy": 0.7})] * 2)
    assert share.predicted == share.high == 1.0
    result = ReplayResult("run", ("seed=2",), 3, 2, 1, 0, 0, (own,), metric="peak ratio")
    assert [cell.plain_text for cell in build_replay_table(result).rows[0]] == [
        *("final peak ratio", "30.0", "32.0", "32.0 to 32.0", "2.00"),
    ]
