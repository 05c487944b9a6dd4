"""The index of runs in a real browser: rows that go on by themselves, a click to a run's page, a comparison."""

import pytest
from browser.test_board_page import finished, served
from contracts.board_runs import begin, client, round_of

pytestmark = pytest.mark.slow

ROWS = "[...document.querySelectorAll('#rows tr:not([hidden])')].map(row => row.innerText)"


def test_runs_are_listed_searched_opened_and_compared(page, tmp_path, artefacts):
    for name in ("first", "second"):
        finished(tmp_path / "runs" / name, boards=3, rounds=4)
    tables = begin(tmp_path / "runs" / "going", 3)
    with served(str(tmp_path / "runs")) as address:
        page.open(address).wait_for(f"{ROWS}.length === 3")
        assert page.evaluate("document.getElementById('count').textContent") == "3 runs, 1 running"
        rows = [client(1, "nano-1", "nano", 0)]
        tables.append([*rows, round_of(1, rows)])
        page.wait_for(f"{ROWS}.some(row => row.includes('going') && row.includes('1 of '))")
        page.screenshot(artefacts / "runs.png")
        page.evaluate("document.getElementById('search').value = 'second'")
        page.wait_for(f"{ROWS}.length === 1")
        page.evaluate("document.getElementById('search').value = ''")
        page.wait_for(f"{ROWS}.length === 3")
        for name in ("first", "second"):
            page.evaluate(f"document.querySelector('input[aria-label=\"Compare {name}\"]').click()")
        page.click("#compare")
        page.wait_for("document.querySelectorAll('.js-plotly-plot').length > 3")
        assert "2 runs side by side" in page.evaluate("document.title")
        page.open(f"{address}runs/first/").wait_for("document.querySelectorAll('.tile').length === 3")
        page.click(".tile")
        page.wait_for("!document.getElementById('panel').hidden && document.getElementById('panel').dataset.read")
        assert page.console_errors == []
    tables.close()
