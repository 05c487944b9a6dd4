"""The boards on a Ray cluster: what is told of them, by which actors; a lost cluster costs only the mirror."""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from contracts.exporter import client_row, round_row
from hypothesis import given
from hypothesis import strategies as st

from experiments.backends import ray_dashboard
from experiments.backends.run_processes import RUN_MARK
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment, FleetEntry
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import write_progress
from fedge.telemetry.store import RunTables
from server.exporters.ray_boards import ActorLayout, BoardFigures, FleetFigures, _group_by_task
from server.exporters.ray_mirror import ActorProcess, MirrorState, RayMirror

DEVICES = {"nano-1": "nano", "nano-2": "nano", "xavier-nx-1": "xavier-nx"}
EXPERIMENT = Experiment(
    name="demo", fleet=(FleetEntry(device="nano", count=2), FleetEntry(device="xavier-nx", count=1))
)
MODE = "2c/710.4/460.8/1600 MHz"
LIMIT_S = 40.0


def _played(number: int) -> list[Any]:
    clients = [client_row(number, board, device, place) for place, (board, device) in enumerate(DEVICES.items())]
    return [*clients, round_row(number, len(clients))]


def test_a_round_is_shown_with_the_energy_of_all_rounds_so_far():
    picture = MirrorState(DEVICES)
    picture.apply_rows([*_played(1), *_played(2)], at_s=10.0)
    shown, fleet = picture.take_changes()
    first = next(each for each in shown if each.board == "nano-1")
    assert first == BoardFigures("nano-1", "nano", 180.0, 12.0, 10.0, 1.0, 42.0, MODE)
    assert fleet == FleetFigures(2, 20.0, 200.0, 0.75)
    assert picture.take_changes() == ([], None)


def test_what_a_board_says_between_replies_is_newer_than_its_row_or_not_shown():
    picture = MirrorState(DEVICES)
    picture.apply_rows(_played(1), at_s=10.0)
    picture.take_changes()
    said = BoardProgress("nano-1", 11.0, "training", "nano", "demo", 2, 10, 4, "1c/1/1/1 MHz", 6.5, 51.0)
    picture.apply_progress(
        {"nano-1": said, "nano-2": dataclasses.replace(said, board="nano-2", at_s=9.0), "stranger": said}
    )
    (shown,), fleet = picture.take_changes()
    assert shown == BoardFigures("nano-1", "nano", 90.0, 6.5, 10.0, 0.4, 51.0, "1c/1/1/1 MHz", live=True)
    assert fleet is None
    picture.apply_progress({"nano-1": said})
    assert picture.take_changes() == ([], None)


def test_a_board_that_failed_keeps_its_mode_and_has_no_power():
    picture = MirrorState(DEVICES)
    row = client_row(2, "nano-1", "nano", 0, failed=True)
    picture.apply_rows([client_row(1, "nano-1", "nano", 0), dataclasses.replace(row, cores=None, steps=0)], at_s=1.0)
    (shown,), _ = picture.take_changes()
    assert (shown.mode, shown.power_w, shown.progress, shown.energy_j) == (MODE, None, 0.0, 180.0)


@given(st.lists(st.tuples(st.sampled_from(sorted(DEVICES)), st.floats(0, 1e6)), max_size=20))
def test_no_joule_is_lost_however_the_rows_come(spent):
    picture, last = MirrorState(DEVICES), dict.fromkeys(DEVICES, 0.0)
    for i, (board, energy_j) in enumerate(spent):
        row = client_row(1, board, DEVICES[board], 0)
        picture.apply_rows([dataclasses.replace(row, energy_j=energy_j)], at_s=0.0)
        if i % 3 == 0:
            last |= {shown.board: shown.energy_j for shown in picture.take_changes()[0]}
    last |= {shown.board: shown.energy_j for shown in picture.take_changes()[0]}
    assert last == {board: pytest.approx(sum(j for name, j in spent if name == board)) for board in DEVICES}


def test_a_board_has_an_actor_of_its_name_and_a_large_fleet_one_per_kind():
    titles = {"nano": "Jetson Nano 4GB"}
    own = ActorLayout("run", DEVICES, titles, own_actors=3)
    assert [own.actor_name(board) for board in DEVICES] == [
        "nano-1 (Jetson Nano 4GB)",
        "nano-2 (Jetson Nano 4GB)",
        "xavier-nx-1 (xavier-nx)",
    ]
    kinds = ActorLayout("run", DEVICES, titles, own_actors=2)
    assert {kinds.actor_name(board) for board in DEVICES} == {"Jetson Nano 4GB (2 boards)", "xavier-nx (1 board)"}


def test_boards_of_one_actor_are_tasks_of_their_names_and_their_progress_is_one_task():
    cast = ActorLayout("run", DEVICES, {}, own_actors=0)
    shown = [
        BoardFigures("nano-1", "nano"),
        BoardFigures("nano-2", "nano", live=True),
        BoardFigures("nano-1", "nano", live=True),
    ]
    assert _group_by_task(cast, shown) == [
        ("nano (2 boards)", "nano-1", shown[:1]),
        ("nano (2 boards)", "progress", shown[1:]),
    ]


@pytest.mark.parametrize("options", [{"address": ""}, {"own_actors": -1}])
def test_an_option_that_cannot_be_is_named(options):
    with pytest.raises(BadInput, match=rf"options\.{next(iter(options))}"):
        RayMirror.check_options(**options)


def test_without_a_cluster_the_mirror_ends_and_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    mirror = RayMirror(EXPERIMENT, tmp_path)
    mirror.append(_played(1))
    mirror.close()
    with pytest.raises(RunFailed, match="--ray-dashboard"):
        mirror.append(_played(2))


