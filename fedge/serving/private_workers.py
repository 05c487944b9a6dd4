"""Private workers: resident trainers started by this program, which end with it in any case."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedge.child_processes import THREAD_VARIABLES, end_process
from fedge.errors import RunFailed
from fedge.worker.worker_client import WorkerClient, WorkerError

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 120.0
# Timeout of a start: slow boards need long to import torch. Default.
END_LIMIT_S = 10.0
# Timeout of an end: a supervisor takes at most 2 s to end its trainer.
LAUNCHER = """
import ctypes, json, os, runpy, signal, sys
wanted = json.loads(sys.argv.pop(1))
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)
if os.getppid() != wanted["parent"]:
    sys.exit(0)
os.nice(wanted["nice"])
sys.path.insert(0, wanted["root"])
runpy.run_module("fedge.worker", run_name="__main__", alter_sys=True)
"""
"""Program that ends with its parent (PR_SET_PDEATHSIG of prctl(2)) and sets its own priority."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a private worker.

    Attributes:
        nice: Added to this program's niceness; below 0 for a higher priority, see nice(2).
        threads: Torch threads; None for the machine's default.
    """

    name: str
    device: str = "auto"
    nice: int = 0
    threads: int | None = None


@contextlib.contextmanager
def start_workers(wishes: tuple[WorkerSettings, ...]) -> Iterator[dict[str, WorkerClient]]:
    """Start private workers and yield their clients by name; the processes end with the context.

    Raises:
        RunFailed: If a worker does not start.
    """
    with tempfile.TemporaryDirectory(prefix="fedge-") as folder, contextlib.ExitStack() as stack:
        started = {wish.name: stack.enter_context(_start_process(wish, Path(folder))) for wish in wishes}
        yield {
            name: stack.enter_context(_connect_client(process, Path(folder), name)) for name, process in started.items()
        }


@contextlib.contextmanager
def _start_process(wish: WorkerSettings, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the worker's supervisor in a process group of its own, so that Ctrl-C reaches this program only.

    It stays in the same session, because Linux may schedule by sessions, and niceness then counts only within one.
    """
    launch = json.dumps({"nice": wish.nice, "parent": os.getpid(), "root": str(ROOT)})
    command = [sys.executable, "-c", LAUNCHER, launch, "--socket", str(_socket_path(folder, wish.name))]
    # ``fedge`` limits its own threads; workers must not inherit the limits.
    env = {key: value for key, value in os.environ.items() if key not in THREAD_VARIABLES}
    if wish.threads is not None:
        env |= dict.fromkeys(THREAD_VARIABLES, str(wish.threads))
    with _log_path(folder, wish.name).open("wb") as log:
        process = subprocess.Popen(
            [*command, "--device", wish.device],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            process_group=0,
        )
    try:
        yield process
    finally:
        end_process(process, END_LIMIT_S)


@contextlib.contextmanager
def _connect_client(process: subprocess.Popen[bytes], folder: Path, name: str) -> Iterator[WorkerClient]:
    client = WorkerClient(str(_socket_path(folder, name)))
    ends_s = time.monotonic() + START_LIMIT_S
    while not _is_ready(client):
        if process.poll() is not None or time.monotonic() > ends_s:
            said = _log_path(folder, name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RunFailed(f"the worker {name} does not start: {said[-1] if said else 'it says nothing'}")
        time.sleep(0.05)
    with client:
        yield client


def _is_ready(client: WorkerClient) -> bool:
    """Return whether the worker replies; its first load waits for torch and reports if it is missing."""
    try:
        client.status()
    except WorkerError:
        return False
    return True


def _socket_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.sock"


def _log_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"
