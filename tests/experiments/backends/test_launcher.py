"""A run by the ``fedge`` command: what it leaves behind, how it stops, and that going on gives the same rows."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from contracts.launching import SMALL, Launcher, started

from experiments.backends import launcher
from experiments.cli import main
from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import BadInput
from fedge.experiment import Experiment, PolicySpec
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow

MANY = 8
"""Rounds of a run that is stopped on the way."""


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Launcher:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "exp.yaml").write_text(SMALL, encoding="utf-8")
    return Launcher(monkeypatch, capsys)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of ``SMALL`` that nobody changes; what is to be changed is a copy."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "exp.yaml").write_text(SMALL, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["fedge", "run", "exp.yaml", "--folder", "run"])
        with pytest.raises(SystemExit, match="0"):
            main.main()
    return folder / "run"


def _rows(folder: Path) -> tuple[list[RoundRow], list[ClientRow]]:
    return read_rows(folder, RoundRow), read_rows(folder, ClientRow)


def _saved(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
    return record


def test_a_folder_that_another_run_took_meanwhile_keeps_its_experiment(whole, tmp_path):
    taken = tmp_path / "run"
    taken.mkdir()
    shutil.copy(whole / "run.yaml", taken)
    with pytest.raises(BadInput, match="which another run has taken just now"):
        launcher.start_run(launcher.load_saved_experiment(whole).model_copy(update={"seed": 9}), taken, lambda: None)

    assert _saved(taken) == _saved(whole)


@pytest.mark.parametrize(
    ("names", "free"),
    [
        ([], True),
        ([".lock"], True),
        ([".lock", ".run.yaml.7.7.part", "knowledge.json", "knowledge"], True),
        (["knowledge.json"], False),
        ([".lock", "run.yaml"], False),
        ([".lock", "notes.txt"], False),
    ],
)
def test_a_start_that_was_killed_before_its_run_began_may_be_repeated(whole, tmp_path, names, free):
    for name in names:
        (tmp_path / name).touch()
    experiment = launcher.load_saved_experiment(whole)
    if free:
        assert launcher.choose_folder(experiment, tmp_path) == tmp_path
    else:
        with pytest.raises(BadInput, match="a folder that is new or empty"):
            launcher.choose_folder(experiment, tmp_path)


def test_a_run_leaves_a_whole_folder(whole):
    names = {path.name for path in whole.iterdir()}
    assert sorted(names) == [
        ".lock",
        "checkpoints",
        "live",
        "model.safetensors",
        "report.html",
        "run.yaml",
        "store",
        "summary.json",
    ]
    assert [path.name for path in (whole / "checkpoints").iterdir()] == ["round-000001.safetensors"]


def test_json_is_one_object_on_stdout_and_all_else_on_stderr(fedge, tmp_path):
    outcome = fedge("run", "exp.yaml", "--folder", "run", "--json")

    summary = json.loads(outcome.out)
    assert outcome.out.count("\n") == 1
    assert summary.pop("folder") == str(tmp_path / "run")
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["rounds"] == 1
    assert summary["clients"] == 2
    assert "round 1/1" in outcome.err


def test_a_saved_experiment_resolves_to_itself(whole):
    assert load_experiment(whole / "run.yaml") == load_experiment(whole.parent / "exp.yaml")


@pytest.mark.parametrize(
    ("overrides", "policy"),
    [
        (["policy=maxn"], {"name": "maxn"}),
        (["policy.power_w=20", "policy.name=fastest-within-power"], {"name": "fastest-within-power", "power_w": 20.0}),
        (["policy=maxn", "policy.name=balanced", "policy.time_weight=0.7"], {"name": "balanced", "time_weight": 0.7}),
        (["policy=maxn", "policy={name: balanced}"], {"name": "balanced"}),
    ],
)
def test_overrides_are_applied_in_order_and_reach_into_short_forms(tmp_path, overrides, policy):
    path = tmp_path / "exp.yaml"
    path.write_text(SMALL, encoding="utf-8")

    assert load_experiment(path, overrides).policy == PolicySpec(**policy)


def test_the_options_for_seed_and_backend_win_over_set(fedge, tmp_path):
    words = ("--set", "seed=8", "--set", "backend=sim", "--seed", "9", "--backend", "local", "--set", "name=other")
    assert fedge("run", "exp.yaml", "--folder", "run", *words).code == 0

    record = _saved(tmp_path / "run")
    assert (record["seed"], record["backend"], record["name"]) == (9, "local", "other")


def test_paths_are_taken_from_the_yamls_folder(tmp_path):
    folder = tmp_path / "sub"
    folder.mkdir()
    text = "fleet: [{device: mine.yaml, truth: 'table:t.csv'}]\nplugins: [p.py]\ndata: {dir: d}\n"
    (folder / "exp.yaml").write_text(text, encoding="utf-8")

    experiment = load_experiment(folder / "exp.yaml")
    assert experiment.fleet[0].device == str(folder / "mine.yaml")
    assert experiment.fleet[0].name == "mine"
    assert experiment.fleet[0].truth == f"table:{folder / 't.csv'}"
    assert experiment.plugins == (str(folder / "p.py"),)
    assert experiment.data.dir == str(folder / "d")


@pytest.mark.parametrize(
    "policy",
    [
        "maxn",
        "preset:MAXN",
        "{name: fastest-within-power, power_w: 8}",
        "{name: least-energy-within-deadline, deadline_s: 60}",
        "{name: balanced, deadline_s: 60, max_slowdown: 1.2}",
    ],
)
def test_every_policy_plays(fedge, tmp_path, policy):
    assert fedge("run", "exp.yaml", "--folder", "run", "--set", f"policy={policy}", "--set", "rounds=2").code == 0

    rounds, clients = _rows(tmp_path / "run")
    assert [row.done for row in rounds] == [2, 2]
    assert all(row.why and row.feasible is not None for row in clients)


def test_a_limit_that_some_boards_cannot_keep_is_noted_and_played(fedge, tmp_path):
    policy = "policy={name: fastest-within-power, power_w: 4}"
    fleet = "fleet=[{device: nano}, {device: agx-orin, count: 2}]"

    outcome = fedge("run", "exp.yaml", "--folder", "run", "--set", policy, "--set", fleet)
    assert outcome.code == 0
    assert "note: 2 x agx-orin cannot keep 4 W; they run in their lowest mode" in outcome.out
    assert "nano cannot" not in outcome.out
    feasible = {row.board: row.feasible for row in _rows(tmp_path / "run")[1]}
    assert feasible == {"nano-1": True, "agx-orin-1": False, "agx-orin-2": False}
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["infeasible"] == 2


PLUGIN = """
import dataclasses
from fedge.types import Decision
from fedge.workloads import load_task
from flwr.serverapp.strategy import FedAvg


