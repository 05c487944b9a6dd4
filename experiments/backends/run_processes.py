"""Processes of one run: their environment, their logs, and their guaranteed termination."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from fedge.child_processes import replace_handlers
from fedge.errors import RunFailed
from fedge.extras import build_install_command
from fedge.import_path import ROOT

POLL_S = 0.25
END_WITHIN_S = 5.0
TAIL_LINES = 15
# Marks every process of a run: the variable is inherited, also by sessions that Flower and Ray start on their own.
RUN_MARK = "FEDGE_RUN_MARK"
SETTINGS = {
    # Disable all telemetry.
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Run the app in the launcher's environment; Flower would otherwise install a new one for every run.
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # Faster start: poll for the task ten times a second, and start no Ray workers besides the actors, which bring their
    # own.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_prestart_worker_first_driver": "0",
    # Ray's parts wait longer for each other than 30 s, and its workers are not nice: other programs may be busy.
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_niceness": "0",
    # A single thread everywhere makes results bitwise equal in all backends.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
# Variables of the user's shell that would change or break a SuperLink.
DROPPED_VARIABLES = (
    "FLWR_DATABASE",
    "FLWR_INTERNAL_GRPC_CONTROL_API",
    "FLWR_INTERNAL_GRPC_FLEET_API",
    "FLWR_OIDC_ENABLED",
)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class RunLog:
    """A log file of a run.

    Attributes:
        path: The file; a resumed run appends to it.
        start: Offset, in bytes, at which the output of this launch begins.
    """

    path: Path
    start: int

    @classmethod
    def open(cls, path: Path) -> RunLog:
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
    """Settings and processes of one launch.

    Attributes:
        app_dir: Folder of the staged app, the working directory of all processes.
    """

    app_dir: Path
    flwr_home: Path
    logs: Path
    env: Mapping[str, str]
    on_poll: Callable[[], None]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)


def private_environment(base: Mapping[str, str], run_dir: Path) -> dict[str, str]:
    """Build the private, silent, single-threaded environment of a run's processes from ``base``.

    Flower's state is in ``run_dir``.
    """
    env = {key: value for key, value in base.items() if key not in DROPPED_VARIABLES} | SETTINGS
    env["FLWR_HOME"] = str(run_dir / ".flwr")
    env[RUN_MARK] = uuid.uuid4().hex
    # The SuperLink starts its helpers by bare name, so the ones beside this Python must come first.
    env["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), base.get("PATH", os.defpath)))
    for key in ("NO_PROXY", "no_proxy"):
        env[key] = ",".join(filter(None, (base.get(key, ""), "127.0.0.1,localhost")))
    return env


def spawn(launch: Launch, command: list[str], log: RunLog) -> subprocess.Popen[bytes]:
    """Start a Flower program in the app's folder and in its own session, which the terminal's Ctrl-C does not reach.

    Raises:
        RunFailed: If the program is not installed.
    """
    program = shutil.which(command[0], path=launch.env["PATH"])
    if program is None:
        raise RunFailed(f"{command[0]} is not installed beside {sys.executable}; {build_install_command('sim')}")
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


def poll_and_sleep(launch: Launch, seconds: float) -> None:
    launch.on_poll()
    time.sleep(seconds)


@contextlib.contextmanager
def end_processes_on_exit(launch: Launch) -> Iterator[None]:
    """Terminate all processes of the run when the block ends, also if this process is killed inside it.

    SIGTERM and SIGHUP are turned into an exception first.
    """
    mark = launch.env[RUN_MARK]
    with replace_handlers({signal.SIGTERM: _exit, signal.SIGHUP: _exit}), _watch_this_process(mark):
        try:
            yield
        finally:
            # A second Ctrl-C must not interrupt the cleanup, which takes a few seconds at most.
            with replace_handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)):
                _end_processes(mark, launch.started)


@contextlib.contextmanager
def _watch_this_process(mark: str) -> Iterator[None]:
    """Let a process of its own session end the marked processes if this one ends inside the block.

    A parent-death signal would reach the SuperLink alone: its helpers and Ray's programs have sessions of their own.
    """
    watch = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, mark],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,  # closed by the kernel when this process ends, however that happens
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watch.kill()
        watch.wait()
        if watch.stdin is not None:
            watch.stdin.close()


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _end_processes(mark: str, started: Collection[subprocess.Popen[bytes]] = ()) -> None:
    """Terminate the run's processes, and kill those that are still alive after five seconds."""
    deadline = time.monotonic() + END_WITHIN_S
    # Some of Ray's programs set their title by overwriting their environment, and the mark with it: these are found as
    # descendants. Any marked process may do so at any moment, so the ids of marked ones are remembered as well.
    family = _find_descendants(_find_run_processes(started, mark))
    send_signal(signal.SIGTERM, _find_run_processes(started, mark))
    while _find_run_processes(started, mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    while left := _find_run_processes(started, mark) | _find_living(family):
        send_signal(signal.SIGKILL, left)
        time.sleep(0.05)


def send_signal(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _find_descendants(pids: Collection[int]) -> dict[int, int]:
    """Return ``pids`` and their live descendants with their start times, because the kernel reuses process ids."""
    processes = {
        int(folder.name): born for folder in Path("/proc").glob("[0-9]*") if (born := _read_birth(folder)) is not None
    }
    family = find_descendants({pid: parent for pid, (parent, _) in processes.items()}, pids).union(pids)
    return {pid: processes[pid][1] for pid in family & processes.keys()}


def find_descendants(parents: Mapping[int, int], roots: Collection[int]) -> set[int]:
    """Return all descendants of the process ids ``roots``, without the roots, given each process's parent."""
    family = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family.difference(roots)


def has_living_child(pid: int) -> bool:
    """Return whether a process has a child that is no zombie; False without Linux's list of children."""
    children: list[str] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            children += path.read_text().split()
    return any(_read_birth(Path("/proc") / child) is not None for child in children)


def _find_living(family: Mapping[int, int]) -> set[int]:
    """Return the processes of ``family`` that are still alive."""
    now = {pid: _read_birth(Path("/proc") / str(pid)) for pid in family}
    return {pid for pid, born in now.items() if born is not None and born[1] == family[pid]}


def _read_birth(folder: Path) -> tuple[int, int] | None:
    """Return a live process's parent and start time, in clock ticks since boot; None if it has ended or is a zombie."""
    try:
        state, parent, *rest = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else (int(parent), int(rest[17]))


def _find_run_processes(started: Collection[subprocess.Popen[bytes]], mark: str) -> set[int]:
    """Return the run's live processes; without /proc only those started directly, whose helpers end with them."""
    own = {process.pid for process in started if process.poll() is None}
    return own | find_marked_processes(mark)


def find_marked_processes(mark: str) -> set[int]:
    """Return the live processes, zombies excluded, whose environment carries the mark of a run."""
    wanted = f"{RUN_MARK}={mark}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may end between listing and reading; other users' processes cannot be read and are not part of the
        # run.
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _end_processes(sys.argv[1])
