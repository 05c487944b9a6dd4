"""The command in this process, for all tests of the command line."""

from __future__ import annotations

import pytest
from contracts.launching import Launcher


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Launcher:
    return Launcher(monkeypatch, capsys)
