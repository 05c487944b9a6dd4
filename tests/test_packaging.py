"""The packaging, checked: the lock is exact and plain and fits every declared range; a node gets only what it runs."""

import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_layers import HOMES

from fedge.extras import LIBRARIES

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("fedge", "clients", "server")
SHIPPED_KINDS = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
"""The kinds of files that Flower puts into an app bundle."""
LOCKS = ("requirements.lock", "torch.lock")
ON_BOARDS = ("jetson",)
"""Extras that are installed on boards only, in the versions that the boards need."""


@cache
def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@cache
def _lock_lines() -> tuple[str, ...]:
    """Each package of both locks in one line, with its hashes."""
    lines = [line for name in LOCKS for line in (ROOT / name).read_text("utf-8").splitlines() if line[:1] != "#"]
    return tuple(" ".join(line.split()) for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line)


def _pins() -> dict[str, str]:
    pins = (line.split()[0].partition("==") for line in _lock_lines())
    return {canonicalize_name(name): version for name, _, version in pins}


def _declared(without: tuple[str, ...] = ()) -> list[Requirement]:
    """Everything that the project file asks for, but the extras ``without``."""
    project = _project()["project"]
    extras = [text for name, texts in project["optional-dependencies"].items() if name not in without for text in texts]
    asked = [Requirement(text) for text in (*extras, *_project()["build-system"]["requires"])]
    return _core() + [found for found in asked if found.name != project["name"]]


def _core() -> list[Requirement]:
    """What is installed without an extra."""
    lines = (ROOT / _project()["tool"]["setuptools"]["dynamic"]["dependencies"]["file"]).read_text("utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_the_lock_holds_plain_exact_pins_only():
    odd = [line for line in _lock_lines() if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line.split()[0])]
    assert not odd, odd


def test_everything_but_torch_and_what_depends_on_it_has_hashes():
    bare = {line.partition("==")[0] for line in _lock_lines() if " --hash=sha256:" not in line}

    assert bare == {"accelerate", "peft", "torch", "torch-pruning", "torchvision"}


def test_the_lock_names_no_address_and_no_local_build():
    assert not [name for name in LOCKS if "://" in (ROOT / name).read_text(encoding="utf-8")]
    assert not [line for line in _lock_lines() if "+" in line]


def test_the_lock_names_each_package_once():
    assert len(_pins()) == len(_lock_lines())


@pytest.mark.parametrize("requirement", _declared(ON_BOARDS), ids=lambda requirement: requirement.name)
def test_a_declared_dependency_is_pinned_within_its_range(requirement):
    version = _pins().get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement.name} is in no lock"
    assert requirement.specifier.contains(version), f"{version} is outside {requirement}"


@pytest.mark.parametrize("extra", ON_BOARDS)
def test_what_is_for_boards_only_is_not_in_the_lock(extra):
    requirements = [Requirement(text) for text in _project()["project"]["optional-dependencies"][extra]]

    assert requirements
    assert not [found.name for found in requirements if canonicalize_name(found.name) in _pins()]


def test_the_version_is_the_same_in_the_code_and_in_the_project_file():
    import fedge

    assert fedge.__version__ == _project()["project"]["version"]


def test_every_dependency_has_its_reason_written_down():
    text = (ROOT / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8").lower()
    assert [found.name for found in _declared() if f"`{found.name.lower()}" not in text] == []


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_library_belongs_to_the_core_or_the_extra_that_its_message_names(library):
    project = _project()["project"]["optional-dependencies"]
    names = {"sklearn": "scikit-learn", "pynvml": "nvidia-ml-py", "jtop": "jetson-stats", "mlflow": "mlflow-skinny"}
    name = canonicalize_name(names.get(library, library))
    if library in LIBRARIES:
        declared = [canonicalize_name(Requirement(text).name) for text in project[LIBRARIES[library][1]]]
        # Starlette comes with FastAPI; TensorRT with a board's JetPack.
        assert name in declared or library == "starlette"
    else:
        assert name in {canonicalize_name(found.name) for found in _core()} or library == "tensorrt"


def test_flwr_run_finds_nothing_to_install_for_every_run():
    assert "dependencies" not in _project()["project"]
    assert not [name for name in _bundle() if name.startswith("requirements")]


def _bundle() -> set[str]:
    build = pytest.importorskip("flwr.cli.build", reason="the bundle's rules are Flower's")
    files: dict[str, bytes | Path] = {
        path.relative_to(ROOT).as_posix(): path
        for folder in (*SHIPPED, "experiments", "tests", "docs", "benchmarks", "ansible")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    files |= {path.name: path for path in ROOT.iterdir() if path.is_file()}
    return set(build.get_filtered_fab_paths(files, _project()))


@pytest.mark.slow
def test_flwr_run_can_ask_setuptools_about_a_bundle(tmp_path):
    for name in (*_bundle(), "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    program = "import setuptools.build_meta as backend; backend.prepare_metadata_for_build_editable('.')"

    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "Requires-Dist: numpy" not in next(tmp_path.glob("*.dist-info/METADATA")).read_text("utf-8")


def test_a_node_gets_the_library_and_the_programs_and_nothing_else():
    assert {path.split("/")[0] for path in _bundle()} == {*SHIPPED, "LICENSE"}


def test_a_node_gets_every_file_that_the_library_reads():
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in SHIPPED
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SHIPPED_KINDS and path.is_file()
    }
    assert wanted - _bundle() == set()
