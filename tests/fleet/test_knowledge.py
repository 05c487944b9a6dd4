"""What a fleet has learnt is not measured again: a killed profile goes on, and runs start from it and from each other.

The hosts are recorded folders: their figures are labelled so on the way from the board to the page of a run. A busy
machine may slow a board's steps so much that it drops what it recalls; then it is named as contradicted and may probe.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.hosts import INSTALLED, Host, Hosts, list_processes

from experiments.cli.fleet_profile import name_campaign
from experiments.report.run.run_tables import describe_knowledge
from fedge.telemetry.run_folder import REPORT, SUMMARY
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import RECORDED, ClientRow, EventRow

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
WORKLOAD, BATCH_SIZE, MODES = "synthetic-cnn", 16, 4
LABEL = "estimated"
"""Of figures from a recorded folder: its watts were written there."""
KINDS = {"nano-1": "nano", "xavier-nx-1": "xavier-nx", "agx-orin-1": "agx-orin-64gb", "orin-nano-1": "orin-nano-super"}
PROFILE = ["profile", "--workload", WORKLOAD, "--batch-size", str(BATCH_SIZE), "--modes", str(MODES)]
PROFILE += ["--explorer", "random", "--max-mode-s", "2", "--budget-s", "300", "--folder", "profiles"]
OPTIONS = {"workload": WORKLOAD, "modes": str(MODES), "explorer": "random", "batch-size": BATCH_SIZE, "seed": 0}
TABLE = f"/var/lib/fedge-app/profiles/{name_campaign({**OPTIONS, 'max-mode-s': 2.0})}/{WORKLOAD}.csv"
EXPERIMENT = {
    "name": "recalling",
    "seed": 1,
    "rounds": 2,
    "knowledge": "auto",
    "workload": {"task": WORKLOAD, "batch_size": BATCH_SIZE, "local_epochs": 0.5},
    "exploration": {"probes": 2, "probe_s": 0.1},
}
KNOWLEDGE = f"cd /var/lib/fedge-link && sudo -u fedge-link {INSTALLED}/.venv/bin/fedge knowledge"
FIRST_MODE_S = 240.0
STARTS = 6
"""Starts until a profile is done: a board that measures on after its launcher was killed refuses a second start."""
Mode = tuple[float, ...]


def measured_modes(host: Host) -> list[Mode]:
    """The modes in a board's journal, in the order of their measurement."""
    said = host.ssh(f"cat {TABLE}.journal").stdout.splitlines()
    events = [json.loads(line) for line in said if line.endswith("}")]
    return [tuple(event["mode"]) for event in events if event["event"] == "mode"]


def entries_on(hosts: Hosts) -> list[dict[str, Any]]:
    """The entries of the fleet's knowledge, as its server lists them."""
    return list(json.loads(hosts.server.run(f"{KNOWLEDGE} list --json")))


@dataclass(frozen=True)
class KilledProfile:
    """A profile whose launcher and one of whose boards were killed, and which was started again until it was done."""

    hosts: Hosts
    before: dict[str, list[Mode]]
    said: str


@pytest.fixture(scope="module")
def profiled(provisioned: Hosts) -> KilledProfile:
    for entry in entries_on(provisioned):  # runs of other files give back what they measured too
        provisioned.server.run(f"{KNOWLEDGE} forget {entry['id']}")
    for board in provisioned.boards.values():
        board.pace_worker()
    victim = next(reversed(provisioned.boards.values()))
    with provisioned.begun(*PROFILE) as launcher:
        end_s = time.monotonic() + FIRST_MODE_S
        while not measured_modes(victim):
            assert launcher.poll() is None, launcher.communicate()
            assert time.monotonic() < end_s, f"{victim.name} measured no mode within {FIRST_MODE_S:.0f} s"
            time.sleep(0.5)
        launcher.kill()
    for process in list_processes(victim, b"/bin/fedge\0profile"):
        os.kill(process, signal.SIGKILL)
    before = {name: measured_modes(host) for name, host in provisioned.boards.items()}
    for _ in range(STARTS):
        done = provisioned.fedge(*PROFILE)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return KilledProfile(provisioned, before, done.stdout)


@dataclass(frozen=True)
class RecallingRun:
    """A finished run of the fleet."""

    folder: Path
    said: str

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / SUMMARY).read_text(encoding="utf-8")))

    @property
    def first_rows(self) -> dict[str, ClientRow]:
        return {row.board: row for row in read_rows(self.folder, ClientRow) if row.round == 1}

    def origins(self, board: str) -> set[tuple[str, str, str, str]]:
        """Form, relation, board and label of what a board recalled."""
        found = self.summary["knowledge"]["origins"][board]
        return {(one["form"], one["relation"], one["board"], one["label"]) for one in found}


