"""Boards that could never take part, and traces that make no sense, are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from contracts.launching import refusal

from experiments.spec import experiment_checks


def said(folder: Path, *overrides: str) -> str:
    return refusal(experiment_checks._check_availability, folder, *overrides)


def traced(folder: Path, *lines: str) -> str:
    """What is said to a trace of the first entry's boards."""
    path = folder / "trace.csv"
    path.write_text("\n".join(("board,on_s,off_s", *lines)), encoding="utf-8")
    return said(folder, "fleet.0={device: nano, count: 2, name: a}", f"fleet.0.availability={{trace: {path}}}")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("availability={on_s: 60}", "fleet[0].availability.off_s: got nothing; both on_s and off_s, or a trace"),
        ("availability={off_s: 60}", "fleet[0].availability.on_s: got nothing; both on_s and off_s"),
        ("availability={}", "fleet[0].availability.on_s: got nothing; both on_s and off_s"),
        ("availability={on_s: 60, off_s: 6, trace: x.csv}", "fleet[0].availability.trace: got "),
        ("availability={trace: /nowhere/x.csv}", "fleet[0].availability.trace: /nowhere/x.csv: got no such file"),
        ("battery={capacity_wh: 9, charge: 0.1, floor: 0.2}", "fleet[0].battery.charge: got 0.1; at least its floor"),
    ],
)
def test_a_board_that_could_never_take_part_is_refused(tmp_path: Path, override: str, message: str) -> None:
    assert said(tmp_path, f"fleet.0.{override}").startswith(message)


@pytest.mark.parametrize(
    "override",
    [
        "availability={on_s: 60, off_s: 6}",
        "battery={capacity_wh: 9}",
        "battery={capacity_wh: 9, charge: 0.1, floor: 0.2, charging_w: 5}",
    ],
)
def test_what_can_work_is_allowed(tmp_path: Path, override: str) -> None:
    assert said(tmp_path, f"fleet.0.{override}") == ""


def test_a_trace_tells_of_every_board_of_its_entry(tmp_path: Path) -> None:
    assert traced(tmp_path, "a-1,0,5", "a-2,3,") == ""


def test_a_board_without_a_line_and_a_bad_line_are_named(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()

    assert traced(tmp_path / "one", "a-1,0,5").endswith(
        "trace.csv: got no line of a-2; a line for every board of the entry"
    )
    assert "trace.csv: line 2, on_s: got 'soon'; a number of seconds" in traced(tmp_path / "two", "a-1,soon,5")
