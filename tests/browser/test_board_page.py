"""The board page in a real browser: its figures are the store's, it is used by keyboard and phone, it stays fluid."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from browser.chromium import Page
from contracts.board_runs import begin, client, finish, play, round_of

from experiments.report.quantities import duration, energy, number, percent
from fedge.telemetry import open_run
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import write_progress

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TILES = "document.querySelectorAll('.tile').length"
FOCUSED = "document.activeElement.dataset.board ?? document.activeElement.id"
SCRIPT = "ScriptDuration"
IN_ORDER = ("summary", "fleet", "timeline-section", "chart-accuracy", "about")
OPEN = "!document.getElementById('panel').hidden && document.getElementById('panel').dataset.read"


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    """``fedge board`` in a process of its own; gives its address."""
    command = [sys.executable, "-m", "experiments.cli.main", "--quiet", "board", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        if not address:
            _, told = process.communicate(timeout=30)
            raise RuntimeError(told)
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0
    assert [line for line in errors.splitlines() if not line.startswith("fedge: note: there is no run in ")] == []


def text(page: Page, selector: str) -> str:
    return str(page.evaluate(f"document.querySelector('{selector}').textContent"))


def asked(folder: Path, sql: str) -> list[dict[str, Any]]:
    with open_run(folder) as run:
        return list(run.query(sql).to_pylist())


def no_sideways_scrolling(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def finished(folder: Path, boards: int = 12, rounds: int = 40) -> Path:
    tables = begin(folder, boards, rounds)
    for number_ in range(1, rounds + 1):
        play(tables, boards, number_)
    tables.close()
    finish(folder, rounds)
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A finished run of 12 boards and 40 rounds: the address of its page, and its folder."""
    folder = finished(tmp_path_factory.mktemp("demo") / "run")
    with served(str(folder)) as address:
        yield address, folder


