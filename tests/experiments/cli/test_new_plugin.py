"""``fedge new``: what it writes passes the contract that it writes, and nothing is overwritten."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from contracts.launching import Launcher

from experiments.cli.user_files import FILES, TEMPLATES

NAME = "of_ours"


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Launcher:
    monkeypatch.chdir(tmp_path)
    return Launcher(monkeypatch, capsys)


@pytest.mark.slow
def test_new_plug_ins_pass_their_own_contracts(fedge, tmp_path):
    tests = [f"test_{kind}_{NAME}.py" for kind in FILES]
    for kind in FILES:
        assert fedge("new", kind, f"{kind}_{NAME}").code == 0
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=prepend", *tests]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)

    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("kind", FILES)
def test_no_name_of_the_template_is_left_in_the_files(kind, fedge, tmp_path):
    said = fedge("new", kind, NAME).out

    written = sorted(tmp_path.iterdir())
    assert [path.stem for path in written] == [NAME, f"test_{NAME}"]
    assert f"pytest --import-mode=prepend test_{NAME}.py" in said
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert f"own_{kind}" not in text
        assert f"Own{kind.capitalize()}" not in text
        assert NAME in text or NAME.replace("_", "-") in text


def test_a_file_that_exists_is_kept(fedge, tmp_path):
    (tmp_path / f"test_{NAME}.py").write_text("mine", encoding="utf-8")

    done = fedge("new", "policy", NAME)

    assert done.code == 2
    assert "got a file that exists" in done.err
    assert [path.name for path in tmp_path.iterdir()] == [f"test_{NAME}.py"]
    assert (tmp_path / f"test_{NAME}.py").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["Mine", "2nd", "a-b", "../up", "test_mine", ""])
def test_a_name_that_cannot_be_imported_is_refused(name, fedge, tmp_path):
    done = fedge("new", "policy", name)

    assert done.code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "what"), [("class", "a keyword of Python"), ("random", "a standard module of Python")]
)
def test_a_name_that_python_has_taken_is_refused_in_one_line(name, what, fedge, tmp_path):
    done = fedge("new", "policy", name)

    assert done.code == 2
    assert f"NAME: got '{name}', {what}; a name of its own, such as my_{name}" in " ".join(done.err.split())
    assert list(tmp_path.iterdir()) == []


def test_every_template_is_in_the_package():
    folder = Path(__file__).resolve().parents[3].joinpath(*TEMPLATES.split("."))
    named = {file for files in FILES.values() for file in files}

    assert {path.name for path in folder.iterdir() if path.name.find("own_") >= 0} == named
