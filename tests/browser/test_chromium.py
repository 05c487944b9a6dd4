"""The driver of the browser tests: that it sees what a page does, and what goes wrong on it."""

from urllib.parse import quote

import pytest

pytestmark = pytest.mark.slow


def _document(body: str) -> str:
    return f"data:text/html,{quote(body)}"


def test_a_page_is_opened_asked_pressed_and_photographed(page, artefacts):
    page.open(_document("<input autofocus><p>seen</p><script>onkeydown = e => { window.last = e.key }</script>"))
    assert page.evaluate("document.querySelector('p').textContent") == "seen"
    page.click("input")
    page.press("a")
    page.press("Escape")
    assert page.evaluate("[document.querySelector('input').value, window.last]") == ["a", "Escape"]
    page.resize(390, 844)
    assert page.evaluate("innerWidth") == 390
    assert page.screenshot(artefacts / "driver.png").read_bytes().startswith(b"\x89PNG")
    assert page.console_errors == []


def test_what_a_page_throws_or_calls_an_error_is_collected(page):
    page.open(_document("<script>console.error('first', 1); setTimeout(() => { throw new Error('second') })</script>"))
    page.wait_for("true")
    page.evaluate("new Promise(done => setTimeout(() => done(true), 50))")
    assert [error.split("\n")[0] for error in page.console_errors] == ["first 1", "Error: second"]


def test_a_condition_that_never_holds_ends_in_time(page):
    with pytest.raises(TimeoutError, match="is still"):
        page.open("about:blank").wait_for("false", 0.2)
