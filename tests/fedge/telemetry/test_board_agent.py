"""A board's telemetry service, as a process of its own, tells everything once, whatever befalls it and its server."""

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
from hypothesis import given
from hypothesis import strategies as st

from fedge.clock import SimulatedClock
from fedge.devices.local_board import NodeSettings, TelemetrySettings
from fedge.errors import BadInput
from fedge.protocols import Clock
from fedge.telemetry import board_agent
from fedge.telemetry.board_agent import (
    CLOCK_SET_S,
    SHOW_END_S,
    STALE_S,
    AgentEnvironment,
    SensorStretches,
    TelemetryAgent,
    describe_progress,
    find_board_spec,
    lock_spool_folder,
)
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import write_progress
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import SampleRow
from fedge.telemetry.uplink import HttpsUplink
from fedge.types import EMPTY_TRACE, SensorSample, Trace

BOARD = "nano-1"
FASTER = 5
HURRIED = f"""
import sys
from fedge.telemetry import board_agent, outbox, uplink
for module, names in (
    (board_agent, ["TICK_S", "STRETCH_S"]),
    (outbox, ["MAX_UNSAVED_S"]),
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


@pytest.mark.parametrize(("wall_s", "kept", "lost"), [(0.0, 0, 5), (1_790_000_000.0, 5, 0)])
def test_every_second_is_kept_to_be_sent_or_counted_if_it_cannot_be_dated(tmp_path, wall_s, kept, lost):
    clock, file = SimulatedClock(500.0), tmp_path / "none"
    telemetry = TelemetrySettings(
        url="https://localhost/telemetry", ca=file, certificate=file, key=file, spool_dir=tmp_path / "spool"
    )
    world = AgentEnvironment(clock, lambda: wall_s + clock.now_s(), lambda: 0.0, HttpsUplink(telemetry))
    agent = TelemetryAgent(NodeSettings(board=BOARD, root=str(tmp_path)), telemetry, "s", world)
    sensor = SteadySensor(clock)
    samples = [sensor.read()]
    for _ in range(5):
        clock.sleep_s(1.0)
        samples.append(sensor.read())
        agent._collect(samples)

    waiting = agent._outbox.next_batch(world.wall_s())
    assert len(waiting[1].trace) == kept
    assert agent._outbox.lost_stretches == lost


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("board: nano-1\n", "telemetry: got no section telemetry in the settings; a section telemetry with url, ca"),
        ("board: x.{board}\ntelemetry: {{url: 'https://a/t', ca: a, certificate: b, key: c}}\n", "64 letters, digits"),
    ],
)
def test_a_service_without_a_server_or_a_name_ends_with_one_line_and_the_code_of_a_mistake(
    tmp_path, caplog, content, message
):
    settings = tmp_path / "node.yaml"
    settings.write_text(content.format(board="a" * 80), encoding="utf-8")

    assert board_agent.main(["--settings", str(settings)]) == board_agent.USAGE_EXIT_CODE
    assert message in caplog.text


@pytest.mark.slow
def test_everything_arrives_in_order_and_once_when_the_server_is_cut_off_killed_and_started_again(
    tmp_path, keys, server, proxy
):
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
def test_a_service_that_was_killed_sends_what_it_had_kept(tmp_path, keys, server, proxy):
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
def test_a_message_whose_answer_was_lost_is_taken_once(tmp_path, keys, server, proxy):
    proxy.handler.lose_answers = 4
    with agent_at(tmp_path, keys, proxy.port) as agent:
        wait_for(lambda: proxy.handler.lose_answers == 0, "four answers are lost")
        wait_for(lambda: len(rows_in(server)) >= 6 and not agent.kept(), "the samples")
    assert ordered_once(rows_in(server))


@pytest.mark.slow
def test_a_board_with_the_certificate_of_another_is_not_believed(tmp_path, keys, server, proxy):
    with agent_at(tmp_path, keys, proxy.port, shown="other"):
        books = server.folder / "intake.json"
        wait_for(lambda: books.exists() and b'"foreign"' in books.read_bytes(), "foreign messages are counted")
    assert rows_in(server) == []


@pytest.mark.slow
def test_a_server_of_another_name_gets_nothing(tmp_path, keys, server, proxy):
    with agent_at(tmp_path, keys, proxy.port, host="127.0.0.2") as agent:
        wait_for(lambda: b"cannot be reached" in agent.log.read_bytes(), "the refusal is told")
    assert b"127.0.0.2" in agent.log.read_bytes()
    assert rows_in(server) == []


@pytest.mark.slow
def test_what_a_run_tells_on_the_board_goes_with_the_samples(tmp_path, keys, server, proxy):
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
def test_samples_come_through_nginx_with_certificates_of_both_sides(tmp_path, keys, server):
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


T0 = 1_790_000_000.0


class Clocks:
    """A monotonic clock, and one that somebody sets."""

    def __init__(self) -> None:
        self.mono_s, self.ahead_s = 500.0, T0 - 500.0

    def now_s(self) -> float:
        return self.mono_s

    def wall_s(self) -> float:
        return self.mono_s + self.ahead_s


def watched(
    clocks: Clocks, stretches: SensorStretches, samples: list[SensorSample], seconds: float, hz: float = 10.0
) -> list[Trace]:
    """What comes when it is asked once a second."""
    found = []
    for k in range(1, round(seconds * hz) + 1):
        clocks.mono_s += 1 / hz
        samples.append(SensorSample(clocks.mono_s, 5.0 + clocks.mono_s % 3, {"VDD_IN": 5.0}, {"cpu": 41.0}))
        if k % round(hz) == 0:
            found.append(stretches.take_new(samples))
    return [trace for trace in found if trace]


def test_every_second_is_reported_once_with_its_energy_while_the_clock_is_slewed():
    clocks = Clocks()
    stretches, samples = SensorStretches(clocks.now_s, clocks.wall_s), [SensorSample(500.0, 5.0 + 500 % 3)]
    found = []
    for slew_s in (0.0, 0.5 * CLOCK_SET_S, -CLOCK_SET_S):
        clocks.ahead_s += slew_s
        found += watched(clocks, stretches, samples, 20.0)
    starts = [start for trace in found for start in trace.start_s]
    assert starts == pytest.approx([T0 + i for i in range(len(starts))], abs=1e-3)
    assert len(starts) >= 59
    told_j = sum(trace.energy_j for trace in found)
    assert told_j == pytest.approx(sum(5.0 + (500 + k / 10) % 3 for k in range(600)) / 10, rel=0.05)
    assert stretches.lost == 0


@given(st.lists(st.tuples(st.floats(1, 8), st.floats(-5, 5)), max_size=8))
def test_no_time_is_reported_twice_however_the_clock_is_set(story):
    clocks = Clocks()
    stretches, samples = SensorStretches(clocks.now_s, clocks.wall_s), [SensorSample(500.0, 5.0)]
    found = []
    for seconds, step_s in story:
        found += watched(clocks, stretches, samples, seconds, hz=2.0)
        clocks.ahead_s += step_s
    times = [(start, span) for trace in found for start, span in zip(trace.start_s, trace.span_s, strict=True)]
    assert all(b[0] >= a[0] + a[1] - 2e-3 for a, b in pairwise(times))


def test_a_clock_that_was_never_set_reports_nothing_but_how_much_was_lost():
    clocks = Clocks()
    clocks.ahead_s = 0.0
    stretches, samples = SensorStretches(clocks.now_s, clocks.wall_s), [SensorSample(500.0, 5.0)]
    assert watched(clocks, stretches, samples, 5.0) == []
    assert stretches.lost == 5
    clocks.ahead_s = T0
    assert watched(clocks, stretches, samples, 3.0)


def test_while_the_sensor_is_lost_nothing_is_reported_of_that_time():
    clocks = Clocks()
    stretches, samples = SensorStretches(clocks.now_s, clocks.wall_s), [SensorSample(500.0, 5.0)]
    before = watched(clocks, stretches, samples, 5.0)
    clocks.mono_s += 100.0
    assert not stretches.take_new(samples)
    after = watched(clocks, stretches, samples, 5.0)
    told_s = sum(span for trace in (*before, *after) for span in trace.span_s)
    assert told_s < 12.0
    clocks.mono_s += 100.0
    samples.append(SensorSample(clocks.mono_s, 5.0))
    assert stretches.take_new(samples) == EMPTY_TRACE
    assert stretches.lost == 0


TRAINING = BoardProgress("nano-1", T0, "training", run="r", round=2, steps=9, steps_done=4, power_w=1.0)


@pytest.mark.parametrize(
    ("said", "at_s", "state"),
    [
        (None, T0, "idle"),
        (TRAINING, T0 + 5, "training"),
        (TRAINING, T0 + STALE_S + 1, "idle"),
        (TRAINING, T0 - 100, "idle"),
        (BoardProgress("nano-1", T0, "done", run="r"), T0 + SHOW_END_S - 1, "done"),
        (BoardProgress("nano-1", T0, "done", run="r"), T0 + SHOW_END_S + 1, "idle"),
    ],
)
def test_what_a_run_told_holds_for_a_while(said, at_s, state):
    found = describe_progress(said, "nano-1", "orin-nano", SensorSample(1.0, 6.5, {}, {"a": 40.0, "b": 50.0}), at_s)
    assert (found.state, found.at_s, found.power_w, found.temperature_c) == (state, at_s, 6.5, 50.0)
    assert found.device == "orin-nano"
    blind = describe_progress(said, "nano-1", "", None, at_s)
    assert (blind.state, blind.power_w, blind.temperature_c) == (state, None, None)
    odd = describe_progress(said, "nano-1", "", SensorSample(1.0, float("nan"), {}, {"a": 1e9}), at_s)
    assert (odd.power_w, odd.temperature_c) == (None, None)


@pytest.mark.parametrize("name", jetsons.BOARDS)
def test_a_board_is_known_without_its_daemon(name, tmp_path_factory):
    root = jetsons.build(name, tmp_path_factory.mktemp("root"))
    assert find_board_spec(NodeSettings(board="a", root=str(root))) is not None


def test_a_board_that_its_settings_name_is_that_one(tmp_path):
    spec = find_board_spec(NodeSettings(board="a", device="nano", root=str(tmp_path)))
    assert spec.name == "nano"


def test_two_services_never_use_one_spool(tmp_path):
    first = lock_spool_folder(tmp_path / "spool")
    with pytest.raises(BadInput, match=r"telemetry.spool_dir: got .*spool: a spool that process .* is writing"):
        lock_spool_folder(tmp_path / "spool")
    first.release()
    lock_spool_folder(tmp_path / "spool").release()


def test_a_machine_that_is_no_board_has_no_kind(tmp_path_factory):
    assert find_board_spec(NodeSettings(board="a", root=str(tmp_path_factory.mktemp("empty")))) is None
