"""From bare hosts to a run, by the documented commands: provision, status, run, logs, down, up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.fleet_view import view

from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
ROUNDS = 5
SHOWN_S = 30.0
"""Within so long the server's page shows a run."""
DEVICES = {"nano-1": "nano", "xavier-nx-1": "xavier-nx", "agx-orin-1": "agx-orin-64gb", "orin-nano-1": "orin-nano"}
EXPERIMENT = {
    "name": "five-rounds",
    "seed": 1,
    "rounds": ROUNDS,
    "workload": {"task": "synthetic-cnn", "local_epochs": 1},
    "exploration": {"probes": 1, "probe_s": 0.1},
}
UNITS = ("fedge-powerd", "fedge-worker", "fedge-supernode", "fedge-ready", "fedge-superexec", "fedge-telemetry")


@contextmanager
def timed(what: str) -> Iterator[None]:
    begun_s = time.monotonic()
    yield
    print(f"\n{what}: {time.monotonic() - begun_s:.0f} s")


def test_bare_hosts_are_provisioned_by_one_command_and_every_board_is_online(provisioned):
    assert provisioned.online() == set(provisioned.boards)


def test_a_second_provisioning_changes_nothing(provisioned):
    with timed("provisioned again"):
        done = provisioned.fedge("provision")

    assert done.returncode == 0, done.stdout[-4000:]
    assert "nothing had to change" in done.stdout


def test_status_finds_every_board_well(provisioned, tmp_path):
    told = tmp_path / "status.json"
    with timed("status"):
        done = provisioned.fedge("status", "--out", str(told))

    boards = {board["name"]: board for board in json.loads(told.read_text())["boards"]}
    assert set(boards) == set(provisioned.boards), done.stdout
    assert {name: board["findings"] for name, board in boards.items()} == {board: [] for board in boards}, done.stdout


def test_a_run_goes_through_tls_and_every_board_answers_in_every_round(provisioned, tmp_path):
    file, folder = tmp_path / "five.yaml", tmp_path / "five"
    entries = [{"device": DEVICES[name], "name": name.removesuffix("-1")} for name in provisioned.boards]
    file.write_text(yaml.safe_dump(EXPERIMENT | {"fleet": entries}), encoding="utf-8")
    with timed(f"{ROUNDS} rounds"):
        done = provisioned.fedge("run", str(file), "--folder", str(folder))

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    rows = read_rows(folder, ClientRow)
    assert {(row.round, row.board) for row in rows if row.error is None} == {
        (number, board) for number in range(1, ROUNDS + 1) for board in provisioned.boards
    }
    assert (folder / "report.html").stat().st_size > 100_000
    shown, end_s = {}, time.monotonic() + SHOWN_S
    while (shown.get("state"), shown.get("name")) != ("finished", EXPERIMENT["name"]):
        assert time.monotonic() < end_s, shown
        shown = view(provisioned).get("run", {})
        time.sleep(0.5)


def test_the_logs_of_every_board_are_collected(provisioned, tmp_path):
    with timed("logs"):
        done = provisioned.fedge("logs", "--folder", str(tmp_path))

    assert done.returncode == 0, done.stdout[-4000:]
    sizes = {
        (board, unit): (tmp_path / board / f"{unit}.log").stat().st_size
        for board in provisioned.boards
        for unit in UNITS
    }
    assert min(sizes.values()) > 100, sizes


def test_what_is_down_comes_up_again(provisioned):
    with timed("down and up"):
        down = provisioned.fedge("down")
        states = {
            name: host.ssh(f"systemctl is-active {' '.join(UNITS)}").stdout.split()
            for name, host in provisioned.boards.items()
        }
        up = provisioned.fedge("up")

    assert (down.returncode, up.returncode) == (0, 0), down.stdout[-3000:] + up.stdout[-3000:]
    assert states == {name: ["inactive"] * len(UNITS) for name in provisioned.boards}
    provisioned.wait_online(provisioned.boards)
