"""Runs a staged Flower app on a SuperLink of its own and ends every process of the run, whatever happens."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from experiments.backends.staging import CONNECTION, ConfigValue, run_config_toml
from fedge.errors import RunFailed

logger = logging.getLogger(__name__)

POLL_S = 0.25
START_WITHIN_S = 60.0
PORT_TRIES = 5
END_WITHIN_S = 5.0
TAIL_LINES = 15
FLOWER_SAYS = "Simulation failed with exception: "
# Every process of a run inherits this variable, also those that Flower and Ray start in sessions of their own.
MARK = "FEDGE_RUN_MARK"
SETTINGS = {
    # Nothing may leave this machine.
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # The environment that runs the launcher runs the app; Flower would otherwise install one for every run.
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # Start-up: look for the task ten times a second, and start no workers beside the actors, which bring their own.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_prestart_worker_first_driver": "0",
    # One thread everywhere gives the same bits in every backend.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
# Switches of the user's shell that would change or break a private SuperLink.
DROPPED = ("FLWR_DATABASE", "FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API", "FLWR_OIDC_ENABLED")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Log:
    """One log file of a run; ``text`` is what was written since this launch began, since a resumed run appends."""

    path: Path
    start: int

    @classmethod
    def open(cls, path: Path) -> Log:
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(path, path.stat().st_size if path.exists() else 0)

    def text(self) -> str:
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(self.start)
            return ANSI.sub("", file.read().decode("utf-8", "replace"))

    def tail(self) -> str:
        lines = [line for line in self.text().splitlines() if line.strip()]
        return "\n".join((f"{self.path} ends with:", *(f"  {line}" for line in lines[-TAIL_LINES:])))


@dataclass(frozen=True, slots=True)
class Launch:
    """Where one run's processes live: their folder, their environment and the hook that is called while waiting."""

    app_dir: Path
    flwr_home: Path
    logs: Path
    env: Mapping[str, str]
    on_poll: Callable[[], None]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)