def coolest(predictions, offer, goal, spec):
    return Decision(predictions.modes[predictions.power_w.argmin()], "coolest of all")


class Mine(FedAvg):
    def __init__(self, scale: float = 1.0, **options):
        super().__init__(**options)
        self.scale = scale


def digits(data_dir, download):
    return load_task("digits-cnn")
"""


def test_the_users_own_policy_strategy_and_task_play(fedge, tmp_path):
    (tmp_path / "own_parts.py").write_text(PLUGIN, encoding="utf-8")
    own = {"policy": "own_parts:coolest", "workload.task": "own_parts:digits", "plugins": "[own_parts.py]"}
    own |= {"strategy": "{name: 'own_parts:Mine', options: {scale: 2}}"}
    words = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]

    assert fedge("run", "exp.yaml", "--folder", "run", *words).code == 0
    assert {row.why for row in _rows(tmp_path / "run")[1]} == {"coolest of all"}


def test_a_report_that_cannot_be_written_says_so(fedge, tmp_path, whole):
    outcome = fedge("report", whole, "--out", tmp_path / "exp.yaml" / "r.html")
    assert outcome.code == 2
    assert "r.html; a file that can be written (" in outcome.message


def test_a_finished_run_is_not_played_again(fedge, tmp_path, whole, monkeypatch):
    folder = shutil.copytree(whole, tmp_path / "run")
    monkeypatch.setattr(launcher, "_load_backend", lambda name: pytest.fail(f"{name} was started"))
    assert fedge("resume", "run").code == 0  # the report says where its run lies
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    (folder / "report.html").unlink()

    assert fedge("resume", "run").code == 0
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert len(after.pop("report.html")) == len(before.pop("report.html"))
    assert after == before


def test_more_rounds_go_on_where_the_run_ended(fedge, tmp_path, whole):
    """Not as in a run that was longer from its start: boards probe only what pays back in the rounds that are left."""
    for name in ("short", "again"):
        shutil.copytree(whole, tmp_path / name)
        saved = tmp_path / name / "run.yaml"
        saved.write_text(yaml.safe_dump(_saved(tmp_path / name) | {"rounds": 2}), encoding="utf-8")

        assert fedge("resume", name).code == 0

    rounds, clients = _rows(tmp_path / "short")
    first, second = rounds
    assert [first] == _rows(whole)[0]
    assert [row for row in clients if row.round == 1] == _rows(whole)[1]
    assert (second.round, second.start_s) == (2, first.end_s)
    assert (rounds, clients) == _rows(tmp_path / "again")


def test_two_runs_in_one_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher.time, "strftime", lambda _: "20250101-120000")
    experiment = Experiment.model_validate({"name": "x", "fleet": [{"device": "nano"}]})
    folders = []
    for _ in range(3):
        folders.append(launcher.choose_folder(experiment, None))
        folders[-1].mkdir(parents=True)

    assert [folder.name for folder in folders] == ["x-20250101-120000", "x-20250101-120000-2", "x-20250101-120000-3"]


def test_labels_say_in_a_line_where_numbers_come_from():
    experiment = Experiment.model_validate({"fleet": [{"device": "nano"}, {"device": "agx-orin-64gb"}]})
    found = experiment_checks.build_labels(experiment)

    assert set(found) == {"nano", "agx-orin-64gb"}
    for kind in found.values():
        assert kind["prior"]["label"] == "estimated"
        assert kind["prior"]["source"].endswith(" other workloads, carried by data-sheet ratios")
        assert len(kind["prior"]["source"]) < 100


def _stopped(config: Path, out: Path, by: signal.Signals, *words: str) -> tuple[int, str]:
    """Start a long run, send a signal after its second round; the exit code and what it still said."""
    sets = ("--set", f"rounds={MANY}", *words)
    process = started("run", config, "--folder", out, *sets)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round 2/"):
            process.send_signal(by)
            break
    rest, _ = process.communicate(timeout=60)
    return process.returncode, rest


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(fedge, tmp_path):
    assert fedge("run", "exp.yaml", "--folder", "run", "--set", "rounds=3").code == 0
    whole = _rows(tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "round-000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    (tmp_path / "run" / "model.safetensors").unlink()

    assert fedge("resume", "run").code == 0
    assert _rows(tmp_path / "run") == whole


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_stopped_run_says_how_to_go_on(tmp_path, by):
    (tmp_path / "exp.yaml").write_text(SMALL, encoding="utf-8")
    code, said = _stopped(tmp_path / "exp.yaml", tmp_path / "run", by)

    assert code == 130
    assert f"`fedge resume {tmp_path / 'run'}` goes on from the last checkpoint" in said
    assert "Traceback" not in said


def test_the_installed_command_refuses_bad_input_with_code_2(tmp_path):
    program = Path(sys.executable).with_name("fedge")
    if not program.exists():
        pytest.skip("fedge is not installed beside this Python")
    (tmp_path / "exp.yaml").write_text("fleet: [tx9]\n", encoding="utf-8")

    done = subprocess.run([program, "-q", "run", "exp.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith(
        "fedge: exp.yaml: fleet[0].device: got 'tx9'; did you mean tx2? known: "
    )
    assert not (tmp_path / "runs").exists()


BUDGETED = ("--set", "policy={name: energy-budget, budget_j: 1}", "--set", "selection=random")


def test_a_run_that_its_energy_budget_ended_is_done_and_is_not_played_again(fedge, tmp_path, whole, monkeypatch):
    one_round_j = json.loads((whole / "summary.json").read_text(encoding="utf-8"))["energy_j"]
    budget = f"policy={{name: energy-budget, budget_j: {1.5 * one_round_j}}}"
    assert fedge("run", "exp.yaml", "--folder", "run", "--set", "rounds=9", "--set", budget).code == 0
    rows = _rows(tmp_path / "run")
    monkeypatch.setattr(launcher, "_load_backend", lambda name: pytest.fail("a finished run was played"))
    again = fedge("resume", "run")

    assert 0 < len(rows[0]) < 9
    assert again.code == 0
    assert "are spent" in again.out
    assert _rows(tmp_path / "run") == rows


def test_a_budget_that_allows_no_round_ends_with_a_reason(fedge):
    outcome = fedge("run", "exp.yaml", "--folder", "run", *BUDGETED)

    assert outcome.code == 1
    assert "no round was run: 0 J of 1 J are spent" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_trace_is_found_beside_the_file_from_wherever_the_run_is_started(tmp_path):
    text = SMALL.replace("count: 1}", "count: 1, availability: {trace: there.csv}}", 1)
    (tmp_path / "exp.yaml").write_text(text + "selection: random\n", encoding="utf-8")
    experiment = load_experiment(tmp_path / "exp.yaml", ["selection.count=1"])

    assert experiment.fleet[0].availability.trace == str(tmp_path / "there.csv")
    assert (experiment.selection.name, experiment.selection.count) == ("random", 1)
