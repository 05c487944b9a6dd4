"""What the board page tells in a board's history of memory and its service: one line, none where nothing changed."""

import dataclasses

import pytest
from browser.test_board_page import OPEN, served
from contracts.board_runs import begin, client, finish, round_of

pytestmark = pytest.mark.slow

WHY = "batch 16 -> 8: 1,910 MB predicted, 1,500 MB allowed"
LOWERED = {"lowered": WHY, "memory_mb": 1431.5, "memory_limit_mb": 1500.0}
SERVED = {
    "requests": 320,
    "late_requests": 3,
    "dropped_requests": 1,
    "latency_p99_s": 0.75,
    "latency_budget_s": 0.8,
    "train_steps_per_s": 12.5,
}
SERVICE_LINE = (
    "Service in round 1: 99 % of 320 requests within 0.750 s of 0.800 s, 4 late or dropped; "
    "12.5 training steps per second."
)


@pytest.mark.parametrize(
    ("place", "row", "line"),
    [
        ("p-memory", LOWERED, f"Reduced to fit into memory in round 1: {WHY}; peak 1,432 MB."),
        ("p-service", SERVED, SERVICE_LINE),
    ],
)
def test_a_boards_history_tells_of_that_board_alone(page, tmp_path, artefacts, place, row, line):
    tables = begin(tmp_path / "run", 4)
    rows = [dataclasses.replace(client(1, "nano-1", "nano", 1), **row), client(1, "nano-2", "nano", 2)]
    tables.append([*rows, round_of(1, rows)])
    tables.close()
    finish(tmp_path / "run", 1)

    with served(str(tmp_path / "run")) as address:
        page.open(address).wait_for("document.querySelectorAll('.tile').length >= 2")
        page.click('.tile[data-board="nano-1"]')
        page.wait_for(OPEN)
        told = page.evaluate(f"document.getElementById('{place}').textContent")
        page.screenshot(artefacts / f"board-{place}.png")
        page.click('.tile[data-board="nano-2"]')
        page.wait_for(f"({OPEN}) === 'nano-2'")
        hidden = page.evaluate(f"document.getElementById('{place}').hidden")

    assert told == line
    assert hidden
    assert page.console_errors == []
