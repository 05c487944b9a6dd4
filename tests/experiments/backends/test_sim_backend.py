"""A run on a SuperLink of its own: its end, its failures, its environment, and that none of its processes stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from contracts.processes import list_commands, wait_for

from experiments.backends import flower_app, run_processes, sim_backend
from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetEntry
from fedge.studies.ray_session import OWN_RAY_VARIABLE

CLIENT = """
import json
import os
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
@app.query()
def query(message, context):
    seen = {"board": context.node_config["partition-id"], "config": context.run_config["experiment"], "file": __file__}
    return Message(RecordDict({"seen": ConfigRecord(seen)}), reply_to=message)
"""
SERVER = """
import json, time
from pathlib import Path
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    while len(nodes := sorted(grid.get_node_ids())) < 3:
        time.sleep(0.01)
    waiting = set(grid.push_messages([Message(RecordDict(), node, MessageType.QUERY) for node in nodes]))
    seen = []
    while waiting:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            seen.append(dict(reply.content["seen"]) if reply.has_content() else {"error": reply.error.reason})
        time.sleep(0.01)
    Path(context.run_config["out"]).write_text(json.dumps(seen))
"""
FAILING_SERVER = """
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    raise ValueError("round 3 has no boards")
"""
# Stand-ins for Flower's programs: they behave on the outside as the real ones do.
UP = 'echo "INFO Uvicorn running on http://127.0.0.1:${6} (Press CTRL+C to quit)"; exec sleep 60\n'
ENDED = 'if [ "$1" = list ]; then echo \'{{"runs": [{{"status": "{}", "status-details": "{}"}}]}}\'; fi\n'


def _app(run: Path, server: str = SERVER) -> Path:
    sources = run.parent / f"{run.name} sources"
    for name, text in (("clients", CLIENT), ("server", server)):
        (sources / name).mkdir(parents=True)
        (sources / name / "__init__.py").touch()
        (sources / name / "app.py").write_text(text)
    config: dict[str, flower_app.ConfigValue] = {"experiment": "", "out": ""}
    return flower_app.stage_app(run, packages=[sources / "clients", sources / "server"], config=config)


def _survivors(run: Path) -> list[str]:
    """Command lines of the live processes whose state is in the run's folder."""
    return list_commands(f"FLWR_HOME={run / '.flwr'}")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts shell scripts in the place of Flower's programs, and gives a folder to run them in."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    monkeypatch.setattr(run_processes.sysconfig, "get_path", lambda _: str(scripts))
    run = tmp_path / "a run"
    (run / "app").mkdir(parents=True)

    def write(link: str, flwr: str) -> Path:
        for name, body in (("flower-superlink", link), ("flwr", flwr)):
            (scripts / name).write_text(f"#!/bin/sh\n{body}")
            (scripts / name).chmod(0o755)
        return run

    return write


Programs = Callable[[str, str], Path]


def test_a_run_that_completed_returns_and_its_config_travelled_as_toml(programs):
    run = programs(UP, f'echo "$@" > said; {ENDED.format("finished:completed", "N/A")}')
    sim_backend.simulate(run / "app", run, {"experiment": "{}", "rounds": 2}, 3)
    config = tomllib.loads((run / ".flwr" / "run-config.toml").read_text())
    assert config == {"experiment": "{}", "rounds": 2}
    assert not _survivors(run)


@pytest.mark.parametrize("afterwards", ["exec sleep 60\n", ""])
def test_a_run_whose_model_is_written_needs_no_word_of_flower(programs, afterwards):
    run = programs(UP, f'if [ "$1" = list ]; then exit 1; fi; touch ../model; {afterwards}')
    sim_backend.simulate(run / "app", run, {}, 3, is_complete=sim_backend.watch_file(run / "model"))
    assert not _survivors(run)


def test_a_model_of_an_earlier_launch_does_not_end_a_run(programs):
    run = programs(UP, ENDED.format("finished:failed", "no boards"))
    (run / "model").touch()
    with pytest.raises(RunFailed, match="no boards"):
        sim_backend.simulate(run / "app", run, {}, 3, is_complete=sim_backend.watch_file(run / "model"))


@pytest.mark.parametrize("program", ["Simulation", "ServerApp"])
def test_a_run_that_failed_says_why_and_where_its_log_is(programs, program):
    details = f"{program} failed with exception: no boards"
    run = programs(UP, f'echo "the last line"; {ENDED.format("finished:failed", details)}')
    with pytest.raises(RunFailed, match=r"finished:failed: no boards\n.*serverapp\.log ends with:\n  the last line"):
        sim_backend.simulate(run / "app", run, {}, 3)
    assert not _survivors(run)


