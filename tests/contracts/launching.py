"""How tests launch the ``fedge`` command: in this process for speed, as a process where signals matter."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments.cli import main

SMALL = """\
name: small
seed: 3
rounds: 1
backend: local
fleet: [{device: nano, count: 1}, {device: xavier-nx, count: 1}]
workload: {local_epochs: 0.2}
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The one line on stderr; fails when there is more, or a traceback."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


@dataclass(frozen=True, slots=True)
class Launcher:
    """Runs ``fedge`` with its command line in this process."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Outcome:
        self.monkeypatch.setattr(sys, "argv", ["fedge", *map(str, arguments)])
        self.capsys.readouterr()
        code = 0
        try:
            main.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        written = self.capsys.readouterr()
        return Outcome(code, written.out, written.err)


def started(*arguments: str | Path) -> subprocess.Popen[str]:
    """``fedge`` as a process whose output can be read line by line."""
    command = [sys.executable, "-m", "experiments.cli.main", *map(str, arguments)]
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=root)
