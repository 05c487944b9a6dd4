"""The page cache before a point: dropped or filled, and a note where that was not reached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedge.characterisation import image_storage
from fedge.characterisation.image_storage import find_mount
from fedge.worker import page_cache


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    if find_mount(tmp_path).is_in_memory:
        pytest.skip("files in memory cannot be dropped")
    paths = [tmp_path / f"{k}" for k in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(40_000))
    return [str(path) for path in paths]


def never() -> str | None:
    raise AssertionError("all of the cache was dropped")


def test_files_are_dropped_alone_and_read_again(files: list[str]) -> None:
    assert image_storage.set_cache_state(files, "dropped", drop_all=never) == ()
    assert page_cache.resident_share(files) == pytest.approx(0.0)
    assert image_storage.set_cache_state(files, "warm", drop_all=never) == ()
    assert page_cache.resident_share(files) == pytest.approx(1.0)


def test_pages_that_stay_are_dropped_with_all_others_or_noted(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = [0.4, 0.3]
    monkeypatch.setattr(page_cache, "resident_share", lambda paths: shares.pop(0))
    assert image_storage.set_cache_state(files, "dropped", drop_all=lambda: "nobody may") == (
        "the page cache could not be dropped: 30 % of the images stayed in it (nobody may)",
    )
    shares = [0.4, 0.01]
    assert image_storage.set_cache_state(files, "dropped", drop_all=lambda: None) == ()


def test_what_was_read_and_is_not_there_is_noted(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "resident_share", lambda paths: 0.5)
    assert "holds 50 % of the images only" in image_storage.set_cache_state(files, "warm")[0]


def test_a_share_that_nobody_tells_is_noted(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "resident_share", lambda paths: None)
    assert "cannot be seen" in image_storage.set_cache_state(files, "dropped", drop_all=lambda: None)[0]


def test_root_drops_all_of_the_page_cache_and_nothing_else(tmp_path: Path) -> None:
    control = tmp_path / "drop_caches"
    control.write_text("0")
    assert image_storage.drop_page_cache(str(tmp_path / "no.sock"), control) is None
    assert control.read_text() == "1"


def test_without_root_and_without_a_daemon_it_is_said_who_could(tmp_path: Path) -> None:
    reason = image_storage.drop_page_cache(str(tmp_path / "no.sock"), tmp_path / "gone/drop_caches")
    assert reason is not None
    assert "root alone, or through the power daemon" in reason