@pytest.fixture(scope="module")
def going(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A run of 12 boards after its first round, in which four took part and one failed."""
    folder = tmp_path_factory.mktemp("going") / "run"
    tables = begin(folder, 12)
    rows = [client(1, f"nano-{i}", "nano", i, "failed" if i == 2 else "done") for i in range(1, 5)]
    tables.append([*rows, round_of(1, rows)])
    with served(str(folder)) as address:
        yield address, folder


def test_the_figures_of_a_finished_run_equal_those_of_its_store(page, demo, artefacts):
    address, folder = demo
    page.open(address).wait_for(f"{TILES} === 12")
    (last,) = asked(folder, "select * from rounds order by round desc limit 1")
    (spent,) = asked(folder, "select sum(energy_j) as energy_j from clients")
    assert text(page, "#s-accuracy") == percent(last["accuracy"])
    assert text(page, "#s-round") == "40 of 40"
    assert text(page, "#s-time") == duration(last["round_s"])
    assert text(page, "#s-clock") == duration(last["end_s"])
    assert text(page, "#s-energy") == energy(spent["energy_j"])
    assert text(page, "#run-state") == "finished"
    for row in asked(folder, "select * from clients where round = 40"):
        tile = f'.tile[data-board="{row["board"]}"] '
        assert text(page, f"{tile}.watts") == number(row["power_w"], 3, "W")
        assert row["status"] in text(page, f"{tile}.sign")
    page.wait_for("document.querySelectorAll('.lane').length === 12")
    assert len(page.evaluate("[...document.querySelectorAll('.chart .line')].filter(e => e.getAttribute('d'))")) == 3
    page.screenshot(artefacts / "board-finished.png")
    page.prefer(prefers_color_scheme="dark")
    page.screenshot(artefacts / "board-dark.png")
    page.click('.tile[data-board="nano-1"]')
    page.wait_for(OPEN)
    rows = page.evaluate(
        "[...document.querySelectorAll('#p-rounds tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert text(page, "#p-label") == "measured"
    assert text(page, "#p-origin") == "emulated from measured figures (a table); predictions start from estimated ones"
    stored = asked(folder, "select * from clients where board = 'nano-1' order by round desc")
    assert [[row[0], row[6], row[9]] for row in rows] == [
        [str(row["round"]), number(row["power_w"], 3, "W"), energy(row["energy_j"])] for row in stored
    ]
    shares = [abs(row["predicted_step_s"] / row["step_s"] - 1) if row["step_s"] else None for row in stored]
    assert [row[5] for row in rows] == [percent(share) for share in shares]
    page.screenshot(artefacts / "board-history.png")
    assert page.console_errors == []
    assert {url.split("/")[2] for url in page.requests if url.startswith("http")} == {address.split("/")[2]}


def test_the_whole_page_can_be_used_by_keyboard(page, demo):
    address = demo[0]
    page.open(address).wait_for(f"{TILES} === 12")
    for _ in range(12):
        page.press("Tab")
        if page.evaluate(FOCUSED) == "nano-1":
            break
    assert page.evaluate(FOCUSED) == "nano-1"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    for key, board in [
        ("ArrowRight", "nano-2"),
        ("ArrowLeft", "nano-1"),
        ("ArrowLeft", "nano-1"),
        ("End", "agx-orin-64gb-4"),
        ("ArrowDown", "agx-orin-64gb-4"),
        ("Home", "nano-1"),
    ]:
        page.press(key)
        assert page.evaluate(FOCUSED) == board
    columns = page.evaluate("getComputedStyle(document.getElementById('grid')).gridTemplateColumns.split(' ').length")
    page.press("ArrowDown")
    there = page.evaluate("document.activeElement.dataset.board")
    assert page.evaluate(f"[...document.querySelectorAll('.tile')][{columns}].dataset.board") == there
    page.press("Enter")
    assert page.wait_for(OPEN) == there
    assert page.evaluate(FOCUSED) == "p-name"
    page.press("Escape")
    page.wait_for("document.getElementById('panel').hidden")
    assert page.evaluate(FOCUSED) == there
    assert page.console_errors == []


def test_boards_are_found_by_name_kind_and_state(page, going):
    shown = "[...document.querySelectorAll('#grid li:not([hidden]) .tile')].map(t => t.dataset.board)"
    address = going[0]
    page.open(address).wait_for(f"{TILES} === 12")
    page.evaluate("document.getElementById('search').focus()")
    page.type("NX-3")
    page.wait_for(f"{shown}.length === 1")
    assert page.evaluate(shown) == ["xavier-nx-3"]
    choose = "(id, v) => { const s = document.getElementById(id); s.value = v; s.dispatchEvent(new Event('input')); }"
    page.evaluate(f"({choose})('search', '')")
    page.evaluate(f"({choose})('kind', 'nano')")
    assert len(page.evaluate(shown)) == 4
    page.evaluate(f"({choose})('state', 'failed')")
    assert page.evaluate(shown) == ["nano-2"]
    assert text(page, "#counted") == "1 of 12"


def test_the_round_that_goes_on_shows_how_far_its_boards_are(page, going, artefacts):
    address, folder = going
    lanes = "[...document.querySelectorAll('.lane')].map(lane => lane.title)"
    chosen = "document.getElementById('round').selectedOptions[0].textContent"
    page.open(address).wait_for(f"{chosen} === 'round 1'")
    page.wait_for(f"{lanes}.length === 4")
    for board, state, done in [("nano-1", "training", 40), ("nano-3", "done", 200), ("nano-4", "fetching", 0)]:
        write_progress(folder / "live", BoardProgress(board, time.time(), state, round=2, steps=200, steps_done=done))
    page.wait_for(f"{chosen} === 'round 2, running' && {lanes}.length === 3")
    assert page.evaluate(lanes) == [
        "nano-1: training · 40 of 200 steps",
        "nano-4: fetching · 0 of 200 steps",
        "nano-3: done · 200 of 200 steps",
    ]
    assert page.evaluate("document.querySelector('.lane i.work').style.width") == "20%"
    assert text(page, "#timeline-about") == "Round 2 is running: 3 boards have reported, 1 done. Bars: share of steps."
    page.screenshot(artefacts / "board-going.png")
    page.click("#earlier")
    page.wait_for(f"{chosen} === 'round 1' && {lanes}.length === 4")
    write_progress(
        folder / "live", BoardProgress("nano-1", time.time(), "training", round=2, steps=200, steps_done=100)
    )
    page.wait_for("document.querySelector('[data-board=\"nano-1\"] .meter i').style.transform === 'scaleX(0.5)'")
    assert page.evaluate(chosen) == "round 1", "a round that was chosen stays"
    page.click("#later")
    page.wait_for(f"{lanes}[0] === 'nano-1: training · 100 of 200 steps'")
    page.click('.tile[data-board="nano-1"]')
    page.wait_for(OPEN)
    assert text(page, "#p-label") == "emulated"
    assert page.console_errors == []


def test_it_fits_a_phone(page, demo, artefacts):
    address = demo[0]
    page.resize(360, 740, phone=True)
    page.open(address).wait_for(f"{TILES} === 12")
    page.wait_for("document.querySelectorAll('.lane').length === 12")
    assert no_sideways_scrolling(page)
    tops = [f"document.getElementById('{name}').getBoundingClientRect().top" for name in IN_ORDER]
    places = page.evaluate(f"[{', '.join(tops)}]")
    assert places == sorted(places)
    page.screenshot(artefacts / "board-phone.png", whole=True)
    page.click('.tile[data-board="nano-1"]')
    page.wait_for(OPEN)
    assert no_sideways_scrolling(page)
    assert page.evaluate("document.getElementById('panel').scrollWidth <= innerWidth")
    page.screenshot(artefacts / "board-phone-history.png")
    assert page.console_errors == []


def test_names_and_errors_from_outside_are_only_text(page, tmp_path):
    evil = '<img src=x onerror="window.hurt = 1">'
    tables = begin(tmp_path / "run", 1, name=evil)
    rows = [client(1, evil, evil, 0, "failed", error=evil), client(1, "nano-1", "nano", 0)]
    tables.append([*rows, round_of(1, rows)])
    with served(str(tmp_path / "run")) as address:
        page.open(address).wait_for(f"{TILES} === 2")
        page.wait_for("document.querySelectorAll('.lane').length === 2")
        page.evaluate("[...document.querySelectorAll('.tile')].at(-1).click()")
        page.wait_for(OPEN)
        assert text(page, "#p-name") == evil
        assert text(page, "#run-name") == evil
        assert page.evaluate("document.querySelectorAll('img').length + (window.hurt ?? 0)") == 0
        assert page.console_errors == []


def test_a_page_for_others_asks_for_its_token(page, tmp_path):
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length", encoding="ascii")
    token.chmod(0o600)
    with served(str(finished(tmp_path / "run", rounds=1)), "--token-file", str(token)) as address:
        assert "token" not in address
        page.open(address).wait_for("!document.getElementById('login').hidden")
        assert page.evaluate(TILES) == 0
        page.evaluate("document.getElementById('token').focus()")
        page.type("wrong")
        page.press("Enter")
        page.wait_for("document.getElementById('login-problem').textContent")
        page.evaluate("document.getElementById('token').value = ''")
        page.type("a-token-of-some-length")
        page.press("Enter")
        page.wait_for(f"{TILES} === 12")
        assert page.evaluate("document.cookie") == ""
        page.open("about:blank")
        page.open(address).wait_for(f"{TILES} === 12")
        page.command("Network.clearBrowserCookies")
        page.open("about:blank")
        page.open(f"{address}#token=a-token-of-some-length").wait_for(f"{TILES} === 12")
        assert page.evaluate("location.hash") == ""


def test_a_page_can_be_relayed(page, demo):
    with served(demo[0]) as second:
        page.open(second).wait_for(f"{TILES} === 12")
        page.click('.tile[data-board="nano-1"]')
        page.wait_for(OPEN)
        page.wait_for("document.querySelectorAll('#p-rounds tr').length === 40")
        assert page.console_errors == []


def test_a_run_is_seen_going_on(page, tmp_path, artefacts):
    config = yaml.safe_load((ROOT / "experiments" / "configs" / "quickstart.yaml").read_text(encoding="utf-8"))
    config |= {"rounds": 3, "backend": "local", "fleet": [{"device": "nano", "count": 2}, {"device": "xavier-nx"}]}
    config["workload"]["local_epochs"] = 20  # a shorter round may be over before the page asks again
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    folder = tmp_path / "run"
    with served(str(folder)) as address:
        page.open(address).wait_for("document.getElementById('run-state').textContent.startsWith('waiting')")
        page.evaluate(
            "window.seen = []; new MutationObserver(() => seen.push(document.getElementById('s-round').textContent))"
            ".observe(document.getElementById('s-round'), {childList: true, characterData: true, subtree: true})"
        )
        command = [
            sys.executable,
            "-m",
            "experiments.cli.main",
            "run",
            str(tmp_path / "exp.yaml"),
            "--folder",
            str(folder),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            page.wait_for("document.getElementById('s-round').textContent === '1 of 3'", 120)
            page.wait_for("document.getElementById('round').selectedOptions[0].textContent.endsWith('running')")
            page.screenshot(artefacts / "board-live.png")
            page.wait_for("document.getElementById('run-state').textContent === 'finished'", 240)
            _, errors = run.communicate(timeout=60)
            assert run.returncode == 0, errors
        finally:
            if run.poll() is None:
                run.terminate()
                run.wait(20)
        seen = page.evaluate("seen")
        assert {"1 of 3", "3 of 3"} <= set(seen)
        assert len(set(seen)) >= 3, f"the rounds were not seen one by one: {seen}"
        (spent,) = asked(folder, "select sum(energy_j) as energy_j from rounds")
        assert text(page, "#s-energy") == energy(spent["energy_j"])
        assert page.console_errors == []


def test_of_a_thousand_boards_only_lanes_in_sight_exist(page, tmp_path, artefacts):
    folder = tmp_path / "run"
    tables = begin(folder, 1000)
    for number_ in (1, 2):
        play(tables, 1000, number_)
    boards = [row["board"] for row in asked(folder, "select board from clients where round = 1")]
    with served(str(folder)) as address:
        page.open(address).wait_for(f"{TILES} === 1000", 60)
        page.wait_for("document.querySelectorAll('.lane').length > 0")
        page.screenshot(artefacts / "board-thousand.png")
        for step in range(1, 5):
            for board in boards[step::2]:
                write_progress(
                    folder / "live",
                    BoardProgress(board, 1e9 + step, "training", round=3, steps=100, steps_done=10 * step),
                )
            mine = "document.querySelector('[data-board=\"" + boards[step::2][0] + "\"] .meter i')"
            page.wait_for(f"{mine}.style.transform === 'scaleX(0.{step})'")
        page.wait_for("performance.getEntriesByName('board-update').length >= 3", 30)
        updated = page.evaluate("performance.getEntriesByName('board-update').reduce((sum, m) => sum + m.detail, 0)")
        assert updated >= 1000
        assert page.evaluate("document.querySelectorAll('.lane').length") < 60, "only lanes in sight exist"
        assert no_sideways_scrolling(page)
        page.resize(360, 740, phone=True)
        page.wait_for("document.getElementById('fleet').getBoundingClientRect().height < 740")
        page.screenshot(artefacts / "board-thousand-phone.png")
        assert no_sideways_scrolling(page)
        assert page.console_errors == []
