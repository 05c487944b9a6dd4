"""The documents name files that exist, and every benchmark is quoted by one."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedge", "clients", "server", "experiments", "benchmarks", "ansible", "tests")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OWN_PATH = re.compile(r"`((?:fedge|server|experiments|clients|benchmarks|tests|ansible|docs)/[\w./-]+)`")
FILE_NAME = re.compile(r"`([a-z_]\w*\.py)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_in_documents_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [path for path in OWN_PATH.findall(text) if not (ROOT / path).exists() and "ROLE" not in path]
    assert not missing


def test_modules_named_in_the_contributors_page_exist() -> None:
    names = {path.name for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    text = (ROOT / "docs/how-to/contributing.md").read_text(encoding="utf-8")
    assert not sorted(set(FILE_NAME.findall(text)) - names)


def test_every_benchmark_backs_a_page() -> None:
    programs = runpy.run_path(str(ROOT / "benchmarks/figures.py"))["list_programs"]()
    assert len(programs) > 20
    assert [name for name, (summary, pages) in programs.items() if not (summary and pages)] == []
