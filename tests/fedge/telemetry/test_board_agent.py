"""A board's telemetry service, as a process of its own, tells everything once, whatever befalls it and its server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from contracts import jetsons
from contracts.live_server import ROOT, LiveServer, Proxy, heard, live_server, make_keys
from contracts.processes import wait_for

from fedge.clock import SimulatedClock
from fedge.devices.node_settings import NodeSettings, TelemetrySettings
from fedge.protocols import Clock
from fedge.telemetry.board_agent import AgentEnvironment, TelemetryAgent
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import write_progress
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import SampleRow
from fedge.telemetry.uplink import HttpsUplink
from fedge.types import SensorSample

BOARD = "nano-1"
FASTER = 5
HURRIED = f"""
import sys
from fedge.telemetry import board_agent, outbox, sensor_stretches, uplink
for module, names in (
    (board_agent, ["TICK_S"]),
    (outbox, ["MAX_UNSAVED_S"]),
    (sensor_stretches, ["STRETCH_S"]),
    (uplink, ["FIRST_PAUSE_S", "LONGEST_PAUSE_S", "BACKLOG_PERIOD_S", "IDLE_PERIOD_S"]),
):
    for name in names:
        setattr(module, name, getattr(module, name) / {FASTER})
sys.exit(board_agent.main())
"""
"""The service with all its periods divided, so that tests wait for seconds less."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with live_server(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys") / "keys", BOARD, "other")


@pytest.fixture
def proxy(keys: Path, server: LiveServer) -> Iterator[Proxy]:
    before = Proxy(keys, server.socket)
    before.open()
    yield before
    before.cut()


class Agent:
    """The service on a recorded board."""

    def __init__(self, tmp_path: Path, keys: Path, port: int, host: str = "localhost", shown: str = BOARD) -> None:
        self.state = tmp_path / "state"
        self.spool = tmp_path / "spool"
        self._settings = tmp_path / "node.yaml"
        root = jetsons.build("orin-nano-jp6", tmp_path)
        telemetry = {
            "url": f"https://{host}:{port}/telemetry",
            "ca": str(keys / "ca.crt"),
            "certificate": str(keys / f"{shown}.crt"),
            "key": str(keys / f"{shown}.key"),
            "spool_dir": str(self.spool),
        }
        content = {"board": BOARD, "root": str(root), "state_dir": str(self.state), "telemetry": telemetry}
        self._settings.write_text(yaml.safe_dump(content), encoding="utf-8")
        self.log = tmp_path / "agent.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", HURRIED, "--settings", str(self._settings)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log)

    def stop(self, number: int = signal.SIGTERM) -> int:
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(number)
        return process.wait(30)

    def kept(self) -> int:
        """Stretches in the spool."""
        return sum(int(path.name.split(".")[1]) for path in self.spool.glob("*.json"))


@contextmanager
def agent_at(tmp_path: Path, keys: Path, port: int, **more: str) -> Iterator[Agent]:
    agent = Agent(tmp_path, keys, port, **more)
    agent.start()
    try:
        yield agent
    finally:
        if agent.process is not None:
            agent.stop(signal.SIGKILL)


def rows_in(server: LiveServer) -> list[SampleRow]:
    return read_rows(server.folder, SampleRow)


def ordered_once(rows: list[SampleRow]) -> bool:
    """Whether no time is told twice, and the rows came in their order."""
    return all(b.at_s >= a.at_s + a.span_s - 1e-3 for a, b in pairwise(rows))


class SteadySensor:
    """A ``PowerSensor`` that reads 5 W at whatever time its clock shows."""

    total_power = "VDD_IN"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def read(self) -> SensorSample:
        return SensorSample(self._clock.now_s(), 5.0)


def test_seconds_that_cannot_be_dated_are_counted_once(tmp_path: Path) -> None:
    clock, file = SimulatedClock(500.0), tmp_path / "none"
    telemetry = TelemetrySettings(
        url="https://localhost/telemetry", ca=file, certificate=file, key=file, spool_dir=tmp_path / "spool"
    )
    world = AgentEnvironment(clock, wall_s=clock.now_s, random=lambda: 0.0, link=HttpsUplink(telemetry))
    agent = TelemetryAgent(NodeSettings(board=BOARD, root=str(tmp_path)), telemetry, "s", world)
    sensor = SteadySensor(clock)
    samples = [sensor.read()]
    for second in range(1, 6):
        clock.sleep_s(1.0)
        samples.append(sensor.read())
        agent._collect(samples)
        assert agent._outbox.lost_stretches == second


