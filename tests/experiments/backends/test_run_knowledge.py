"""A second run starts from what the first one measured: frozen at its start, given back once, said in its report."""

from __future__ import annotations

import dataclasses
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from contracts.boards import write_table
from contracts.launching import SMALL

from experiments.backends import launcher, run_knowledge
from experiments.backends.run_knowledge import import_path
from experiments.report.run.run_tables import describe_knowledge
from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.client.memory_scaling import build_scaling_context, choose_first_attempt
from fedge.devices import catalogue
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment
from fedge.knowledge.knowledge_folder import (
    add_entry,
    encode_measurements,
    hash_content,
    list_entries,
    read_measurements,
)
from fedge.knowledge.recall import read_run_knowledge
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow
from fedge.types import Measurement
from fedge.wire import ClientState

NOW = datetime(2026, 6, 1, tzinfo=UTC)
BOARDS = ("nano-1", "xavier-nx-1")


def load(folder: Path, *overrides: str) -> Experiment:
    path = folder / "exp.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return load_experiment(path, ["rounds=2", "workload.local_epochs=2", f"knowledge={folder}/k", *overrides])


def run(experiment: Experiment, folder: Path) -> dict[str, Any]:
    experiment_checks.check_experiment(experiment)
    return launcher.start_run(experiment, folder, lambda: None)


