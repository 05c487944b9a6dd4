"""Boards are free once their run is over, however it ended, and come back after a power cut without being ill."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import yaml

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.faulty_run import LAUNCHER, experiment_of, faulty_run
from fleet.fleet_view import findings_of
from fleet.hosts import Hosts, list_processes

from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import WAITING, ClientRow, EventRow

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
BACK_S = 150.0
MOST_RESTARTS = 6
RUNS = "journalctl -q -b -o cat -u fedge-supernode | grep -q 'SuperNode ID'"
"""Whether a board's SuperNode was accepted since its start."""


def run_one_round(hosts: Hosts, folder: Path) -> set[str]:
    """The boards that work for a new run at once."""
    file = folder / "one.yaml"
    file.write_text(yaml.safe_dump(experiment_of(hosts) | {"name": "one", "rounds": 1}), encoding="utf-8")
    done = hosts.fedge("run", str(file), "--folder", str(folder / "one"))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert [row for row in read_rows(folder / "one", EventRow) if row.kind == WAITING] == []
    return {row.board for row in read_rows(folder / "one", ClientRow) if row.error is None}


def test_the_boards_of_a_run_that_was_killed_work_for_the_next_at_once(provisioned, tmp_path):
    with faulty_run(provisioned):
        for command in (LAUNCHER, b"flwr-serverapp\0"):
            for process in list_processes(provisioned.server, command):
                os.kill(process, signal.SIGKILL)
        worked = run_one_round(provisioned, tmp_path)

    assert worked == set(provisioned.boards)


def test_the_boards_of_a_run_that_was_interrupted_work_for_the_next_at_once(provisioned, tmp_path):
    with faulty_run(provisioned):
        pass

    assert run_one_round(provisioned, tmp_path) == set(provisioned.boards)


def test_a_run_in_the_place_of_one_that_was_interrupted_begins_at_once(provisioned):
    for _ in range(2):
        with faulty_run(provisioned) as run:
            waited = [row.message for row in read_rows(run.folder, EventRow) if row.kind == WAITING]

    assert waited == []


def test_a_board_back_before_the_superlink_gave_it_up_is_no_problem(provisioned, tmp_path):
    name, board = next(iter(provisioned.boards.items()))
    board.kill()
    board.start()
    found, end_s = [findings_of(provisioned, tmp_path)[name]], time.monotonic() + BACK_S
    while board.ssh(RUNS).returncode != 0 and time.monotonic() < end_s:
        found.append(findings_of(provisioned, tmp_path)[name])

    assert [what for what in found if "SuperNode" in what or "supernode" in what] == []
    assert board.ssh(RUNS).returncode == 0
    assert int(board.run("systemctl show -p NRestarts --value fedge-supernode")) <= MOST_RESTARTS
    provisioned.wait_online([name])
