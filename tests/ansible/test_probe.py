"""The probe of a host: on a made folder tree, on a board's real sockets, with others' eyes, on a real SuperLink."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from contracts.desk import Desk, desk
from contracts.programs import load_program

from fedge import powerd, worker
from server.dashboard.prometheus_metrics import render_exposition
from server.dashboard.views import BoardView, FleetView

PROBE = Path(__file__).resolve().parents[2] / "ansible" / "probe.py"
UNIT = """
[Service]
User=fedge-node
ExecStart=/usr/lib/fedge-node/venv/bin/flower-supernode \\
    --superlink fleet.lan:9443 \\
    --root-certificates /etc/fedge/ca.crt
"""
SUPERLINK_UNIT = """
[Service]
User=fedge-link
ExecStart={environment}/bin/flower-superlink \\
    --host 127.0.0.1 --port 8000
"""
KEY = "ecdsa-sha2-nistp384 AAAAE2VjZHNh nano-1"
NOW_S = 1795305000.0
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may take on another user's eyes")


@pytest.fixture(scope="module")
def probe() -> ModuleType:
    return load_program(PROBE)


def put(root: Path, path: str, text: str) -> Path:
    made = root / path
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(text, encoding="utf-8")
    return made


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A board's files, as the playbooks put them there."""
    root = tmp_path / "root"
    put(
        root,
        "etc/fedge/node.yaml",
        f"board: nano-1\npower_socket: {tmp_path}/p.sock\nworker_socket: {tmp_path}/w.sock\n",
    )
    put(root, "etc/fedge/keys/node.pub", f"{KEY}\n")
    put(root, "etc/systemd/system/fedge-supernode.service", UNIT)
    put(root, "proc/device-tree/model", "NVIDIA Jetson Nano\0")
    source = "usr/lib/fedge-node/client/fedge"
    put(root, f"{source}/__init__.py", '"""Fedge."""\n\n__version__ = "0.1.0"\n')
    put(root, f"{source}/powerd/__init__.py", '"""It."""\n\nPROTOCOL = 1\n')
    put(root, f"{source}/worker/__init__.py", '"""It."""\n\nPROTOCOL = 1\n')
    put(root, "usr/lib/fedge-node/venv/lib/python3.11/site-packages/flwr-1.41.0.dist-info/METADATA", "")
    put(root, "var/lib/fedge/node/claim.json", json.dumps({"run": "exp", "until_s": NOW_S + 60}))
    return root


def systemd(argv: Sequence[str], _limit_s: float) -> str:
    """Units that are all active, with a log that has everything that must not be told."""
    if argv[0] == "systemctl":
        return "LoadState=loaded\nActiveState=active\nSubState=running\nNRestarts=2\n"
    if argv[0] == "journalctl":
        return f"\x1b[92mINFO \x1b[0m: hello\n\ntoken=s3cret\n-----BEGIN PRIVATE KEY-----\n{'long ' * 200}\n"
    raise OSError(f"{argv[0]} is not here")


def board(probe: ModuleType, root: Path, run: Callable[..., str] = systemd) -> dict[str, Any]:
    found: dict[str, Any] = probe.board(root, run, None, lambda: NOW_S)
    json.dumps(found)
    return found


def test_a_board_tells_what_lies_in_its_files(probe, tree):
    found = board(probe, tree)

    assert (found["kind"], found["board"], found["fedge"]) == ("board", "nano-1", "0.1.0")
    assert found["model"] == "NVIDIA Jetson Nano"
    assert found["client"] == {"powerd_protocol": 1, "worker_protocol": 1, "flwr": "1.41.0"}
    assert found["superlink"] == "fleet.lan:9443"
    assert found["public_key"] == KEY
    assert found["claim"] == {"run": "exp", "left_s": 60.0}
    assert found["disk_free_mb"].keys() == {"/", "/var/lib/fedge"}
    assert found["services"]["fedge-worker"]["state"] == "active"
    assert found["services"]["fedge-worker"]["restarts"] == 2


