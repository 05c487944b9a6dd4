"""A worker whose service runs in threads of this process, with the fake trainer unless told otherwise."""

import os
import socket
import threading

import fake_worker
import numpy as np
import pytest
from fake_worker import LIMIT_S, LONG, NOISE, begin, until

from fedge.worker import trainer_process
from fedge.worker.job_runner import JobRunner
from fedge.worker.worker_client import WorkerError

PLAIN = {"builtin": "plain"}, NOISE
"""The task and the data of a load."""
W = {"w": np.zeros(3, np.float32)}
"""The fake model before its first step."""


class ThreadedWorker:
    """The service, and the exit status with which it ended."""

    def __init__(self, folder, roots=(), parts=None):
        self.path = str(folder / "worker.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        start = trainer_process.TrainerStart(-1, os.getppid(), list(roots), "auto", 0, None)
        self.runner = JobRunner(parts or fake_worker.parts(), [str(root) for root in roots], "auto")
        self.service = trainer_process.JobServer(self.runner, start)
        self.ends = []
        threading.Thread(target=self.service.accept_connections, args=(self.listener,), daemon=True).start()
        threading.Thread(target=lambda: self.ends.append(self.service.run_jobs()), daemon=True).start()

    def raw(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(LIMIT_S)
        connection.connect(self.path)
        return connection


class Background:
    """A call in another thread, and what came of it."""

    def __init__(self, call, *arguments, **fields):
        self._outcome = None
        self._thread = threading.Thread(target=self._run, args=(call, arguments, fields), daemon=True)
        self._thread.start()

    def _run(self, call, arguments, fields):
        try:
            self._outcome = call(*arguments, **fields)
        except WorkerError as error:
            self._outcome = error

    def outcome(self):
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the call does not end"
        return self._outcome


def training(client):
    """A long training under way."""
    job = Background(client.train, begin(), W, steps=LONG)
    until(lambda: (client.status()["job"] or {}).get("done", 0) > 1)
    return job


def error_of(call, *arguments, **fields):
    """The error that a call ends with."""
    with pytest.raises(WorkerError) as caught:
        call(*arguments, **fields)
    return caught.value


def kind_of(call, *arguments, **fields):
    return error_of(call, *arguments, **fields).kind