def rows_of(folder: Path) -> list[ClientRow]:
    return read_rows(folder, ClientRow)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a first run, a second one with its knowledge, and the knowledge as the second one found it."""
    folder = tmp_path_factory.mktemp("two")
    run(load(folder), folder / "cold")
    (folder / "before").mkdir()
    for entry in list_entries(folder / "k").entries:
        add_entry(folder / "before", entry, (folder / "k" / entry.file).read_bytes())
    run(load(folder), folder / "warm")
    return folder


def test_a_run_gives_back_what_its_boards_measured(two):
    entries = list_entries(two / "before").entries

    assert sorted(one.boards for one in entries) == [("nano-1@seed-3",), ("xavier-nx-1@seed-3",)]
    assert {(one.form, one.workload, one.batch_size, one.label) for one in entries} == {
        ("run", "resnet18-imagenet", 16, "estimated")
    }
    assert sum(one.probes for one in entries) == sum(row.probes for row in rows_of(two / "cold")) > 0
    measured = {
        mode for one in entries for rows in read_measurements(two / "before", one).boards.values() for mode in rows
    }
    assert len(measured) >= sum(row.probes + 1 for row in rows_of(two / "cold")) - 2


def test_a_second_run_starts_warm_and_its_predictions_are_better_before_any_measurement(two):
    cold, warm = ([row for row in rows_of(two / name) if row.round == 1] for name in ("cold", "warm"))

    assert [row.board for row in warm] == list(BOARDS)
    assert all((row.recalled_samples or 0) > 2 for row in warm)
    for before, after in zip(cold, warm, strict=True):
        assert (after.prior_time_ape or 1) < 0.5 * (before.prior_time_ape or 0)
        assert (after.prior_power_ape or 1) < (before.prior_power_ape or 0)
    assert all(row.recalled_samples for row in rows_of(two / "warm"))


def test_the_summary_and_the_terminal_say_what_came_from_where(two):
    known = json.loads((two / "warm" / "summary.json").read_text())["knowledge"]
    lines = list(describe_knowledge(known))

    assert (known["boards"], known["peers"], known["contradicted"]) == (2, 0, {})
    assert lines[0].startswith("knowledge: 2 boards started from their own earlier measurements; at most ")
    assert {one["relation"] for one in known["origins"]["nano-1"]} == {"same board"}
    assert "Knowledge" in (two / "warm" / "report.html").read_text()
    cold = json.loads((two / "cold" / "summary.json").read_text())["knowledge"]
    assert "nothing fits" in next(describe_knowledge(cold))


def test_the_second_run_gives_back_only_what_it_measured_itself(two):
    entries = list_entries(two / "k").entries
    assert len(entries) == 4
    new = [one for one in entries if one.source == "run warm"]
    measured = sum(len(rows) for one in new for rows in read_measurements(two / "k", one).boards.values())

    assert measured <= sum(row.probes + 2 for row in rows_of(two / "warm"))


def test_a_batch_size_that_memory_set_in_one_run_is_that_of_the_next_ones_first_round(tmp_path):
    tight = "fleet=[{device: nano, count: 4, memory_mb: 2000}]"  # 1999 MB are predicted for the batch of 16
    experiment = load(tmp_path, tight, "workload.memory={margin: 0.0}", "rounds=1")
    run(experiment, tmp_path / "cold")
    run(experiment, tmp_path / "warm")
    cold, warm = rows_of(tmp_path / "cold"), rows_of(tmp_path / "warm")

    lowered = {row.board: row.batch_size for row in cold if row.out_of_memory}
    assert 0 < len(lowered) < len(cold)
    assert [(row.board, row.batch_size) for row in warm] == [(row.board, row.batch_size) for row in cold]
    assert [row.out_of_memory for row in warm] == [0] * len(warm)


def test_a_resumed_run_recalls_what_it_began_with_and_is_given_back_once(two, tmp_path):
    part, before = tmp_path / "warm", list_entries(two / "k").entries
    shutil.copytree(two / "warm", part)
    (part / "checkpoints" / "round-000002.safetensors").unlink()
    (part / "model.safetensors").unlink()
    launcher.continue_run(launcher.load_saved_experiment(part), part, lambda: None)

    assert rows_of(part) == rows_of(two / "warm")
    # By name: those that were given back anew have a later date, and so another place, if a second has passed.
    assert sorted(one.id for one in list_entries(two / "k").entries) == sorted(one.id for one in before)


def test_without_knowledge_nothing_is_read_or_written(tmp_path):
    run(load(tmp_path, "knowledge=none", "rounds=1"), tmp_path / "run")

    assert not (tmp_path / "k").exists()
    assert not (tmp_path / "knowledge").exists()
    assert not (tmp_path / "run" / "knowledge.json").exists()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["knowledge"] == {}


def test_a_failed_run_gives_back_the_rows_that_it_has(tmp_path, monkeypatch):
    whole = launcher._load_backend("local")

    def fail(experiment: Experiment, folder: Path, refresh: launcher.Refresh) -> None:
        whole(experiment.model_copy(update={"rounds": 1}), folder, refresh)
        raise RunFailed("the power went")

    monkeypatch.setattr(launcher, "_load_backend", lambda _: fail)
    with pytest.raises(RunFailed, match="the power went"):
        run(load(tmp_path), tmp_path / "run")

    assert len(list_entries(tmp_path / "k").entries) == 2


def test_wrong_knowledge_is_found_out_and_named(two, tmp_path):
    """Another workload's figures under this one's name, as of the board itself."""
    for entry in list_entries(two / "before").entries:
        boards = {
            board: [slower(row) for row in rows]
            for board, rows in read_measurements(two / "before", entry).boards.items()
        }
        content = encode_measurements(boards)
        add_entry(tmp_path / "k", dataclasses.replace(entry, sha256=hash_content(content)), content)
    summary = run(load(tmp_path), tmp_path / "run")

    assert summary["knowledge"]["contradicted"] == dict.fromkeys(BOARDS, 1)
    assert any("contradicts the first measurements" in line for line in describe_knowledge(summary["knowledge"]))
    assert [row.recalled_samples for row in rows_of(tmp_path / "run")] == [0] * 4
    assert "contradicts the first measurements" in (tmp_path / "run" / "report.html").read_text()


def slower(row: Measurement) -> Measurement:
    return dataclasses.replace(row, step_s=1.8 * row.step_s, power_w=0.8 * row.power_w)


def test_runs_and_folders_are_imported_and_a_run_only_once(two, tmp_path):
    first = import_path(two / "cold", tmp_path / "k")
    again = import_path(two / "cold", tmp_path / "k")
    copied = import_path(two / "before", tmp_path / "k")

    assert [one.id for one in first] == [one.id for one in again]
    assert len(list_entries(tmp_path / "k").entries) == len(first) == 2
    assert {one.id for one in copied} == {one.id for one in first}
    with pytest.raises(BadInput, match="no such file"):
        import_path(tmp_path / "nothing.csv", tmp_path / "k")


def test_a_table_that_has_gone_on_replaces_its_earlier_state_and_no_other_boards_table(tmp_path):
    stages = [("nano-1", slice(0, 20)), ("nano-2", slice(0, 20)), ("nano-1", slice(0, 40))]
    for board, rows in stages:
        path = write_table(tmp_path / "board" / "train" / "net.csv", rows=rows)
        import_path(path, tmp_path / "k", board=board)

    found = {(one.boards, one.rows) for one in list_entries(tmp_path / "k").entries}
    assert found == {(("nano-1",), 40), (("nano-2",), 20)}


def test_the_memory_of_a_boards_own_profile_sets_the_batch_size_of_its_first_run(tmp_path):
    path = write_table(tmp_path / "nano" / "train" / "resnet18-imagenet.csv", rows=slice(0, 20))
    record = {"board": "nano", "workload": "synthetic-cnn", "inventory_name": "nano-1", "peak_mb": 260.5}
    path.with_name(f"{path.name}.json").write_text(json.dumps(record))
    import_path(path, tmp_path / "k")
    fleet = "fleet=[{device: nano, count: 2}]"
    experiment = load(tmp_path, fleet, "backend=fleet", "workload.task=synthetic-cnn", "workload.batch_size=16")
    run_knowledge.recall_for_run(experiment, tmp_path / "run", name="a", now=NOW)

    memory = read_run_knowledge(tmp_path / "run").memory
    scaling = build_scaling_context(experiment, experiment.fleet[0], catalogue.find("nano"), lambda: True)
    assert [(name, [seen.peak_mb for seen in found]) for name, found in memory.items()] == [("nano-1", [260.5])]
    assert choose_first_attempt(scaling, ClientState()).scale.batch_size < 16
    assert choose_first_attempt(scaling, ClientState(memory=memory["nano-1"])).scale.batch_size == 16


@pytest.mark.parametrize("by", ["reference", "knowledge"])
def test_a_table_of_others_is_written_into_the_run_folder_whatever_it_names(tmp_path, by):
    victim = tmp_path / "home" / "victim.csv"
    victim.parent.mkdir()
    victim.write_text("precious")
    path = write_table(tmp_path / "nano" / "train" / "net.csv", rows=slice(0, 40))
    record = {"board": "nano", "workload": "lab/net" if by == "knowledge" else str(victim.with_suffix(""))}
    path.with_name(f"{path.name}.json").write_text(json.dumps(record))
    references = f", references: [{path}]" if by == "reference" else ""
    experiment = load(tmp_path, f"fleet=[{{device: nano{references}}}]", "backend=fleet")
    if by == "knowledge":
        import_path(path, tmp_path / "k")
    recalled = run_knowledge.recall_for_run(experiment, tmp_path / "run", name="a", now=NOW)

    written = [Path(one) for one in recalled.fleet[0].references]
    assert [one.is_relative_to(tmp_path / "run" / "knowledge") for one in written] == [True]
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({}, None),
        ({"backend": "fleet"}, "runs/knowledge"),
        ({"knowledge": "auto"}, "runs/knowledge"),
        ({"knowledge": "none", "backend": "fleet"}, None),
        ({"knowledge": "/some/where"}, "/some/where"),
    ],
)
def test_the_knowledge_is_beside_the_runs_unless_it_is_named(tmp_path, monkeypatch, changes, folder):
    monkeypatch.delenv("FEDGE_KNOWLEDGE", raising=False)
    experiment = load(tmp_path, "knowledge=null").model_copy(update=changes)
    found = run_knowledge.find_folder(experiment, tmp_path / "runs" / "a")

    assert found == (None if folder is None else tmp_path / folder)


def test_all_jobs_of_a_fleets_server_share_one_folder_and_the_environment_names_another(tmp_path, monkeypatch):
    job = tmp_path / "runs" / "job-1"
    job.mkdir(parents=True)
    (job / "experiment.yaml").write_text("fleet: [nano]")
    experiment = load(tmp_path, "knowledge=auto")
    monkeypatch.delenv("FEDGE_KNOWLEDGE", raising=False)
    assert run_knowledge.find_folder(experiment, job / "run") == tmp_path / "runs" / "knowledge"

    monkeypatch.setenv("FEDGE_KNOWLEDGE", str(tmp_path / "mine"))
    assert run_knowledge.find_folder(experiment, job / "run") == tmp_path / "mine"


def test_a_single_finished_run_is_knowledge_and_stays_as_it_is(two, tmp_path):
    before = sorted(path.relative_to(two) for path in (two / "cold").rglob("*"))
    experiment = load(tmp_path, f"knowledge={two / 'cold'}")
    run_knowledge.recall_for_run(experiment, tmp_path / "run", name="a", now=NOW)

    assert sorted(read_run_knowledge(tmp_path / "run").own) == list(BOARDS)
    assert sorted(path.relative_to(two) for path in (two / "cold").rglob("*")) == before