@pytest.mark.slow
def test_everything_arrives_in_order_and_once_when_the_server_is_cut_off_killed_and_started_again(
    tmp_path: Path, keys: Path, server: LiveServer, proxy: Proxy
) -> None:
    with agent_at(tmp_path, keys, proxy.port) as agent:
        wait_for(lambda: len(rows_in(server)) >= 2, "the first samples")
        proxy.cut()
        wait_for(lambda: agent.kept() >= 3, "samples are kept on disk")
        proxy.open()
        before = len(rows_in(server))
        wait_for(lambda: len(rows_in(server)) > before + 3 and not agent.kept(), "the backlog is sent")
        server.kill()
        wait_for(lambda: agent.kept() >= 2, "samples are kept on disk again")
        server.start()
        before = len(rows_in(server))
        wait_for(lambda: len(rows_in(server)) > before + 3 and not agent.kept(), "the backlog is sent")
        assert agent.stop() == 0
    rows = rows_in(server)
    assert ordered_once(rows)
    # Nothing is missing: every stretch begins where the one before it ended.
    gaps = [b.at_s - (a.at_s + a.span_s) for a, b in pairwise(rows)]
    assert max(gaps) < 0.05
    assert {row.board for row in rows} == {BOARD}
    assert all(row.power_w > 0 and row.rails_w for row in rows)


@pytest.mark.slow
def test_a_service_that_was_killed_sends_what_it_had_kept(
    tmp_path: Path, keys: Path, server: LiveServer, proxy: Proxy
) -> None:
    proxy.cut()
    with agent_at(tmp_path, keys, proxy.port) as agent:
        wait_for(lambda: agent.kept() >= 3, "samples are kept on disk")
        agent.stop(signal.SIGKILL)
        kept = agent.kept()
        proxy.open()
        agent.start()
        wait_for(lambda: len(rows_in(server)) >= kept + 2, "the old and the new samples")
        wait_for(lambda: not agent.kept(), "the spool is empty")
        assert agent.stop() == 0
    assert ordered_once(rows_in(server))


@pytest.mark.long
def test_a_message_whose_answer_was_lost_is_taken_once(
    tmp_path: Path, keys: Path, server: LiveServer, proxy: Proxy
) -> None:
    proxy.handler.lose_answers = 4
    with agent_at(tmp_path, keys, proxy.port) as agent:
        wait_for(lambda: proxy.handler.lose_answers == 0, "four answers are lost")
        wait_for(lambda: len(rows_in(server)) >= 6 and not agent.kept(), "the samples")
    assert ordered_once(rows_in(server))


@pytest.mark.slow
def test_a_board_with_the_certificate_of_another_is_not_believed(
    tmp_path: Path, keys: Path, server: LiveServer, proxy: Proxy
) -> None:
    with agent_at(tmp_path, keys, proxy.port, shown="other"):
        books = server.folder / "intake.json"
        wait_for(lambda: books.exists() and b'"foreign"' in books.read_bytes(), "foreign messages are counted")
    assert rows_in(server) == []


@pytest.mark.slow
def test_a_server_of_another_name_gets_nothing(tmp_path: Path, keys: Path, server: LiveServer, proxy: Proxy) -> None:
    with agent_at(tmp_path, keys, proxy.port, host="127.0.0.2") as agent:
        wait_for(lambda: b"cannot be reached" in agent.log.read_bytes(), "the refusal is told")
    assert b"127.0.0.2" in agent.log.read_bytes()
    assert rows_in(server) == []


@pytest.mark.slow
def test_what_a_run_tells_on_the_board_goes_with_the_samples(
    tmp_path: Path, keys: Path, server: LiveServer, proxy: Proxy
) -> None:
    with agent_at(tmp_path, keys, proxy.port) as agent:
        wait_for(lambda: rows_in(server), "the first samples")
        write_progress(
            agent.state / "live", BoardProgress(BOARD, time.time(), "training", run="r", round=3, steps=9, steps_done=4)
        )
        told = wait_for(lambda: _told(server, "training"), "the round is told")
        assert (told["run"], told["round"], told["steps_done"]) == ("r", 3, 4)
        assert told["device"] == "orin-nano"
        assert told["power_w"] > 0
        shutil.rmtree(agent.state)
        wait_for(lambda: _told(server, "idle"), "the board is idle")


def _told(server: LiveServer, state: str) -> dict[str, object] | None:
    progress = heard(server.socket).get(BOARD, {}).get("progress") or {}
    return progress if progress.get("state") == state else None


NGINX = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $ssl_client_s_dn $board {{
        default "";
        "~(?:^|,)CN=(?<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:,|$)" $name;
    }}
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {keys}/server.crt;
        ssl_certificate_key {keys}/server.key;
        ssl_client_certificate {keys}/ca.crt;
        ssl_verify_client on;
        client_max_body_size 1m;
        location = /telemetry {{
            proxy_set_header X-Fedge-Board $board;
            proxy_pass http://unix:{socket}:/telemetry;
        }}
    }}
}}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_samples_come_through_nginx_with_certificates_of_both_sides(
    tmp_path: Path, keys: Path, server: LiveServer
) -> None:
    from experiments.backends.sim_backend import find_free_port

    folder, port = tmp_path / "nginx", find_free_port()
    folder.mkdir()
    user = "user root;" if os.geteuid() == 0 else ""
    text = NGINX.format(folder=folder, user=user, port=port, keys=keys, socket=server.socket)
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    nginx = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        with agent_at(tmp_path, keys, port):
            wait_for(lambda: len(rows_in(server)) >= 3, "samples through nginx")
    finally:
        nginx.terminate()
        nginx.wait(10)
    assert ordered_once(rows_in(server))
