"""What browser tests share: one Chromium for all of them, a new tab for each, and a place for what was seen."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser.chromium import Page, browser, program


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They are run with the others that watch: not beside everything else, which they would crowd out of two cores."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.monitor)


@pytest.fixture(scope="session")
def new_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Page]]:
    """Opens a tab; skips where no Chromium is installed."""
    if program() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def page(new_page: Callable[[], Page]) -> Iterator[Page]:
    """A tab of 1280 by 900 pixels."""
    opened = new_page()
    yield opened
    opened.command("Page.close")


@pytest.fixture
def artefacts(tmp_path: Path) -> Path:
    """Where screenshots are kept: the folder that FEDGE_ARTEFACTS names, or the test's own."""
    folder = Path(os.environ.get("FEDGE_ARTEFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