def test_no_secret_and_no_long_line_is_told(probe, tree):
    log = board(probe, tree)["services"]["fedge-supernode"]["log"]

    assert log[:3] == ["INFO : hello", "token=...", "(a private key was here)"]
    assert max(map(len, log)) == 300


def test_a_private_key_in_place_of_the_public_one_stays_on_the_board(probe, tree):
    put(tree, "etc/fedge/keys/node.pub", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n")

    found = board(probe, tree)

    assert found["public_key"] is None
    assert "PRIVATE" not in json.dumps(found["public_key"])


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_in_place_of_the_claim_is_neither_followed_nor_waited_for(probe, tree, kind):
    claim = tree / "var/lib/fedge/node/claim.json"
    claim.unlink()
    if kind == "link":
        claim.symlink_to(put(tree, "secret", json.dumps({"run": "a secret", "until_s": NOW_S + 60})))
    else:
        os.mkfifo(claim)

    assert "error" in board(probe, tree)["claim"]


def test_a_claim_that_has_ended_is_none(probe, tree):
    put(tree, "var/lib/fedge/node/claim.json", json.dumps({"run": "exp", "until_s": NOW_S - 1}))

    assert board(probe, tree)["claim"] is None


def _silent(_argv: Sequence[str], _limit_s: float) -> str:
    raise TimeoutError("no answer within 10 s")


def test_on_an_empty_disk_every_part_fails_alone(probe, tmp_path):
    found = board(probe, tmp_path, _silent)

    assert found["kind"] == "board"
    assert found["client"]["error"] == "absent"
    assert found["services"]["fedge-powerd"]["error"] == "timeout"
    assert found["powerd"]["error"] == found["worker"]["error"] == "absent"
    assert (found["board"], found["claim"], found["superlink"], found["public_key"]) == (None, None, None, None)


@pytest.mark.parametrize("path", ["etc/fedge/node.yaml", "usr/lib/fedge-node/client/fedge/powerd/__init__.py"])
def test_a_file_of_rubbish_costs_its_part_alone(probe, tree, path):
    (tree / path).write_bytes(b"\xff\x00rubbish\n" * 100)

    found = board(probe, tree)

    assert found["model"] == "NVIDIA Jetson Nano"
    assert (found["board"] is None) == (path == "etc/fedge/node.yaml")


@pytest.mark.parametrize(
    ("said", "state"),
    [("LoadState=not-found\nActiveState=inactive\n", "absent"), ("LoadState=loaded\nActiveState=failed\n", "failed")],
)
def test_a_units_state_is_in_our_words(probe, said, state):
    assert probe.service("fedge-worker", lambda _argv, _limit_s: said)["state"] == state


def test_a_command_that_fails_or_does_not_end_is_told_as_such(probe):
    with pytest.raises(OSError, match="ended with 3"):
        probe.run([sys.executable, "-c", "import sys; sys.exit(3)"], 20)
    with pytest.raises(TimeoutError):
        probe.run([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)


# Sockets


@pytest.fixture(scope="module")
def at_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk("orin-nano-jp6", tmp_path_factory.mktemp("desk")) as found:
        yield found


def test_the_power_daemon_and_the_worker_answer_as_they_do_to_the_client(probe, at_desk):
    power = probe.powerd(at_desk.settings.power_socket, powerd.PROTOCOL)
    trainer = probe.worker(at_desk.settings.worker_socket, worker.PROTOCOL)

    assert power["protocol"] == powerd.PROTOCOL
    assert power["mode"]["cores"] > 0
    assert power["preset"]
    assert power["holder"] is None
    assert trainer["protocol"] == worker.PROTOCOL
    assert trainer["state"] == "idle"
    assert trainer["python"]


def test_one_that_speaks_another_protocol_is_asked_again_in_its_own(probe, at_desk):
    assert probe.powerd(at_desk.settings.power_socket, powerd.PROTOCOL + 1)["protocol"] == powerd.PROTOCOL
    assert probe.worker(at_desk.settings.worker_socket, worker.PROTOCOL + 1)["protocol"] == worker.PROTOCOL


def test_who_holds_the_board_is_told(probe, at_desk):
    from contextlib import closing

    from fedge.powerd.powerd_client import PowerdClient

    with closing(PowerdClient(at_desk.settings.power_socket)) as client:
        token = client.hold("bench", 60)["token"]
        found = probe.powerd(at_desk.settings.power_socket, powerd.PROTOCOL)
        client.hold("bench", 0, token)

    assert found["holder"] == "bench"
    assert 0 < found["holder_left_s"] <= 60


@root_only
def test_a_socket_of_the_wrong_group_is_denied_to_eyes_that_are_not_roots(probe, at_desk, tmp_path):
    path = at_desk.settings.power_socket
    for folder in Path(path).parents:
        if folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)

    root = probe.try_read(lambda: probe.as_user(getpass.getuser(), lambda: probe.powerd(path, 1), 20))
    other = probe.try_read(lambda: probe.as_user("nobody", lambda: probe.powerd(path, 1), 20))

    assert root["protocol"] == powerd.PROTOCOL
    assert other["error"] == "denied"
    assert "no right to" in other["text"]
    assert os.geteuid() == 0


def test_eyes_of_nobody_known_are_an_error_of_that_part(probe):
    found = probe.try_read(lambda: probe.as_user("no-such-user", lambda: 1, 5))

    assert found["error"] == "absent"


def test_one_that_never_answers_is_given_up(probe):
    began_s = time.monotonic()

    found = probe.try_read(lambda: probe.as_user(None, lambda: time.sleep(60), 0.3))

    assert found["error"] == "timeout"
    assert time.monotonic() - began_s < 20


def test_a_way_that_is_open_and_one_that_is_not(probe):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert probe.try_read(lambda: probe.reach(address)) == {"ok": True}
    assert probe.try_read(lambda: probe.reach(address))["error"] == "refused"
    assert probe.try_read(lambda: probe.reach("fleet.invalid:9443"))["error"] == "unresolved"


# The server


def test_a_server_tells_what_lies_in_its_files_when_flower_does_not_answer(probe, tmp_path):
    put(tmp_path, "etc/systemd/system/fedge-superlink.service", SUPERLINK_UNIT.format(environment=tmp_path / "env"))
    for package in ("flwr-1.41.0", "fedge-0.1.0"):
        put(tmp_path, f"env/lib/python3.11/site-packages/{package}.dist-info/METADATA", "")

    found = probe.server(tmp_path, systemd, lambda: NOW_S)

    assert (found["kind"], found["fedge"], found["flwr"]) == ("server", "0.1.0", "1.41.0")
    assert found["services"]["nginx"]["state"] == "active"
    assert found["nodes"]["error"] == "failed"
    assert found["certificates"]["server.crt"]["error"] == "failed"


def test_the_senders_unit_and_its_certificate_are_asked_where_it_is_installed(probe, tree):
    def asked(argv: Sequence[str], limit_s: float) -> str:
        return "notAfter=Nov 21 23:42:01 2027 GMT\n" if argv[0] == "openssl" else systemd(argv, limit_s)

    without = board(probe, tree, asked)
    put(tree, "etc/systemd/system/fedge-telemetry.service", UNIT)
    found = board(probe, tree, asked)

    assert "fedge-telemetry" not in without["services"]
    assert without["certificate"] is None
    assert found["services"]["fedge-telemetry"]["state"] == "active"
    assert found["certificate"] == 1826840521


class _Page(BaseHTTPRequestHandler):
    """The board service's page of metrics, as it writes it."""

    def do_GET(self) -> None:
        boards = (
            BoardView("nano-1", "jetson nano", seen_at_s=NOW_S - 3.25),
            BoardView("orin_2.lab", "orin", seen_at_s=NOW_S - 4e5),
            BoardView('evil"} 1', "orin", seen_at_s=NOW_S),
            BoardView("silent", "orin"),
        )
        page = render_exposition(FleetView(boards=boards), NOW_S)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_args: object) -> None:
        """Nothing is written."""


