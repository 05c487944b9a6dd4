"""A selection that cannot work is refused with what would be right, before anything is written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from contracts.launching import SMALL, refusal

from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.decisions.selection import SELECTORS, load_selector
from fedge.decisions.selection.selector_options import SELECTOR_OPTIONS
from fedge.errors import BadInput
from fedge.types import ClientStatus, SelectionContext

MANUAL = (Path(__file__).resolve().parents[3] / "docs" / "explanation" / "selection.md").read_text(encoding="utf-8")


def said(folder: Path, *overrides: str) -> str:
    return refusal(experiment_checks._check_selection, folder, *overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("selection.name=best", "selection.name: got 'best'; known: all, energy-aware, oort, "),
        ("selection.name=os:sep", "selection.name: got 'os:sep'; a function or a class"),
        ("selection={name: random, options: {d: 3}}", "selection.options.d: got 3; random takes no options"),
        (
            "selection={name: energy-aware, options: {charge: 0.3}}",
            "selection.options.charge: got 0.3; energy-aware takes charge_floor, temperature_c, power_w, ",
        ),
        (
            "selection={name: energy-aware, options: {charge_floor: 30}}",
            "selection.options.charge_floor: got 30; a number from 0 to 1",
        ),
        ("selection={name: tifl, options: {tiers: 1.5}}", "selection.options.tiers: got 1.5; a whole number of at lea"),
        ("selection={name: random, count: 3}", "selection.count: got 3; at most 2, the boards of the fleet"),
        ("selection.over_commit=1.5", "selection.over_commit: got 1.5; 1, or a selection.count: without one every"),
        ("selection.count=1", "selection.count: got 1; none, because `all` takes every board, or a selection.name "),
    ],
)
def test_a_selection_that_cannot_work_is_refused(tmp_path: Path, override: str, message: str) -> None:
    assert said(tmp_path, override).startswith(message)


@pytest.mark.parametrize(
    "selection",
    [
        "{name: random, count: 1, over_commit: 1.5}",
        "{name: all, count: 2}",
        "{name: power-of-choice, count: 1, options: {candidates: 2}}",
        "{name: oort}",
        "{name: energy-aware, options: {power_w: 30}}",
        "{name: planner, count: 2}",
    ],
)
def test_a_selection_that_works_is_allowed(tmp_path: Path, selection: str) -> None:
    assert said(tmp_path, f"selection={selection}") == ""


def test_the_whole_check_looks_at_the_selection(tmp_path: Path) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text(SMALL, encoding="utf-8")

    with pytest.raises(BadInput, match=r"selection.count: got 9; at most 2"):
        experiment_checks.check_experiment(load_experiment(path, ["selection={name: random, count: 9}"]))


def test_every_selector_and_option_stands_in_the_manual_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)`.*?\|.*?\|(.*)\|$", MANUAL, re.MULTILINE))

    assert list(rows) == list(SELECTORS)
    for selector, options in SELECTOR_OPTIONS.items():
        for name, option in options.items():
            default = "" if option.default is None else f"{option.default:g}"
            assert f"`{name}` ({default}" in rows[selector]


def test_every_example_of_the_manual_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "my_selectors.py").write_text(
        re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL)[0], encoding="utf-8"
    )
    path = tmp_path / "exp.yaml"
    examples = re.findall(r"```yaml\n(.*?)```", MANUAL, re.DOTALL)
    for example in examples:
        path.write_text(f"fleet: [{{device: nano, count: 40}}]\n{example}", encoding="utf-8")
        experiment_checks._check_selection(load_experiment(path))

    assert len(examples) >= len(SELECTORS)
    own = load_selector("my_selectors:emptiest_last")
    told = [ClientStatus("a", charge=0.5), ClientStatus("b"), ClientStatus("c", charge=0.9)]
    assert own(told, SelectionContext(1, 2), np.random.default_rng(1)).boards == ("b", "c")
