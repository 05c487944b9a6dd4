"""How tests launch the ``fedge`` command: in this process for speed, as a process where signals matter."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from experiments.cli import main
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import BadInput
from fedge.experiment import Experiment

SMALL = """\
name: small
seed: 3
rounds: 1
backend: local
fleet: [{device: nano, count: 1}, {device: xavier-nx, count: 1}]
workload: {local_epochs: 0.2}
"""


FEDGE = (sys.executable, "-m", "experiments.cli.main")
"""The command as a process."""


class Outcome(NamedTuple):
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


def run_here(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """Run ``fedge`` in this process, without signs of life, which a slow machine would mix with its messages; its exit
    code.
    """
    monkeypatch.setattr(main, "show_signs_of_life", lambda _: nullcontext())
    monkeypatch.setattr(sys, "argv", ["fedge", *map(str, arguments)])
    try:
        main.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@dataclass(frozen=True, slots=True)
class Launcher:
    """Runs ``fedge`` with its command line in this process."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Outcome:
        self.capsys.readouterr()
        code = run_here(self.monkeypatch, *arguments)
        written = self.capsys.readouterr()
        return Outcome(code, written.out, written.err)


def refusal(check: Callable[[Experiment], object], folder: Path, *overrides: str) -> str:
    """The message with which a check refuses the small experiment; empty when it is allowed."""
    path = folder / "exp.yaml"
    path.write_text(SMALL, encoding="utf-8")
    try:
        check(load_experiment(path, overrides))
    except BadInput as error:
        return str(error)
    return ""


def started(*arguments: str | Path) -> subprocess.Popen[str]:
    """``fedge`` as a process whose output can be read line by line."""
    command = [*FEDGE, *map(str, arguments)]
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=root)
