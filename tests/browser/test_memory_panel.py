"""What the board page tells of a board with too little memory: one line in its history, none where nothing changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from browser.chromium import Page
from browser.test_board_page import OPEN, served
from contracts.board_runs import begin, client, finish, round_of

pytestmark = pytest.mark.slow


def test_a_boards_history_tells_what_it_lowered(page: Page, tmp_path: Path) -> None:
    tables = begin(tmp_path / "run", 4)
    rows = [client(1, "nano-1", "nano", 1), client(1, "nano-2", "nano", 2)]
    why = "batch 16 -> 8: 1,910 MB predicted, 1,500 MB allowed"
    rows[0] = dataclasses.replace(rows[0], lowered=why, memory_mb=1431.5, memory_limit_mb=1500.0)
    tables.append([*rows, round_of(1, rows)])
    tables.close()
    finish(tmp_path / "run", 1)

    with served(str(tmp_path / "run")) as address:
        page.open(address).wait_for("document.querySelectorAll('.tile').length >= 2")
        page.click('.tile[data-board="nano-1"]')
        page.wait_for(OPEN)
        told = page.evaluate("document.getElementById('p-memory').textContent")
        page.click('.tile[data-board="nano-2"]')
        page.wait_for(f"({OPEN}) === 'nano-2'")
        hidden = page.evaluate("document.getElementById('p-memory').hidden")

    assert told == f"Reduced to fit into memory in round 1: {why}; peak 1,432 MB."
    assert hidden
    assert page.console_errors == []
