"""The ``sim`` backend: Flower's simulation runtime on Ray, on a private SuperLink; no process outlives the run."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.backends.flower_app import ConfigValue, stage_app
from experiments.backends.ray_cluster import check_machines
from experiments.backends.run_processes import (
    Launch,
    RunLog,
    end_processes_on_exit,
    has_living_child,
    poll_and_sleep,
    private_environment,
    spawn,
)
from experiments.backends.run_submission import open_serverapp_log, prepare_launch, submit, write_connection
from experiments.spec.user_plugins import list_plugin_files
from fedge.atomic_files import write_text
from fedge.errors import RunFailed
from fedge.experiment import Experiment, SuperlinkSpec, list_boards
from fedge.phases import begin_phase
from fedge.studies.ray_session import OWN_RAY_VARIABLE, uses_cluster
from fedge.telemetry.run_folder import MODEL
from server.transport.client_port import LOST_PROCESS_TEXT

logger = logging.getLogger(__name__)


def run_sim(experiment: Experiment, folder: Path, on_round: Callable[[], None]) -> None:
    """Run a checked experiment in Flower's simulation, with results in ``folder``.

    ``on_round`` is called repeatedly while the run goes on.

    Raises:
        RunFailed: If the run cannot continue.
    """
    app = stage_app(folder, list_plugin_files(experiment.plugins), config={"experiment": "", "folder": ""})
    cores = os.cpu_count() or 1
    if uses_cluster(os.environ) and OWN_RAY_VARIABLE not in os.environ:
        begin_phase("checking the cluster's machines", announce=True)
        cores = check_machines(app.resolve())
    config = {"experiment": experiment.model_dump_json(), "folder": str(folder)}
    simulate(
        app,
        folder,
        config,
        max(1, min(len(list_boards(experiment)), cores)),  # Flower's nodes emulate the boards together
        num_gpus=experiment.backend_options.num_gpus,
        on_poll=on_round,
        is_complete=watch_file(folder / MODEL),
    )


def watch_file(path: Path) -> Callable[[], bool]:
    """Return a function that returns whether a file was written since this call."""

    def read_stamp() -> tuple[int, int] | None:
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    before = read_stamp()
    return lambda: read_stamp() not in {None, before}


START_WITHIN_S = 60.0
PORT_TRIES = 5
RAY_TRIES = 3
RAY_TOO_SLOW = "The current node timed out during startup"
"""What Ray logs if its node is not up within 30 s, a limit that cannot be set; no round has begun then."""
LATE_START = '/v1/runtime/pull-task-input HTTP/1.1" 401'
"""What the SuperLink logs of a simulation that was not up within 30 s, a fixed limit; another is started."""
SIMULATION = "flwr-simulation"
NEWEST_START = """\
#!/bin/sh
# Flower starts its simulation anew where it has not asked for its task within 30 s. An earlier start cannot get it any
# more, and on a busy machine it would only slow down the new one, and that the next.
earlier=$(cat {note} 2>/dev/null)
if [ -n "$earlier" ] && grep -q {simulation} "/proc/$earlier/cmdline" 2>/dev/null; then kill -KILL "$earlier"; fi
echo $$ > {note}
exec {program} "$@"
"""
LATE_STARTS = 10
"""Late starts after which the run ends: five minutes in which nothing could start."""
TOO_BUSY = "this machine is too busy; `backend: local` computes the same rounds without Flower's processes"
START_PHASES = {
    "successfully started run": "installing the app and starting Flower's processes",
    "successfully installed": "starting Ray and the clients",
}
"""What begins when Flower 1.41 logs one of these."""


def simulate(
    app_dir: Path,
    run_dir: Path,
    run_config: Mapping[str, ConfigValue],
    n_nodes: int,
    *,
    num_gpus: float = 0.0,
    on_poll: Callable[[], None] = lambda: None,
    is_complete: Callable[[], bool] = lambda: False,
) -> None:
    """Run a staged app with simulated clients until it has finished.

    Starts a private SuperLink (state in ``run_dir``/.flwr, a free loopback port, logs in ``run_dir``/logs). No process
    of the run outlives the call, not even after an error or a signal. If RAY_ADDRESS is set, the clients run on that
    Ray cluster, whose machines must all see ``run_dir`` under the same path; otherwise a private Ray is started.

    Args:
        num_gpus: Share of a CUDA device that Ray reserves for each process of clients.
        on_poll: Called every 0.25 s while waiting; an exception from it ends the run.
        is_complete: Returns True once the run's results are written; its processes are then ended at once.

    Raises:
        RunFailed: With the reason and the end of the relevant log.
    """
    env = simulation_environment(os.environ, app_dir.resolve(), run_dir.resolve())
    env["PATH"] = let_newest_start_win(run_dir.resolve() / ".flwr", env["PATH"])
    launch, config_file = prepare_launch(app_dir, run_dir.resolve(), env, on_poll, config=run_config)
    with end_processes_on_exit(launch):
        begin_phase("starting Flower's SuperLink", announce=True)
        watch = SuperLinkWatch(*_start_superlink(launch))
        options = ["--federation-config", federation_config(n_nodes, env, num_gpus)]
        _submit_patiently(launch, config_file, options, watch.check, is_complete)


def _submit_patiently(
    launch: Launch,
    config_file: Path,
    options: Sequence[str],
    check: Callable[[], None],
    is_complete: Callable[[], bool],
) -> None:
    """Submit the app, and once more if Ray was too slow to start, or a machine of a cluster was lost.

    Flower never replaces a process that is lost; a run that is submitted again goes on from its last checkpoint, with
    the rows that it would have had.
    """
    for tries in range(1, RAY_TRIES + 1):
        log = open_serverapp_log(launch)
        try:
            submit(
                launch,
                log=log,
                config_file=config_file,
                options=options,
                check=check,
                is_complete=is_complete,
                phases=START_PHASES,
            )
        except RunFailed as error:
            if LOST_PROCESS_TEXT in str(error) and uses_cluster(launch.env) and tries < RAY_TRIES:
                logger.warning("a machine of the Ray cluster was lost; the run goes on from its last checkpoint")
                continue
            if RAY_TOO_SLOW not in log.text():
                raise
            if tries == RAY_TRIES:
                raise RunFailed(f"Ray did not start within 30 s, {tries} times: {TOO_BUSY}") from error
            logger.warning("Ray did not start within 30 s on this busy machine; it is started again")
        else:
            return


@dataclass(slots=True)
class SuperLinkWatch:
    """A SuperLink that must live, and so must its child, the SuperExec: without it a run waits for ever."""

    superlink: subprocess.Popen[bytes]
    log: RunLog
    has_child: bool = False

    def check(self) -> None:
        """Raise ``RunFailed`` if one of them died, or no simulation ever comes up.

        The SuperExec is started some time after the SuperLink.
        """
        had_child, self.has_child = self.has_child, has_living_child(self.superlink.pid)
        if self.superlink.poll() is not None:  # asked second: its child is gone with it
            raise RunFailed(f"Flower's SuperLink died (exit {self.superlink.returncode})\n{self.log.tail()}")
        if self.log.text().count(LATE_START) >= LATE_STARTS:
            raise RunFailed(f"Flower's simulation was not up within 30 s, {LATE_STARTS} times: {TOO_BUSY}")
        if had_child and not self.has_child:
            raise RunFailed(f"Flower's SuperExec, which starts the run's other processes, died\n{self.log.tail()}")


def simulation_environment(base: Mapping[str, str], app_dir: Path, run_dir: Path) -> dict[str, str]:
    """Build the environment of a simulation's processes, with a private Ray or the cluster at RAY_ADDRESS."""
    env = private_environment(base, run_dir)
    # Flower passes PYTHONPATH on to Ray's actors, wherever they were started.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(app_dir), base.get("PYTHONPATH", ""))))
    # "local" keeps Ray from joining an unrelated cluster on this machine.
    env["RAY_ADDRESS"] = base.get("RAY_ADDRESS") or "local"
    if env["RAY_ADDRESS"] == "local":
        # Ray listens on all interfaces and executes any client's code, so a token known only to this run is required.
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return env


