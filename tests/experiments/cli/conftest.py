"""The command in this process, for all tests of the command line."""

import pytest
from contracts.launching import Launcher

from fedge.studies import task_pool


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Launcher:
    return Launcher(monkeypatch, capsys)


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies run in this process: Ray takes seconds to start, and the tests of studies show that rows are the same."""
    monkeypatch.setattr(task_pool, "count_cores", lambda: 1)
