"""The boards' lock: exact, as tested, without what trains or plots; the oldest board takes it from wheels alone."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_ON_BOARDS = {"pyarrow", "torch", "torchvision", "ray", "plotly", "scikit-learn", "scipy", "pytest", "mypy", "ruff"}
GLIBC = (17, 24, 26, 27)
"""Ubuntu 18.04's, 2.27, and those before it for which wheels are built."""
OWNERS = """
import importlib.metadata, sys
import clients.app, fedge.client.real

loaded = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
for one in importlib.metadata.distributions():
    folder = str(one.locate_file("")).rstrip("/")
    if any(f"{folder}/{file}" in loaded for file in one.files or ()):
        print(one.name)
"""
"""Prints whose files were loaded. By files, not by names: several packages share a name, such as ``google``."""


@cache
def _pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pins = [line.removesuffix(" \\").partition("==") for line in lines if line[:1].isalpha()]
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, _, version in pins}


def test_a_board_gets_the_versions_that_the_project_is_tested_with():
    board = _pins("ansible/board.lock")

    assert board
    assert {name: _pins("requirements.lock").get(name) for name in board} == board


def test_a_board_gets_what_the_client_needs_and_nothing_that_trains_or_plots():
    board = set(_pins("ansible/board.lock"))

    assert {"flwr", "numpy", "pydantic", "pyyaml", "uv"} <= board
    assert not board & NOT_ON_BOARDS


def test_every_line_is_a_plain_exact_pin():
    lines = (ROOT / "ansible" / "board.lock").read_text(encoding="utf-8").splitlines()

    assert not [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)]


def test_the_client_is_imported_without_anything_that_is_not_in_the_boards_lock():
    """In a process of its own; what a predictor or a data set loads later is told in docs/how-to/provisioning.md."""
    pytest.importorskip("flwr", reason="the ClientApp is Flower's")
    said = subprocess.run([sys.executable, "-c", OWNERS], cwd=ROOT, capture_output=True, text=True, check=True)
    owners = {re.sub(r"[-_.]+", "-", name).lower() for name in said.stdout.split()}

    assert {"flwr", "protobuf"} <= owners
    assert owners <= set(_pins("ansible/board.lock")) | {
        "fedge",
        "setuptools",
        "pip",
        "coverage",
    }  # the last when coverage is measured


@pytest.mark.long
def test_the_oldest_board_can_install_it_from_wheels_alone(tmp_path):
    """aarch64, glibc 2.27, Python 3.11: every pin has a wheel that such a board takes, and they need nothing else."""
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in GLIBC] + ["--platform=manylinux2014_aarch64"]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--only-binary=:all:",
        "--python-version=3.11",
        "--implementation=cp",
    ]
    wanted = [*pip, *platforms, "--dest", str(tmp_path), "--retries=1", "-r", str(ROOT / "ansible" / "board.lock")]
    said = subprocess.run(wanted, capture_output=True, text=True, check=False)
    if re.search(r"NewConnectionError|NameResolution|Temporary failure|ConnectTimeout", said.stderr):
        pytest.skip(f"no network to fetch wheels over: {said.stderr.strip().splitlines()[-1]}")

    assert said.returncode == 0, said.stderr
    names = {re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower() for path in tmp_path.iterdir()}
    assert names == set(_pins("ansible/board.lock"))
