"""What a board's own Python runs needs nothing newer than Python 3.6."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES = (
    "fedge/__init__.py",
    "fedge/worker",
    "fedge/powerd",
    "tests/fedge/worker",
    "tests/fedge/powerd",
    "tests/contracts/jetsons",
    "tests/contracts/running_powerd.py",
)
"""What .ci/test-vendor runs there, and what its tests import."""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vermin") is None, reason="vermin is not installed; `make setup` installs it"
)


def _violations(*paths: Path) -> str:
    """What vermin finds to need more than Python 3.6, one line each; empty when nothing does."""
    program = "from vermin import main; main()"  # it has no python -m form
    asked = [sys.executable, "-c", program, "-q", "-t=3.6-", "--no-tips", "--eval-annotations", "--violations"]
    done = subprocess.run([*asked, *map(str, paths)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _files() -> list[Path]:
    found = [ROOT / place for place in PLACES]
    return sorted(file for path in found for file in ([path] if path.is_file() else path.rglob("*.py")))


def test_the_floor_of_boards_is_kept():
    assert len(_files()) > 20
    assert _violations(*_files()) == ""


@pytest.mark.parametrize(
    "line",
    [
        "if (n := 3) > 2: pass",
        "def f(a, /): ...",
        "import dataclasses",
        "from __future__ import annotations",
        "import subprocess\nsubprocess.run(['true'], capture_output=True)",
        "import contextlib\ncontextlib.nullcontext()",
        "'abc'.removeprefix('a')",
        "def f(a: list[int]): ...",
    ],
)
def test_what_is_newer_is_found(tmp_path, line):
    planted = tmp_path / "planted.py"
    planted.write_text(line + "\n", encoding="utf-8")
    assert "require" in _violations(planted)
