"""The documents name files that exist, and every benchmark is quoted by one."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedge.experiment import Experiment

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedge", "clients", "server", "experiments", "benchmarks", "ansible", "tests", "docs")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OWN_PATH = re.compile(r"`((?:fedge|server|experiments|clients|benchmarks|tests|ansible|docs)/[\w./-]+)`")
MAX_WORDS = 45_000
"""Of all pages under ``docs``, code and tables included, without what is generated; it may only fall."""
FIGURES = re.compile(r"<!-- figures: .*?<!-- end of figures -->", re.DOTALL)
BLOCK = re.compile(r"^( *)```(python|yaml)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"`([a-z_]\w*\.py)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_in_documents_exist(document):
    text = document.read_text(encoding="utf-8")
    missing = [path for path in OWN_PATH.findall(text) if not (ROOT / path).exists() and "ROLE" not in path]
    assert not missing


def test_modules_named_in_the_contributors_page_exist():
    names = {path.name for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    text = (ROOT / "docs/how-to/contributing.md").read_text(encoding="utf-8")
    assert not sorted(set(FILE_NAME.findall(text)) - names)


def test_every_benchmark_backs_a_page():
    programs = runpy.run_path(str(ROOT / "benchmarks/figures.py"))["list_programs"]()
    assert len(programs) > 20
    assert [name for name, (summary, pages) in programs.items() if not (summary and pages)] == []


def test_the_manual_does_not_grow():
    pages = [FIGURES.sub("", path.read_text(encoding="utf-8")) for path in (ROOT / "docs").rglob("*.md")]
    words = [word for page in pages for word in page.split() if any(map(str.isalnum, word))]
    assert len(words) <= MAX_WORDS


def test_the_readme_fits_two_screens_and_names_every_tutorial():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    assert [
        path.name for path in (ROOT / "docs" / "tutorials").glob("*.md") if f"tutorials/{path.name}" not in text
    ] == []


def list_blocks(document: Path, language: str) -> Iterator[str]:
    for indent, name, block in BLOCK.findall(document.read_text(encoding="utf-8")):
        if name == language:
            yield re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)


def is_found(module: str, name: str) -> bool:
    """Whether a name can be imported from a module of this project."""
    found = importlib.import_module(module)
    return hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_documents_parses_and_imports_what_exists(document):
    missing = []
    for block in list_blocks(document, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in PACKAGES:
                names = [one.name for one in node.names]
                missing += [f"{node.module}.{name}" for name in names if not is_found(str(node.module), name)]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_experiments_in_documents_have_known_keys_and_allowed_values(document):
    jsonschema = pytest.importorskip("jsonschema")
    schema: dict[str, Any] = json.loads((ROOT / "docs/schemas/experiment.json").read_text(encoding="utf-8"))
    keys, wrong = set(Experiment.model_fields), []
    for block in list_blocks(document, "yaml"):
        content = yaml.safe_load(block)
        if isinstance(content, dict) and set(content) <= keys:
            errors = jsonschema.Draft202012Validator(schema).iter_errors({"fleet": ["nano"], **content})
            wrong += [f"{error.json_path}: {error.message}" for error in errors]
    assert wrong == []
