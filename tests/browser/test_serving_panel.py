"""What the board page tells of a board's standing inference service: one line in its history, none without one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from browser.chromium import Page
from browser.test_board_page import OPEN, served
from contracts.board_runs import begin, client, finish, round_of

pytestmark = pytest.mark.slow

SERVED = {
    "requests": 320,
    "late_requests": 3,
    "dropped_requests": 1,
    "latency_p99_s": 0.75,
    "latency_budget_s": 0.8,
    "train_steps_per_s": 12.5,
}


def test_a_boards_history_tells_what_its_service_did(page: Page, tmp_path: Path, artefacts: Path) -> None:
    tables = begin(tmp_path / "run", 4)
    rows = [client(1, "nano-1", "nano", 1), client(1, "nano-2", "nano", 2)]
    rows[0] = dataclasses.replace(rows[0], **SERVED)  # type: ignore[arg-type]
    tables.append([*rows, round_of(1, rows)])
    tables.close()
    finish(tmp_path / "run", 1)

    with served(str(tmp_path / "run")) as address:
        page.open(address).wait_for("document.querySelectorAll('.tile').length >= 2")
        page.click('.tile[data-board="nano-1"]')
        page.wait_for(OPEN)
        told = page.evaluate("document.getElementById('p-service').textContent")
        page.screenshot(artefacts / "board-serving.png")
        page.click('.tile[data-board="nano-2"]')
        page.wait_for(f"({OPEN}) === 'nano-2'")
        hidden = page.evaluate("document.getElementById('p-service').hidden")

    assert told == (
        "Service in round 1: 99 % of 320 requests within 0.750 s of 0.800 s, 4 late or dropped; "
        "12.5 training steps per second."
    )
    assert hidden
    assert page.console_errors == []
