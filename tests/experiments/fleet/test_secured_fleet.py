"""The fleet's locks, tried on real programs: SuperLink with node authentication, nginx before it, SuperNodes, a run."""

import http.client
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")

from contracts.secured_fleet import BOARDS, Secured, boards, managed, new_node_key, running, secured_fleet, supernode

from experiments.fleet.key_folder import create_keys
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("fleet")]
YAML = """
name: secured
seed: 1
rounds: 1
backend: fleet
fleet: [{{device: orin-nano, name: board, count: 2}}]
workload: {{task: digits-cnn, local_epochs: 1}}
exploration: {{probes: 1, probe_s: 0.1}}
superlink: {{address: "{address}", root_certificates: "{ca}", connect_timeout_s: 60}}
reply_timeout_s: 60
"""
APP = """
[project]
name = "intruder"
version = "1.0.0"
[tool.flwr.app]
publisher = "intruder"
[tool.flwr.app.components]
serverapp = "intruder:server"
clientapp = "intruder:client"
"""
CODE = """
import time
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
client = ClientApp()
server = ServerApp()
@server.main()
def main(grid, context):
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_fleet(tmp_path_factory.mktemp("secured")) as fleet:
        yield fleet


def asked(secured: Secured, path: str, port: int | None = None, body: bytes = b"") -> tuple[int, str]:
    """What the boards' port answers to a request for exactly this path."""
    context = ssl.create_default_context(cafile=str(secured.keys / "ca.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", port or secured.ports.boards, context=context, timeout=10)
    try:
        connection.request("POST", path, body=body, headers={"content-type": "application/x-protobuf"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def ended(secured: Secured, home: Path, *options: str) -> tuple[int | None, str]:
    """The exit code and the log of a SuperNode that is expected to end by itself."""
    with running(supernode(secured, *options), home, lambda _log: False) as (process, log):
        return process.poll(), log.read_text(encoding="utf-8")


def test_two_boards_with_registered_keys_play_a_run_that_is_started_on_loopback(secured, tmp_path):
    experiment = tmp_path / "exp.yaml"
    text = YAML.format(address=secured.control.address, ca=secured.control.root_certificates)
    experiment.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "experiments.cli.main", "run", str(experiment), "--folder", str(tmp_path / "run")]
    before = len(secured.runs())

    with boards(secured):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=400)

    assert done.returncode == 0, done.stderr + done.stdout
    rows = read_rows(tmp_path / "run", ClientRow)
    assert {row.board for row in rows if row.error is None} == set(BOARDS)
    assert len(secured.runs()) == before + 1


def test_a_board_whose_key_is_not_registered_is_refused(secured, tmp_path):
    key = new_node_key(tmp_path / "stranger.key")
    options = ["--root-certificates", str(secured.keys / "ca.crt"), "--auth-supernode-private-key", str(key)]

    code, log = ended(secured, tmp_path / "node", *options)

    assert code not in {0, None}
    assert "Failed to activate SuperNode" in log


def test_a_board_without_a_key_is_refused(secured, tmp_path):
    code, log = ended(secured, tmp_path / "node", "--root-certificates", str(secured.keys / "ca.crt"))

    assert code not in {0, None}
    assert "authentication is enabled" in log


def test_a_board_that_speaks_plain_text_is_refused(secured, tmp_path):
    code, log = ended(secured, tmp_path / "node", "--insecure")

    assert code not in {0, None}
    assert "400 Bad Request" in log


def test_plain_text_is_refused_in_words(secured):
    connection = http.client.HTTPConnection("127.0.0.1", secured.ports.boards, timeout=10)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()

    assert answer.status == 400
    assert text == "Refused: plain text. Use https with the fleet's CA.\n"


def test_a_board_that_trusts_another_ca_does_not_speak_to_the_server(secured, tmp_path):
    create_keys(tmp_path / "other", ["127.0.0.1"], datetime.now(UTC), days=2)
    key = new_node_key(tmp_path / "node.key")
    options = ["--root-certificates", str(tmp_path / "other" / "ca.crt"), "--auth-supernode-private-key", str(key)]

    code, log = ended(secured, tmp_path / "node", *options)

    assert code not in {0, None}
    assert "certificate verify failed" in log


@contextmanager
def a_run(secured: Secured, app: Path) -> Iterator[str]:
    """The id of a run that was started where one may, and goes on until the end of the block."""
    (app / "pyproject.toml").write_text(APP, encoding="utf-8")
    (app / "intruder.py").write_text(CODE, encoding="utf-8")
    started = secured.flwr(secured.control, "run", str(app), "--format", "json")
    found = json.loads(started.stdout[started.stdout.index("{") :])
    assert found["success"], started.stdout
    try:
        yield str(found["run-id"])
    finally:
        stopped = secured.flwr(secured.control, "stop", str(found["run-id"]))
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr


def test_by_the_boards_port_nobody_starts_stops_or_lists_runs(secured, tmp_path):
    boards_port = secured.reached(secured.ports.boards)
    key = new_node_key(tmp_path / "stranger.key")
    with a_run(secured, tmp_path) as run_id:
        before = secured.runs()
        tries = [
            secured.flwr(boards_port, *command)
            for command in (
                ("run", str(tmp_path)),
                ("list",),
                ("stop", run_id),
                ("log", run_id, "--show"),
                ("supernode", "list"),
                ("supernode", "register", f"{key}.pub"),
            )
        ]
        after = secured.runs()

    for done in tries:
        assert done.returncode != 0, done.args
        assert "403 Forbidden" in " ".join((done.stdout + done.stderr).split()), (done.args, done.stdout, done.stderr)
    assert [run["run-id"] for run in after] == [run["run-id"] for run in before]
    assert after[0]["run-id"] == run_id
    assert after[0]["status"] in {"starting", "running"}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs",
        "/v1/runtime/pull-messages",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "//v1/control/list-runs",
        "/v1/fleet/..//../v1/control/list-runs",
        "/v1/control/list-runs?/v1/fleet/",
        "/v1/control/list-runs;/v1/fleet/x",
        "/V1/control/list-runs",
        "/health/../v1/control/list-runs",
        "/docs",
        "/openapi.json",
        "/",
    ],
)
def test_no_spelling_of_another_path_gets_through(secured, path):
    status, text = asked(secured, path)

    assert status == 403
    assert text == "Refused: this port is for boards. Start, stop and list runs on the server itself.\n"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs/../../fleet/pull-messages",
        "/v1/control/list-runs%3f/../../fleet/pull-messages",
        "/v1/control/list-runs%23/../../fleet/pull-messages",
    ],
)
def test_a_path_that_is_resolved_to_a_fleet_path_is_passed_on_resolved(secured, path):
    assert asked(secured, path) == asked(secured, "/v1/fleet/pull-messages")


