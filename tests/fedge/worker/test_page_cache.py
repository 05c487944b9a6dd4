"""The page cache: filled and dropped for some files alone, and what share of them it holds."""

import mmap
import os
from pathlib import Path

import pytest

from fedge.worker import page_cache

PAGES = 8


def kind_of(path):
    """The type of the file system that a path is on."""
    rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = [(len(row[4]), row[row.index("-") + 1]) for row in rows if str(path).startswith(row[4])]
    return max(below)[1]


@pytest.fixture
def files(tmp_path):
    if kind_of(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("files in memory cannot be dropped")
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE - 5))
    return [str(path) for path in paths]


def test_what_was_read_is_there_and_what_was_dropped_is_not(files):
    page_cache.fill(files)
    assert page_cache.resident_share(files) == pytest.approx(1.0)
    page_cache.drop(files[:1])
    assert page_cache.resident_share(files[:1]) == pytest.approx(0.0)
    assert page_cache.resident_share(files) == pytest.approx(0.5)
    assert page_cache.resident_share(files[1:]) == pytest.approx(1.0)


def test_asking_for_the_share_reads_nothing(files):
    page_cache.drop(files)
    for _ in range(3):
        assert page_cache.resident_share(files) == pytest.approx(0.0)


def test_a_dropped_file_keeps_what_was_just_written(files):
    Path(files[0]).write_bytes(b"x" * 3 * mmap.PAGESIZE)
    page_cache.drop(files)
    assert Path(files[0]).read_bytes() == b"x" * 3 * mmap.PAGESIZE


def test_nothing_tells_of_no_files_and_of_empty_ones(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert page_cache.resident_share([]) is None
    assert page_cache.resident_share([str(tmp_path / "empty")]) is None


def test_of_anothers_files_the_share_is_not_known(files, monkeypatch):
    monkeypatch.setattr(page_cache.os, "geteuid", lambda: Path(files[0]).stat().st_uid + 1)
    monkeypatch.setattr(page_cache.os, "access", lambda path, how: False)
    assert page_cache.resident_share(files) is None


def test_a_missing_file_is_an_error(tmp_path):
    for act in (page_cache.resident_share, page_cache.drop, page_cache.fill):
        with pytest.raises(OSError):
            act([str(tmp_path / "gone")])
