"""A worker in threads of this process, and a client of it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for the fakes beside the tests

from threaded_worker import LIMIT_S, PLAIN, ThreadedWorker

from fedge.worker.worker_client import WorkerClient


@pytest.fixture
def worker(tmp_path):
    return ThreadedWorker(tmp_path, [tmp_path])


@pytest.fixture
def client(worker):
    with WorkerClient(worker.path, LIMIT_S) as client:
        yield client
        if not worker.runner.broken:
            client.cancel()
            client.unserve()  # its thread lives on


@pytest.fixture
def loaded(client):
    """A client whose worker has the plain task loaded."""
    client.load(*PLAIN)
    return client
