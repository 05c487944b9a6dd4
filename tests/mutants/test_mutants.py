"""Mutants are Python that differs from the source, and a test that checks a behaviour notices its change."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from contracts.processes import list_commands
from mutants.source_mutants import draw_mutants

SOURCE = '''"""A module."""
LIMIT = 3


def is_over(value: int = 0) -> bool:
    if value > LIMIT:  # µ: columns count bytes
        value = value + 1
        return not value == 9
    return False
'''
GOOD = """import subprocess
from fedge.limit import is_over

def test_limit():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    assert [is_over(value) for value in (3, 4, 8)] == [False, True, False]
"""


def test_every_kind_of_place_is_changed():
    mutants = draw_mutants({"limit.py": SOURCE}, 100, Random(0))

    assert sorted(mutant.change.split(" -> ")[0] for mutant in mutants) == sorted([
        *("3", "0", "1", "9", "False", "value > LIMIT", "value + 1", "not value == 9", "value == 9"),
        *("value = value + 1", "return not value == 9", "return False"),
    ])  # fmt: skip
    assert [set(mutant.lines) for mutant in mutants if mutant.line == 2] == [{6}]  # where the constant is used


@pytest.mark.parametrize("package", ["decisions", "telemetry", "powerd"])
def test_every_mutant_is_python_and_differs_from_its_source(project_root, package):
    paths = (project_root / "fedge" / package).rglob("*.py")
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(paths)}

    mutants = draw_mutants(sources, 60, Random(package))

    assert len(mutants) == 60
    for mutant in mutants:
        assert ast.dump(ast.parse(mutant.text)) != ast.dump(ast.parse(sources[mutant.file])), mutant.change


@pytest.fixture
def tree(tmp_path):
    """A project of one module and its test."""
    files = {
        "fedge/limit.py": SOURCE,
        "tests/test_limit.py": GOOD,
        "pyproject.toml": '[tool.pytest]\npythonpath=["."]\n',
    }
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text, encoding="utf-8")
    return tmp_path / "tree"


def start_mutants(tree: Path) -> subprocess.Popen[str]:
    program, temporary = Path(__file__).with_name("run_mutants.py"), tree.parent / "temporary"
    temporary.mkdir()
    env = os.environ | {"TMPDIR": str(temporary), "MUTANTS_OF": str(tree)}
    command = [sys.executable, str(program), "fedge", "--tests", "tests"]
    return subprocess.Popen(command, cwd=tree, env=env, stdout=subprocess.PIPE, text=True)


def assert_nothing_left(tree: Path) -> None:
    assert list_commands(f"MUTANTS_OF={tree}") == []
    assert list((tree.parent / "temporary").iterdir()) == []


@pytest.mark.slow
def test_survivors_are_named_and_nothing_of_the_tree_changes(tree):
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}

    mutants = start_mutants(tree)
    text = mutants.communicate(timeout=300)[0]

    assert mutants.returncode == 0
    assert " survived: fedge/limit.py:5: 0 -> " in text  # no test leaves the value out
    assert "limit.py:6: value > LIMIT" not in text
    assert text.splitlines()[-1].split()[:2] == ["all", "12"]
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before
    assert_nothing_left(tree)


@pytest.mark.slow
def test_ctrl_c_ends_it_with_the_figures_so_far(tree):
    mutants = start_mutants(tree)
    assert mutants.stdout.readline().startswith("1 tests passed in ")
    mutants.send_signal(signal.SIGINT)
    text = mutants.communicate(timeout=60)[0]

    assert mutants.returncode == 130
    assert "interrupted\n" in text
    assert text.splitlines()[-1].startswith("all")
    assert_nothing_left(tree)


@pytest.mark.slow
def test_a_test_that_fails_without_a_mutant_is_named_in_one_line(tree):
    (tree / "tests/test_limit.py").write_text("def test_it():\n    assert False\n", encoding="utf-8")

    mutants = start_mutants(tree)
    text = mutants.communicate(timeout=60)[0]

    assert mutants.returncode == 2
    assert text == "A test fails without a mutant: tests/test_limit.py::test_it\n"
    assert_nothing_left(tree)