def test_a_submission_that_flower_refuses_fails_with_its_words(programs):
    run = programs(UP, "echo 'Invalid Flower App'; exit 1\n")
    with pytest.raises(RunFailed, match=r"exit 1\)\n.*\n  Invalid Flower App"):
        sim_backend.simulate(run / "app", run, {}, 3)


def test_a_superlink_that_does_not_come_up_fails_with_the_end_of_its_log(programs):
    run = programs("echo 'no such option'; exit 2\n", "")
    with pytest.raises(RunFailed, match=r"did not start\n.*superlink\.log ends with:\n  no such option"):
        sim_backend.simulate(run / "app", run, {}, 3)


def test_a_superlink_that_dies_during_the_run_ends_the_run(programs):
    run = programs(UP.replace("exec sleep 60", "sleep 5 & sleep 0.5; echo 'out of memory'; exit 9"), "exec sleep 60\n")
    with pytest.raises(RunFailed, match=r"SuperLink died \(exit 9\)\n.*\n.*\n  out of memory"):
        sim_backend.simulate(run / "app", run, {}, 3)
    assert not _survivors(run)


def test_a_port_that_somebody_took_meanwhile_is_given_up_for_another(programs):
    refuse_once = 'if [ ! -e refused ]; then touch refused; echo "ERROR: address already in use"; exit 1; fi\n'
    run = programs(refuse_once + UP, ENDED.format("finished:completed", "N/A"))
    sim_backend.simulate(run / "app", run, {}, 3)
    log = (run / "logs" / "superlink.log").read_text()
    assert log.index("already in use") < log.index("Uvicorn running")


def test_the_log_of_an_earlier_launch_is_kept_and_not_mistaken_for_this_one(programs):
    run = programs("echo boom; exit 2\n", "")
    (run / "logs").mkdir()
    (run / "logs" / "superlink.log").write_text("an earlier launch: address already in use\n")
    with pytest.raises(RunFailed) as failure:
        sim_backend.simulate(run / "app", run, {}, 3)
    assert "an earlier launch" not in str(failure.value)
    assert (run / "logs" / "superlink.log").read_text() == "an earlier launch: address already in use\nboom\n"


def test_missing_flower_is_said_with_the_command_that_installs_it(tmp_path, programs, monkeypatch):
    run = programs("", "")
    (tmp_path / "scripts" / "flower-superlink").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunFailed, match=r"pip install 'fedge\[sim\]'"):
        sim_backend.simulate(run / "app", run, {}, 3)


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_a_signal_ends_the_run_with_all_its_processes(programs, number, raised):
    run, seen = programs(UP, "exec sleep 60\n"), []

    def interrupt() -> None:
        seen.append(len(_survivors(run)))
        if seen[-1] == 2:
            os.kill(os.getpid(), number)

    handler = signal.getsignal(number)
    with pytest.raises(raised):
        sim_backend.simulate(run / "app", run, {}, 3, on_poll=interrupt)
    assert not _survivors(run)
    assert signal.getsignal(number) is handler


def test_a_superlink_whose_superexec_died_is_told_as_such(tmp_path):
    with subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; exec sleep 1000"], stdout=subprocess.PIPE) as superlink:
        watch = sim_backend.SuperLinkWatch(superlink, run_processes.RunLog(tmp_path / "log", 0))
        child = int(superlink.stdout.readline())
        watch.check()
        assert watch.has_child
        os.kill(child, signal.SIGKILL)
        wait_for(lambda: not run_processes.has_living_child(superlink.pid), "the child has ended")
        with pytest.raises(RunFailed, match="SuperExec"):
            watch.check()
        superlink.kill()


def test_a_simulation_that_is_never_up_in_time_ends_the_run_after_some_tries(tmp_path):
    log = tmp_path / "log"
    late = 'x INFO [uvicorn.access] 127.0.0.1:1 - "POST /v1/runtime/pull-task-input HTTP/1.1" 401\n'
    with subprocess.Popen(["sleep", "1000"]) as superlink:
        watch = sim_backend.SuperLinkWatch(superlink, run_processes.RunLog(log, 0))
        log.write_text(late * 9, encoding="utf-8")
        watch.check()
        log.write_text(late * 10, encoding="utf-8")
        with pytest.raises(RunFailed, match="too busy"):
            watch.check()
        superlink.kill()


def test_an_error_in_the_poll_hook_ends_the_run(programs):
    run = programs(UP, "exec sleep 60\n")
    with pytest.raises(ZeroDivisionError):
        sim_backend.simulate(run / "app", run, {}, 3, on_poll=lambda: print(1 / 0))
    assert not _survivors(run)