def test_a_message_as_large_as_a_model_reaches_the_superlink(secured):
    field = b"\x0a\x80\x80\x80\x08" + bytes(16 << 20)  # protobuf: field 1, 16 MiB

    assert asked(secured, "/v1/fleet/push-object", body=field)[0] not in {403, 413, 502, 504}


def test_the_superlink_itself_answers_on_loopback_only(secured):
    with socket.socket(socket.AF_INET) as probe:
        assert probe.connect_ex(("127.0.0.2", secured.ports.superlink)) != 0


def test_a_management_network_may_list_runs_and_nothing_beyond_the_commands(secured, tmp_path):
    with managed(secured, tmp_path, "127.0.0.0/8") as ports:
        done = secured.flwr(secured.reached(ports.management), "list", "--format", "json")
        fleet = asked(secured, "/v1/fleet/pull-messages", ports.management)
        by_boards_port = asked(secured, "/v1/control/list-runs", ports.boards)

    assert '"success": true' in done.stdout
    assert fleet[0] == by_boards_port[0] == 403


def test_who_is_outside_the_management_network_is_refused_in_words(secured, tmp_path):
    with managed(secured, tmp_path, "10.20.0.0/24") as ports:
        answer = asked(secured, "/v1/control/list-runs", ports.management)

    assert answer == (403, "Refused: this port is for the commands of Flower from 10.20.0.0/24.\n")
