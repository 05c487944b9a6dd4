"""The list of runs: what it says of each, their default names, and the command that shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.backends import launcher
from experiments.backends.run_list import list_runs
from experiments.cli.run_status import build_runs_table
from experiments.cli.run_status import runs as show_runs
from experiments.report.run.run_names import describe_changes
from experiments.run_results import Run
from fedge.atomic_files import FileLock
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry
from fedge.telemetry import run_folder
from fedge.telemetry.store_records import EventRow

EXPERIMENT = Experiment(fleet=(FleetEntry(device="nano"),), name="quickstart")


@pytest.fixture
def folder(make_run: Callable[..., Path]) -> Path:
    for policy in ("balanced", "maxn"):
        with (make_run(policy, policy=policy) / "run.yaml").open("a", encoding="utf-8") as file:
            file.write(f"tags: [paper, {policy}]\n")
    return make_run("other", policy="maxn").parent


def test_a_list_says_what_differs_between_the_runs_of_one_experiment(folder):
    found = {run.name: run for run in list_runs(folder)}
    assert found["balanced"].differences["policy.name"] == "balanced"
    assert found["maxn"].differences["policy.name"] == "maxn"
    assert set(found["maxn"].differences) == {"policy.name"}
    assert found["maxn"].rounds == found["maxn"].planned


def test_a_metric_of_a_tasks_own_has_its_name_and_no_percent(make_run):
    path = make_run("own") / "run.yaml"
    path.write_text(path.read_text("utf-8") + "workload: {task: none, metric: peak ratio}\n", encoding="utf-8")
    table = build_runs_table(list_runs(path.parent.parent), "runs")
    assert table.rows[0][table.heads.index("peak ratio")].content == "0.833"
    make_run("usual")
    table = build_runs_table(list_runs(path.parent.parent), "runs")
    assert {row[table.heads.index("metric")].content for row in table.rows} == {"0.833", "83.3 %"}
    assert "peak ratio 0.833" in repr(Run(path.parent))


def test_a_list_is_cut_down_to_the_runs_with_all_tags(folder):
    assert [run.name for run in list_runs(folder, ["maxn", "paper"])] == ["maxn"]
    assert list_runs(folder, ["nobody"]) == ()


def test_a_list_shows_a_run_that_goes_on(folder):
    lock = FileLock(folder / "maxn" / launcher.LOCK_FILE, "a run")
    try:
        assert {run.name: run.state for run in list_runs(folder)}["maxn"] == "running"
    finally:
        lock.release()
    assert {run.name: run.state for run in list_runs(folder)}["maxn"] != "running"


def test_a_run_that_cannot_be_read_does_not_hide_the_others(folder):
    (folder / "maxn" / "run.yaml").write_text("fleet: 3\n", encoding="utf-8")
    found = {run.name: run.problem for run in list_runs(folder)}
    assert found["balanced"] == ""
    assert "fleet" in found["maxn"]


def test_a_run_with_a_damaged_store_does_not_hide_the_others(folder, make_run):
    broken = make_run("broken", events=[EventRow(0.0, 1, None, "note", "text")])
    experiment = (broken / "run.yaml").read_text(encoding="utf-8")
    (broken / "run.yaml").write_text(experiment.replace("rounds: 3", "rounds: 9"), encoding="utf-8")
    (broken / run_folder.MODEL).touch()
    for file in (broken / run_folder.STORE / "events").iterdir():
        file.write_bytes(b"damaged")
    found = {run.name: run.problem for run in list_runs(folder)}
    assert found.pop("broken")
    assert set(found.values()) == {""}


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadInput, match="nowhere"):
        list_runs(tmp_path / "nowhere")


def test_the_command_prints_a_row_per_run_or_json(folder, capsys):
    assert len(build_runs_table(list_runs(folder), "runs").rows) == 3
    show_runs(folder, ["paper"], as_json=True)
    assert {run["name"] for run in json.loads(capsys.readouterr().out)} == {"balanced", "maxn"}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ([("seed", 3), ("policy", "least-energy"), ("backend", "local")], ["least-energy", "seed3"]),
        ([("policy.name", "maxn"), ("policy.max_slowdown", 1.2)], ["maxn", "max_slowdown1.2"]),
        ([("policy", {"name": "balanced", "time_weight": 0.5})], ["balanced"]),
        ([("fleet", [{"device": "nano"}]), ("data.dir", "/a b/c")], ["fleet", "a-b-c"]),
        ([("policy", "mine:choose")], ["mine-choose"]),
        ([("jobs", 2), ("tags", ["x"])], []),
    ],
)
def test_a_default_name_says_what_was_overridden(changes, parts):
    assert describe_changes(changes) == parts


def test_a_name_is_the_run_s_folder_and_stands_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert launcher.choose_folder(EXPERIMENT, None, name="first") == tmp_path / "runs" / "first"
    with pytest.raises(BadInput, match="--name"):
        launcher.choose_folder(EXPERIMENT, tmp_path / "x", name="first")
    with pytest.raises(BadInput, match="--tag"):
        launcher.add_tags(EXPERIMENT, ["two words"])
    assert launcher.choose_folder(EXPERIMENT, None, changes=[("seed", 7)]).name.startswith("quickstart-seed7-")