SLOW_RAY = """if [ "$1" = run ] && [ ! -e ../started ]; then
  touch ../started; echo 'Exception: The current node timed out during startup.'; exit 1
fi
"""


def test_a_ray_that_was_too_slow_to_start_is_started_again(programs):
    run = programs(UP, SLOW_RAY + ENDED.format("finished:completed", "N/A"))
    sim_backend.simulate(run / "app", run, {}, 3)
    assert (run / "started").exists()


LOST = "ServerApp failed with exception: a process that emulates clients ended (ActorDiedError) while nano-1 worked"
LOSES_ONE = f"""if [ "$1" = run ]; then echo >> ../starts; fi
if [ "$(wc -l < ../starts)" = 1 ]; then {ENDED.format("finished:failed", LOST).rstrip()}
else {ENDED.format("finished:completed", "N/A").rstrip()}; fi
"""


def test_a_run_that_loses_a_machine_of_a_cluster_is_submitted_again(programs, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.7:6379")
    run = programs(UP, LOSES_ONE)
    sim_backend.simulate(run / "app", run, {}, 3)
    assert (run / "starts").read_text() == "\n\n"


def test_a_run_that_loses_a_process_on_this_machine_ends(programs):
    run = programs(UP, LOSES_ONE)
    with pytest.raises(RunFailed, match="a process that emulates clients ended"):
        sim_backend.simulate(run / "app", run, {}, 3)


def test_a_ray_that_never_starts_is_told_as_such(programs):
    run = programs(UP, SLOW_RAY.replace("touch ../started;", "") + ENDED.format("finished:completed", "N/A"))
    with pytest.raises(RunFailed, match="too busy"):
        sim_backend.simulate(run / "app", run, {}, 3)


def test_a_process_that_ignores_the_request_to_end_is_killed(programs, monkeypatch):
    monkeypatch.setattr(run_processes, "END_WITHIN_S", 0.2)
    stubborn = "trap '' TERM; (trap '' TERM; sleep 60) &\n" + UP.replace("exec sleep 60", "sleep 60")
    run = programs(stubborn, ENDED.format("finished:completed", "N/A"))
    sim_backend.simulate(run / "app", run, {}, 3)
    assert not _survivors(run)


def test_a_later_start_of_the_simulation_ends_the_earlier_one_and_no_other_program(tmp_path):
    (tmp_path / "flower's").mkdir()
    said, program = tmp_path / "said", tmp_path / "flower's" / "flwr-simulation"
    said.touch()
    program.write_text(f'#!/bin/sh\necho "$@" >> {said}\nsleep 60\n')
    program.chmod(0o755)
    path = sim_backend.let_newest_start_win(tmp_path / "run", str(program.parent))

    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "run" / "simulation.pid").write_text(f"{other.pid}")
        starts = []
        for token in ("a", "b"):
            starts.append(subprocess.Popen(["flwr-simulation", token], env={"PATH": f"{path}:/usr/bin:/bin"}))
            wait_for(lambda token=token: token in said.read_text().split())
        assert starts[0].wait(10) == -signal.SIGKILL
        assert [each.poll() for each in (starts[1], other)] == [None, None]
        for each in (starts[1], other):
            each.kill()
            each.wait()


def test_the_environment_is_private_silent_and_single_threaded():
    base = {
        "PATH": "/bin",
        "PYTHONPATH": "/mine",
        "FLWR_DATABASE": "/shared.db",
        "no_proxy": "example.org",
        "HOME": "/h",
    }
    env = sim_backend.simulation_environment(base, Path("/run/app"), Path("/run"))
    assert env["FLWR_HOME"] == "/run/.flwr"
    assert env["PYTHONPATH"] == "/run/app:/mine"
    assert env["PATH"].endswith(":/bin")
    assert env["no_proxy"] == "example.org,127.0.0.1,localhost"
    assert (env["FLWR_TELEMETRY_ENABLED"], env["RAY_USAGE_STATS_ENABLED"], env["OMP_NUM_THREADS"]) == ("0", "0", "1")
    assert (env["FLWR_DISABLE_UPDATE_CHECK"], env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]) == ("1", "1")
    assert "FLWR_DATABASE" not in env
    assert env["HOME"] == "/h"


def test_without_ray_address_the_run_starts_its_own_ray_with_no_more_cores_than_boards():
    env = sim_backend.simulation_environment({}, Path("/run/app"), Path("/run"))
    assert env["RAY_ADDRESS"] == "local"
    assert "num-supernodes=1 " in sim_backend.federation_config(1, env)
    assert sim_backend.federation_config(1, env).endswith("init-args-num-cpus=1")