def simulate(
    app_dir: Path,
    run_dir: Path,
    run_config: Mapping[str, ConfigValue],
    n_nodes: int,
    *,
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Run a staged app with ``n_nodes`` simulated clients and return when it has ended well.

    Starts a SuperLink of its own (state in ``run_dir``/.flwr, a free loopback port, logs in ``run_dir``/logs) and calls
    ``on_poll`` every 0.25 s while it waits. No process of the run outlives the call: not after an error, a signal or an
    exception out of ``on_poll``. With RAY_ADDRESS set, the clients run on that Ray cluster, each of whose machines must
    see ``run_dir`` under the same path; otherwise a Ray of the run's own is started and ended.
    Raises ``RunFailed`` with the reason and the end of the log that shows it.
    """
    env = environment(os.environ, app_dir.resolve(), run_dir.resolve())
    launch = Launch(app_dir.resolve(), run_dir.resolve() / ".flwr", run_dir.resolve() / "logs", env, on_poll)
    launch.flwr_home.mkdir(parents=True, exist_ok=True)
    config_file = launch.flwr_home / "run-config.toml"
    config_file.write_text(run_config_toml(run_config), encoding="utf-8")
    with _ending(launch):
        superlink, log = _start_superlink(launch)
        _run(launch, superlink, log, config_file, federation_config(n_nodes, env))


def environment(base: Mapping[str, str], app_dir: Path, run_dir: Path) -> dict[str, str]:
    """The environment of a run's processes: that of the launcher, made private, silent and single-threaded."""
    env = {key: value for key, value in base.items() if key not in DROPPED} | SETTINGS
    env["FLWR_HOME"] = str(run_dir / ".flwr")
    env[MARK] = uuid.uuid4().hex
    # SuperLink starts its helpers by bare name; the ones beside this Python are the ones that fit.
    env["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), base.get("PATH", os.defpath)))
    # Flower hands PYTHONPATH on to Ray's actors, wherever those were started.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(app_dir), base.get("PYTHONPATH", ""))))
    # "local" keeps Ray from joining a cluster that somebody else started on this machine.
    env["RAY_ADDRESS"] = base.get("RAY_ADDRESS") or "local"
    if env["RAY_ADDRESS"] == "local":
        # Ray listens on every interface, and whoever reaches it may run code: only this run's processes know the token.
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    for key in ("NO_PROXY", "no_proxy"):
        env[key] = ",".join(filter(None, (base.get(key, ""), "127.0.0.1,localhost")))
    return env


def federation_config(n_nodes: int, env: Mapping[str, str]) -> str:
    """Flower's simulation settings; a Ray cluster that exists already has its own number of cores."""
    settings = f"num-supernodes={n_nodes} client-resources-num-cpus=1 client-resources-num-gpus=0.0"
    if env["RAY_ADDRESS"] != "local":
        return settings
    return f"{settings} init-args-num-cpus={max(1, min(n_nodes, os.cpu_count() or 1))}"


def _start_superlink(launch: Launch) -> tuple[subprocess.Popen[bytes], Log]:
    """A SuperLink that listens, and its log; tries another port when somebody takes the one that was free."""
    log = Log.open(launch.logs / "superlink.log")
    for _ in range(PORT_TRIES):
        port = free_port()
        log = Log.open(log.path)
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
        process = _spawn(launch, ["flower-superlink", *options], log)
        if _listens(launch, process, log, port):
            _write_connection(launch.flwr_home, port)
            return process, log
        if "address already in use" not in log.text().lower():
            break
        logger.info("port %d was taken by another program, trying the next", port)
    raise RunFailed(f"Flower's SuperLink did not start\n{log.tail()}")


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(launch: Launch, process: subprocess.Popen[bytes], log: Log, port: int) -> bool:
    """Wait for the SuperLink; its own log tells, since on a contested port somebody else's would answer a request."""
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline:
        if f"Uvicorn running on http://127.0.0.1:{port}" in log.text():
            return True
        if process.poll() is not None:
            return False
        _pause(launch, 0.1)
    return False


def _write_connection(flwr_home: Path, port: int) -> None:
    address = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\n'
    (flwr_home / "config.toml").write_text(f"{address}insecure = true\n", encoding="utf-8")


def _run(
    launch: Launch, superlink: subprocess.Popen[bytes], superlink_log: Log, config_file: Path, federation: str
) -> None:
    """Submit the app and wait for its end; ``flwr run --stream`` ends with the run and carries the ServerApp's log."""
    log = Log.open(launch.logs / "serverapp.log")
    options = ["-c", str(config_file), "--federation-config", federation, "--stream"]
    stream = _spawn(launch, ["flwr", "run", str(launch.app_dir), CONNECTION, *options], log)
    while stream.poll() is None:
        if superlink.poll() is not None:
            raise RunFailed(f"Flower's SuperLink died (exit {superlink.returncode})\n{superlink_log.tail()}")
        _pause(launch, POLL_S)
    if stream.returncode != 0:
        raise RunFailed(f"`flwr run` failed (exit {stream.returncode})\n{log.tail()}")
    status, details = _outcome(launch)
    if status != "finished:completed":
        raise RunFailed(f"the run ended as {status}: {details.removeprefix(FLOWER_SAYS)}\n{log.tail()}")


def _outcome(launch: Launch) -> tuple[str, str]:
    """Status and details of the one run that this SuperLink knows."""
    log = Log.open(launch.logs / "outcome.log")
    listing = _spawn(launch, ["flwr", "list", CONNECTION, "--format", "json"], log)
    while listing.poll() is None:
        _pause(launch, POLL_S)
    try:
        text = log.text()
        run = json.loads(text[text.index("{") :])["runs"][0]
        return str(run["status"]), str(run["status-details"])
    except (ValueError, LookupError, TypeError) as error:
        raise RunFailed(f"cannot read how the run ended ({error!r})\n{log.tail()}") from error


def _spawn(launch: Launch, command: list[str], log: Log) -> subprocess.Popen[bytes]:
    """Start a Flower program in the app's folder and in a session of its own, out of reach of the terminal's Ctrl-C."""
    program = shutil.which(command[0], path=launch.env["PATH"])
    if program is None:
        raise RunFailed(f"{command[0]} is not installed beside {sys.executable}; pip install 'flwr[simulation]'")
    with log.path.open("ab") as output:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=launch.app_dir,
            env=dict(launch.env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    launch.started.append(process)
    return process


def _pause(launch: Launch, seconds: float) -> None:
    launch.on_poll()
    time.sleep(seconds)


@contextlib.contextmanager
def _ending(launch: Launch) -> Iterator[None]:
    """Ends every process of the run on the way out; a signal that would end this program becomes an exception first."""
    with _handling({signal.SIGTERM: _exit, signal.SIGHUP: _exit}):
        try:
            yield
        finally:
            # A second Ctrl-C must not leave half of the processes behind; this takes a few seconds at most.
            with _handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)):
                _end(launch)


@contextlib.contextmanager
def _handling(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None] | signal.Handlers],
) -> Iterator[None]:
    """Handle signals so inside; only the main thread may, so in any other nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _end(launch: Launch) -> None:
    """Ask the run's processes to end, and kill those that have not after five seconds."""
    mark, deadline = launch.env[MARK], time.monotonic() + END_WITHIN_S
    _send(signal.SIGTERM, launch, mark)
    while _alive(launch, mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    while _alive(launch, mark):
        _send(signal.SIGKILL, launch, mark)
        time.sleep(0.05)


def _send(number: signal.Signals, launch: Launch, mark: str) -> None:
    for pid in _alive(launch, mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _alive(launch: Launch, mark: str) -> set[int]:
    """The run's processes that live; without /proc only those that this program started, whose helpers follow them."""
    own = {process.pid for process in launch.started if process.poll() is None}
    return own | marked(mark)


def marked(mark: str) -> set[int]:
    """The live processes (zombies are not) whose environment carries the mark of a run."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may end between the listing and the look; those of other users are not ours.
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found
