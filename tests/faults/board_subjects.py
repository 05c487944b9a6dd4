"""A board's programs: worker, its trainer, and the power daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from contracts.processes import wait_for
from contracts.running_powerd import LIMIT_S, Running, board_root, lowest, made_up_for, state_of
from faults.fault_points import KILL, STOP, TERMINATE, Attack, require
from faults.run_subjects import SIGNALS
from faults.warm_commands import ROOT

from fedge.powerd.powerd_client import PowerdError
from fedge.worker.worker_client import WorkerClient, WorkerError

DATA = {"synthetic": {"samples": 64, "channels": 3, "side": 32, "classes": 10}}
TRAINING = {"seed": 5, "options": {"steps": 30, "batch_size": 8, "learning_rate": 0.05}}
NEW_WORKER_S = 600.0
BOARDS = ("nano", "xavier-nx", "agx-orin-jp6")


class RealWorker:
    """A worker with torch on a socket of its own; ``start`` it as often as one likes."""

    def __init__(self, folder: Path) -> None:
        self.path, self._log = str(folder / "own" / "w.sock"), folder / "worker.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "fedge.worker", "--socket", self.path]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        wait_for(self.status, self._log, NEW_WORKER_S)

    def status(self) -> dict[str, Any] | None:
        with suppress(WorkerError):
            return WorkerClient(self.path).status()
        return None

    def trainer(self) -> int:
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="utf-8")
        return int(children.split()[0])

    def train(self) -> dict[str, np.ndarray]:
        """Return the model of the training that all points try."""
        with WorkerClient(self.path, NEW_WORKER_S) as client:
            client.load({"builtin": "synthetic-cnn"}, DATA)
            return dict(client.train(TRAINING, steps=30, finish=True)[1])

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


@contextmanager
def open_worker(scratch: Path, victim: str = "worker") -> Iterator[Attack]:
    """The worker, or its trainer, that is disturbed while it trains."""
    with tempfile.TemporaryDirectory(prefix="fw") as short, ExitStack() as scope:
        worker = RealWorker(Path(short))
        scope.callback(worker.end)
        worker.start()
        whole = worker.train()
        begun_s = time.monotonic()
        worker.train()
        warm_s = time.monotonic() - begun_s

        def attack(chance: Random, folder: Path, fault: str) -> bool:
            if worker.process is None or worker.process.poll() is not None:
                worker.start()
            ended: list[object] = []
            job = threading.Thread(target=lambda: ended.append(try_training(worker)))
            job.start()
            time.sleep(chance.uniform(0.0, warm_s))
            trainer, hit = worker.trainer(), not ended
            target = worker.process.pid if victim == "worker" else trainer
            os.kill(target, SIGNALS.get(fault, signal.SIGSTOP))
            if fault == STOP:
                time.sleep(chance.uniform(0.0, 0.2))
                os.kill(target, signal.SIGCONT) if victim == "worker" else None
            job.join(NEW_WORKER_S)
            require(ended, "who waits for the training is not told")
            check_training(ended[0], whole)
            if victim == "worker" and fault != STOP:
                worker.process.wait(60)
                wait_for(lambda: not is_alive(trainer), "the trainer ends with its worker")
                worker.start()
            wait_for(worker.status, "the worker answers again", NEW_WORKER_S)
            wait_for(lambda: isinstance(again := try_training(worker), dict) and same(again, whole), "the same model")
            return hit

        yield attack


def try_training(worker: RealWorker) -> dict[str, np.ndarray] | WorkerError:
    try:
        return worker.train()
    except WorkerError as error:
        return error


def check_training(ended: object, whole: dict[str, np.ndarray]) -> None:
    """Require the right model, or an error that names its cause."""
    if isinstance(ended, dict):
        require(same(ended, whole), "another model")
    else:
        require(isinstance(ended, WorkerError) and ended.kind in {"died", "unreachable"} and ended.text, repr(ended))


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    return False


@contextmanager
def open_trainer(scratch: Path) -> Iterator[Attack]:
    with open_worker(scratch, "trainer") as attack:
        yield attack


@contextmanager
def open_powerd(scratch: Path) -> Iterator[Attack]:
    """The power daemon while it changes modes."""
    roots = {name: board_root(name, scratch / name, extras=["lock-min"]) for name in BOARDS if make(scratch / name)}
    changes = {name: lowest(root) for name, root in roots.items()}

    def attack(chance: Random, folder: Path, fault: str) -> bool:
        root, change = roots[name := chance.choice(BOARDS)], changes[name]
        before = state_of(root)
        # A kernel's write is done or not; so the daemon on the recorded one kills itself before a write of its own.
        instant = {chance.choice(["die_at_write", "die_at_saving"]): chance.randrange(30)} if fault == KILL else {}
        with Running(root, quick=1, **instant) as one:
            client = one.wait_until_up()
            job = threading.Thread(target=change_endlessly, args=(client, change))
            job.start()
            if fault != KILL:
                time.sleep(chance.uniform(0.0, 0.5))
                one.process.send_signal(SIGNALS.get(fault, signal.SIGSTOP))
            if fault == STOP:
                time.sleep(chance.uniform(0.0, 0.2))
                one.process.send_signal(signal.SIGCONT)
                require(one.process.poll() is None, "it did not go on")
                one.process.terminate()
            code = one.process.wait(LIMIT_S)
            job.join(LIMIT_S)
            client.close()
            require(code == (-signal.SIGKILL if fault == KILL else 0), f"it ended with {code}: {one.log()[-400:]}")
        require(fault == KILL or state_of(root) == before, "it ended without restoring")
        made_up_for(root, before)
        return True

    yield attack


def make(folder: Path) -> bool:
    folder.mkdir()
    return True


def change_endlessly(client: Any, change: Any) -> None:
    """Change modes until the daemon is gone."""
    with suppress(PowerdError):
        while True:
            change(client)


DISTURBED = (KILL, KILL, STOP, TERMINATE)