def test_when_the_process_beside_the_run_ends_the_mirror_says_where_the_reason_is(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    mirror, number = RayMirror(EXPERIMENT, tmp_path, address="10.0.0.5:6379"), itertools.count(1)

    def ended() -> bool:
        try:
            mirror.append(_played(next(number)))
        except RunFailed as error:
            return str(tmp_path / "logs" / "ray-mirror.log") in str(error)
        return False

    _until(ended, True)
    mirror.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """A running Ray: its address, its dashboard, its token, and where its metrics are listed."""

    address: str
    dashboard: str
    token: str
    discovery: Path

    def actors(self) -> dict[str, str]:
        """State by name."""
        request = Request(f"{self.dashboard}/api/v0/actors", headers={"Authorization": f"Bearer {self.token}"})
        with urlopen(request, timeout=LIMIT_S) as told:
            found = json.load(told)["data"]["result"]["result"]
        return {actor["name"]: actor["state"] for actor in found}

    def values(self, metric: str, run: str) -> dict[str, float]:
        """Value by board."""
        found = {}
        for target in json.loads(self.discovery.read_text())[0]["targets"]:
            with urlopen(f"http://{target}/metrics", timeout=LIMIT_S) as told:
                for line in told.read().decode().splitlines():
                    if line.startswith(f"{metric}{{") and f'run="{run}"' in line:
                        board = re.search(r'board="([^"]*)"', line)
                        found[board.group(1) if board else ""] = float(line.rsplit(" ", 1)[1])
        return found


@contextlib.contextmanager
def _taken(port: int) -> Iterator[None]:
    """Have somebody listen on ``port``, if nobody does."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    head = tmp_path_factory.mktemp("head")
    with _taken(8265), ray_dashboard.open_dashboard(4, head, None) as dashboard:
        assert not dashboard.address.endswith(":8265")
        discovery = dashboard.token_file.parent / "r" / "prom_metrics_service_discovery.json"
        token = dashboard.token_file.read_text()
        yield Cluster(os.environ["RAY_ADDRESS"], dashboard.address, token, discovery)


def _until(what: Callable[[], Any], want: Any) -> None:
    ends_s, seen = time.monotonic() + LIMIT_S, None
    while time.monotonic() < ends_s:
        try:
            seen = what()
        except OSError as error:
            seen = error
        if seen == want:
            return
        time.sleep(0.2)
    assert seen == want


def test_a_killed_process_leaves_no_open_pipe(tmp_path, monkeypatch):
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: start(["sleep", "60"], **options))
    child = ActorProcess("here", ActorLayout("run", {}, {}, 0), tmp_path / "log")
    child._process.stdin.write("figures that nobody reads")
    child.kill()

    assert child._process.stdin.closed


@pytest.mark.slow
@pytest.mark.monitor
def test_boards_are_actors_of_their_names_with_their_figures_and_are_gone_afterwards(cluster, tmp_path):
    tables, folder = RunTables(tmp_path), tmp_path
    tables.append(_played(1))
    tables.append(_played(2))
    tables.close()
    mirror = RayMirror(EXPERIMENT, folder, address=cluster.address)
    mirror.append(_played(2))  # round 1 was played before this process began
    write_progress(
        folder / "live",
        BoardProgress("nano-1", time.time() + 60, "training", "nano", "demo", 3, 10, 4, MODE, 6.5, 51.0),
    )
    names = {"nano-1 (Jetson Nano 4GB)", "nano-2 (Jetson Nano 4GB)", "xavier-nx-1 (Jetson Xavier NX 8GB)"}
    _until(cluster.actors, dict.fromkeys(names, "ALIVE"))
    for metric, want in {
        "power_watts": {"nano-1": 6.5, "nano-2": 12.0, "xavier-nx-1": 12.0},
        "energy_joules_total": {"nano-1": 180.0, "nano-2": 182.0, "xavier-nx-1": 184.0},
        "round_seconds": {"nano-1": 10.0, "nano-2": 11.0, "xavier-nx-1": 12.0},
        "progress_ratio": {"nano-1": 0.4, "nano-2": 1.0, "xavier-nx-1": 1.0},
        "mode_info": dict.fromkeys(DEVICES, 1.0),
        "accuracy_ratio": {"": 0.75},
        "fleet_energy_joules_total": {"": 200.0},
    }.items():
        # One scrape after the other: some come between two reports of a process.
        seen: dict[str, float] = {}
        _until(lambda m=metric, s=seen: s.update(cluster.values(f"ray_fedge_{m}", folder.name)) or s, want)
    mirror.close()
    _until(cluster.actors, dict.fromkeys(names, "DEAD"))


@pytest.mark.slow
@pytest.mark.monitor
def test_a_cluster_that_is_lost_ends_the_mirror_alone(cluster, tmp_path):
    mirror = RayMirror(EXPERIMENT, tmp_path, address=cluster.address, own_actors=0)
    mirror.append(_played(1))
    kinds = {"Jetson Nano 4GB (2 boards)": "ALIVE", "Jetson Xavier NX 8GB (1 board)": "ALIVE"}
    _until(lambda: {name: state for name, state in cluster.actors().items() if state == "ALIVE"}, kinds)
    _kill_all_of(os.environ["RAY_AUTH_TOKEN"])
    started_s = time.monotonic()
    mirror.append(_played(2))
    assert time.monotonic() - started_s < 1.0
    mirror.close()
    assert time.monotonic() - started_s < LIMIT_S


def _kill_all_of(token: str) -> None:
    """Kill what the head started (this process and the mirror's do not carry the head's mark)."""
    wanted, own = f"RAY_AUTH_TOKEN={token}".encode(), f"{RUN_MARK}=".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in environ and any(entry.startswith(own) for entry in environ):
            os.kill(int(folder.name), signal.SIGKILL)