def run_on(hosts: Hosts, folder: Path) -> RecallingRun:
    file = folder.with_suffix(".yaml")
    entries = [{"device": KINDS[name], "name": name.removesuffix("-1")} for name in hosts.boards]
    file.write_text(yaml.safe_dump(EXPERIMENT | {"fleet": entries}), encoding="utf-8")
    done = hosts.fedge("run", str(file), "--folder", str(folder))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return RecallingRun(folder, done.stdout)


@pytest.fixture(scope="module")
def runs(profiled: KilledProfile, tmp_path_factory: pytest.TempPathFactory) -> tuple[RecallingRun, RecallingRun]:
    folder = tmp_path_factory.mktemp("runs")
    return run_on(profiled.hosts, folder / "first"), run_on(profiled.hosts, folder / "second")


def test_a_profile_that_was_killed_goes_on_and_repeats_no_mode(profiled):
    modes = {name: measured_modes(host) for name, host in profiled.hosts.boards.items()}

    assert {name: len(set(found)) for name, found in modes.items()} == dict.fromkeys(modes, MODES)
    assert {name: len(found) for name, found in modes.items()} == dict.fromkeys(modes, MODES)
    assert all(modes[name][: len(found)] == found for name, found in profiled.before.items())
    assert any(0 < len(found) < MODES for found in profiled.before.values())
    assert "imported" in profiled.said


def test_a_run_starts_from_the_profile_with_hardly_a_probe(runs):
    first, _ = runs
    known, rows = first.summary["knowledge"], first.first_rows

    assert known["boards"] == len(rows)
    assert {board: first.origins(board) for board in rows} == {
        board: {("table", "same board", board, LABEL)} for board in rows
    }
    # The profile has shown how much memory a batch needs.
    assert {board: row.batch_size for board, row in rows.items()} == dict.fromkeys(rows, BATCH_SIZE)
    kept = [row for board, row in rows.items() if board not in known["contradicted"]]
    # The first prediction rests on what was recalled: all that the round measured before it decided are its probes.
    assert [(row.recalled_samples, row.own_samples) for row in kept] == [(MODES, row.probes) for row in kept]
    assert sum(row.probes for row in kept) <= len(kept)
    assert all(row.predicted_step_s and row.predicted_power_w for row in rows.values())
    assert known["probes_saved"] > 0 or not kept
    assert [line for line in describe_knowledge(known) if line not in " ".join(first.said.split())] == []


def test_a_second_run_starts_from_the_first(runs):
    _, second = runs

    assert all(
        {("table", "same board", board, LABEL), ("run", "same board", board, LABEL)} == second.origins(board)
        for board in second.first_rows
    )
    for board, row in second.first_rows.items():
        assert board in second.summary["knowledge"]["contradicted"] or (row.recalled_samples or 0) > MODES


def test_the_label_is_the_same_from_the_board_to_the_page(profiled, runs):
    boards, run = profiled.hosts.boards, runs[1]
    tables = {name: host.run(f"cut -d, -f8 {TABLE} | sort -u").split() for name, host in boards.items()}
    records = {name: json.loads(host.run(f"cat {TABLE}.json")) for name, host in boards.items()}
    entries = entries_on(profiled.hosts)
    shown = [json.loads(profiled.hosts.server.run(f"{KNOWLEDGE} show {entry['id']} --json")) for entry in entries]
    page = (run.folder / REPORT).read_text(encoding="utf-8")

    assert tables == dict.fromkeys(boards, sorted(["label", LABEL]))
    assert {(record["label"], record["recorded"]) for record in records.values()} == {(LABEL, True)}
    assert shown == entries
    assert {entry["boards"][0] for entry in entries} == set(boards)
    assert {(entry["label"], entry["conditions"]["truth"]) for entry in entries} == {(LABEL, "recorded")}
    assert {row.board for row in read_rows(run.folder, EventRow) if row.kind == RECORDED} == set(boards)
    assert {one["truth"]["label"] for one in run.summary["labels"].values()} == {LABEL}
    assert f"boards: {len(boards)} {LABEL}" in run.said
    assert f'badge {LABEL}">' in page
    assert 'badge measured">' not in page