@pytest.mark.parametrize(
    ("setting", "boards", "nodes"),
    [
        ({}, 1, 1),
        ({}, 100, 4),
        ({"RAY_ADDRESS": "127.0.0.1:6379", OWN_RAY_VARIABLE: "1"}, 100, 4),  # as --ray-dashboard starts it
        ({"RAY_ADDRESS": "192.0.2.7:6379"}, 100, 64),
    ],
)
def test_the_boards_share_a_node_for_each_core_of_the_machine_or_the_cluster(
    setting, boards, nodes, monkeypatch, tmp_path
):
    started: list[int] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sim_backend.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(sim_backend, "check_machines", lambda app: 64)
    monkeypatch.setattr(sim_backend, "simulate", lambda app, folder, config, n_nodes, **_: started.append(n_nodes))

    sim_backend.run_sim(Experiment(name="x", fleet=(FleetEntry(device="nano", count=boards),)), tmp_path, print)

    assert started == [nodes]


def test_with_ray_address_the_run_joins_that_cluster_and_takes_its_cores():
    env = sim_backend.simulation_environment({"RAY_ADDRESS": "10.0.0.1:6379"}, Path("/run/app"), Path("/run"))
    assert env["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert "init-args" not in sim_backend.federation_config(8, env)


def _seen(run: Path) -> list[dict[str, object]]:
    seen: list[dict[str, object]] = json.loads((run / "out.json").read_text())
    return seen


TEXT = 'ein "Versuch"\n' * 20_000


@dataclass
class Watched:
    """A run that is looked at whenever it waits, and interrupted once Ray's actors are up, if it is to be."""

    run: Path
    interrupted: bool = False
    polls: int = 0
    most: int = 0
    raised: type[BaseException] | None = None

    @property
    def config(self) -> str:
        return TEXT + self.run.name

    def poll(self) -> None:
        self.polls += 1
        if self.interrupted:
            alive = _survivors(self.run)
            self.most = max(self.most, len(alive))
            if any("ray::ClientAppActor" in line for line in alive):
                raise KeyboardInterrupt

    def play(self) -> None:
        config: dict[str, flower_app.ConfigValue] = {"experiment": self.config, "out": str(self.run / "out.json")}
        try:
            sim_backend.simulate(_app(self.run), self.run, config, 3, on_poll=self.poll)
        except KeyboardInterrupt:
            self.raised = KeyboardInterrupt


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Watched, Watched]]:
    """Two real runs at once, from a folder with foreign clients, the first port lost; the second is interrupted."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "start" / "clients").mkdir(parents=True)
    (folder / "start" / "clients" / "__init__.py").write_text("raise SystemExit('poison')\n")
    runs = Watched(folder / "a run"), Watched(folder / "the other run", interrupted=True)
    with socket.socket() as holder, pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        ports = iter([int(holder.getsockname()[1])])
        patch.chdir(folder / "start")
        patch.setattr(
            sim_backend, "find_free_port", lambda free=sim_backend.find_free_port: next(ports, None) or free()
        )
        list(pool.map(Watched.play, runs))
        yield runs


@pytest.mark.long
@pytest.mark.xdist_group("simulations")
def test_a_real_run_completes_from_a_folder_with_foreign_clients_whatever_becomes_of_another_one(
    at_once,
):
    whole, _ = at_once
    seen = _seen(whole.run)
    assert sorted(reply["board"] for reply in seen) == [0, 1, 2]
    assert all(reply["config"] == whole.config for reply in seen)
    assert all(Path(str(reply["file"])).is_relative_to(whole.run) for reply in seen)
    assert whole.polls > 10
    assert whole.raised is None
    assert not _survivors(whole.run)


@pytest.mark.long
@pytest.mark.xdist_group("simulations")
def test_a_real_run_that_loses_its_port_takes_another_one(at_once):
    logs = [(watched.run / "logs" / "superlink.log").read_text().lower() for watched in at_once]
    assert sum("address already in use" in log for log in logs) == 1
    assert all("uvicorn running" in log for log in logs)


@pytest.mark.long
@pytest.mark.xdist_group("simulations")
def test_a_real_run_that_is_interrupted_takes_ray_with_it(at_once):
    _, interrupted = at_once
    assert interrupted.raised is KeyboardInterrupt
    assert interrupted.most > 5
    assert not _survivors(interrupted.run)


@pytest.mark.long
@pytest.mark.xdist_group("simulations")
def test_a_real_server_app_that_raises_fails_the_run_with_its_message(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(RunFailed, match="round 3 has no boards") as failure:
        sim_backend.simulate(_app(run, FAILING_SERVER), run, {"experiment": ""}, 3)
    assert str(run / "logs" / "serverapp.log") in str(failure.value)
    assert not _survivors(run)