def test_a_server_tells_how_long_ago_boards_told_of_themselves(probe, tmp_path):
    page = HTTPServer(("127.0.0.1", 0), _Page)
    put(tmp_path, "etc/fedge/board.yaml", f"host: 127.0.0.1\nport: {page.server_port}\n")
    put(tmp_path, "etc/systemd/system/fedge-board.service", UNIT)
    thread = threading.Thread(target=page.serve_forever, daemon=True)
    thread.start()
    try:
        found = probe.server(tmp_path, systemd, lambda: NOW_S)
    finally:
        page.shutdown()
        page.server_close()

    assert found["services"]["fedge-board"]["state"] == "active"
    assert found["ages_s"] == {"nano-1": 3.2, "orin_2.lab": 400000.0}


def test_a_board_service_that_is_down_costs_its_part_alone(probe, tmp_path):
    put(tmp_path, "etc/fedge/board.yaml", "port: 9\n")
    put(tmp_path, "etc/systemd/system/fedge-board.service", UNIT)

    assert probe.server(tmp_path, systemd, lambda: NOW_S)["ages_s"]["error"] == "refused"


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_a_real_superlink_names_its_nodes_with_their_keys(probe, tmp_path):
    pytest.importorskip("flwr", reason="the SuperLink is Flower's")
    from contracts.secured_fleet import new_node_key, secured_fleet

    shutil.copy(PROBE.parent / "roles/superlink/files/nodes.py", put(tmp_path, probe.NODES, ""))
    with secured_fleet(tmp_path / "fleet") as fleet:
        key = new_node_key(tmp_path / "node.key")
        fleet.flwr(fleet.control, "supernode", "register", f"{key}.pub", "--name", "nano-1")
        home = fleet.folder / "flwr-cli"
        config = (home / "config.toml").read_text(encoding="utf-8")
        (home / "config.toml").write_text(config.replace("[superlink.fedge]", "[superlink.fleet]"), encoding="utf-8")

        started = (
            f'#!/bin/sh\nexport FLWR_HOME={home} PATH={sys.prefix}/bin:$PATH\nFLWR_TELEMETRY_ENABLED=0 exec "$@"\n'
        )
        put(tmp_path, probe.FLOWER, started).chmod(0o755)
        nodes, runs = probe.nodes(tmp_path, probe.run), probe.list_unfinished_runs(tmp_path, probe.run)

    assert [(node["name"], node["status"]) for node in nodes] == [("nano-1", "registered")]
    assert nodes[0]["public_key"].startswith("ecdsa-sha2-nistp384 ")
    assert nodes[0]["node_id"].isdigit()
    assert runs == []


# As a program


@pytest.mark.parametrize("version", ["3.8", "3.11"])
def test_it_runs_as_a_program_on_old_and_new_pythons(tree, version):
    python = _python(version)
    command = [python, "-I", "-B", str(PROBE), "board", "--root", str(tree), "--user", "", "--asked-at-s", "5.5"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["board"] == "nano-1"
    assert found["asked_at_s"] == 5.5
    assert found["at_s"] <= found["done_at_s"]
    assert found["python"].startswith(version)


def _python(version: str) -> str:
    own = ".".join(map(str, sys.version_info[:2]))
    known = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    found = sys.executable if own == version else str(known[0]) if known else shutil.which(f"python{version}")
    if found is None:
        pytest.skip(f"no Python {version} here")
    return found
