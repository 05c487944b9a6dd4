"""The manual as a site: it builds strictly without the network; its reference has all that the code offers."""

from __future__ import annotations

import dataclasses
import os
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import fedge
from experiments.cli.main import app
from experiments.cli.user_files import load_record
from experiments.spec.yaml_schema import describe_keys
from server.dashboard.prometheus_metrics import build_families
from server.dashboard.views import FleetView

ROOT = Path(__file__).resolve().parents[1]
REMOTE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>")


@cache
def load_generator() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "reference_pages.py"))


@cache
def read_page(name: str) -> str:
    pages: dict[str, str] = load_generator()["build_pages"]()
    return pages[f"reference/{name}.md"]


@pytest.mark.parametrize("kind", ["experiment", "sweep", "board", "plan"])
def test_the_reference_has_every_key_of_a_yaml_file_with_its_meaning(kind):
    rows = [line for line in read_page("keys").splitlines() if line.startswith("| `")]
    for key in describe_keys(load_record(kind)):
        assert any(row.startswith(f"| `{key.key}` |") for row in rows), key.key
        assert key.meaning, key.key


def test_the_reference_has_every_command_with_every_option():
    sections = dict(
        re.findall(r"^## `(fedge [^`]+)`\n(.*?)(?=^## |\Z)", read_page("commands"), re.MULTILINE | re.DOTALL)
    )

    def check(name: str, command: Any) -> None:
        if hasattr(command, "commands"):
            for word, inner in command.commands.items():
                check(f"{name} {word}", inner)
        else:
            options = [one.opts[0] for one in command.params if one.opts[0].startswith("--")]
            assert [one for one in options if f"`{one}" not in sections[name] and one != "--help"] == [], name

    check("fedge", typer.main.get_command(app))
    assert len(sections) > 50


def test_the_reference_has_every_column_of_every_table_with_its_meaning():
    for name, record in load_generator()["TABLES"].items():
        columns = load_generator()["read_columns"](record)
        assert [one.name for one in dataclasses.fields(record)] == [name for names, _, _ in columns for name in names]
        assert [names for names, _, meaning in columns if not meaning] == [], name


def test_the_reference_has_every_metric_and_every_function_of_the_package():
    assert [
        one.name for one in build_families(FleetView(), 0.0) if f"| `{one.name}` |" not in read_page("metrics")
    ] == []
    assert [name for name in fedge.__all__ if f"heading: fedge.{name}\n" not in read_page("api")] == []


@pytest.mark.slow
def test_the_site_builds_strictly_and_its_pages_load_nothing_from_other_hosts(tmp_path):
    pytest.importorskip("material", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    found = {page.name: REMOTE.findall(page.read_text(encoding="utf-8")) for page in pages}
    assert {name: links for name, links in found.items() if links} == {}