def let_newest_start_win(folder: Path, path: str) -> str:
    """Write a program before Flower's simulation that ends an earlier start of it; return the PATH that finds it."""
    program = shutil.which(SIMULATION, path=path)
    if program is None:
        return path
    stand_in = folder / "bin" / SIMULATION
    stand_in.parent.mkdir(parents=True, exist_ok=True)
    note = shlex.quote(str(folder / "simulation.pid"))
    text = NEWEST_START.format(note=note, simulation=SIMULATION, program=shlex.quote(program))
    write_text(stand_in, text)
    stand_in.chmod(0o700)
    return os.pathsep.join((str(stand_in.parent), path))


def federation_config(n_nodes: int, env: Mapping[str, str], num_gpus: float = 0.0) -> str:
    """Return Flower's simulation settings; an existing Ray cluster keeps its own CPU count."""
    settings = f"num-supernodes={n_nodes} client-resources-num-cpus=1 client-resources-num-gpus={num_gpus}"
    if env["RAY_ADDRESS"] != "local":
        return settings
    return f"{settings} init-args-num-cpus={min(n_nodes, os.cpu_count() or 1)}"


def _start_superlink(launch: Launch) -> tuple[subprocess.Popen[bytes], RunLog]:
    """Start a SuperLink and wait until it listens; retries if another program takes the port meanwhile."""
    log = RunLog.open(launch.logs / "superlink.log")
    for _ in range(PORT_TRIES):
        port = find_free_port()
        log = RunLog.open(log.path)
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
        process = spawn(launch, ["flower-superlink", *options], log)
        if _wait_until_listening(launch, process, log, port):
            write_connection(launch.flwr_home, SuperlinkSpec(address=f"127.0.0.1:{port}"))
            return process, log
        if "address already in use" not in log.text().lower():
            break
        logger.info("port %d was taken by another program, trying the next", port)
    raise RunFailed(f"Flower's SuperLink did not start\n{log.tail()}")


def find_free_port() -> int:
    """Return a loopback port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_listening(launch: Launch, process: subprocess.Popen[bytes], log: RunLog, port: int) -> bool:
    """Wait for the SuperLink's own log line: on a contested port, another program might accept the connection."""
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline:
        if f"Uvicorn running on http://127.0.0.1:{port}" in log.text():
            return True
        if process.poll() is not None:
            return False
        poll_and_sleep(launch, 0.1)
    return False
