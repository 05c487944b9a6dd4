"""A board's queue on disk keeps what it can, drops the oldest, and is whole after a kill at any moment."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from contracts.crashing import disk_full, every_crash
from hypothesis import given
from hypothesis import strategies as st

from fedge.telemetry.board_messages import encode_batch
from fedge.telemetry.live_records import TelemetryBatch
from fedge.telemetry.spool import Spool
from fedge.types import Trace

T0 = 1_790_000_000.0
HOUR = 3600.0


def batch(seq: int, stretches: int = 2, start_s: float | None = None) -> TelemetryBatch:
    n, nobody, first = stretches, (None,) * stretches, T0 + 10 * seq if start_s is None else start_s
    times = tuple(first + i for i in range(n))
    columns = (nobody,) * 7
    return TelemetryBatch(1, "nano-1", "s", seq, Trace(times, (1.0,) * n, (float(seq),) * n, *columns))


def everything(spool: Spool) -> list[TelemetryBatch]:
    found = [spool.read(number) for number in spool.numbers]
    return [each for each in found if each is not None]


def test_what_was_put_is_there_for_the_next_start(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 10**6, HOUR)
    assert spool.next_number == 1
    for seq in (1, 2, 3):
        assert spool.put(seq, batch(seq), T0)
    spool.drop(2)

    again = Spool(tmp_path / "spool", 10**6, HOUR)

    assert everything(again) == [batch(1), batch(3)]
    assert again.next_number == 4
    assert again.lost == 0


def test_a_batch_that_grew_takes_the_place_of_the_former_one(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10**6, HOUR)
    spool.put(1, batch(1, 2), T0)
    spool.put(1, batch(1, 5), T0)
    assert everything(spool) == [batch(1, 5)]
    assert len(list(tmp_path.iterdir())) == 1


def test_beyond_its_size_the_oldest_are_dropped_and_counted(tmp_path: Path) -> None:
    size = len(encode_batch(batch(10, 4)))
    spool = Spool(tmp_path, 3 * size, HOUR)
    for seq in range(10, 20):
        assert spool.put(seq, batch(seq, 4), T0)
    assert [each.seq for each in everything(spool)] == [17, 18, 19]
    assert spool.lost == 7 * 4
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == spool.size <= 3 * size


def test_what_is_too_old_is_dropped_and_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10**6, 60.0)
    for seq in range(5):
        spool.put(seq + 1, batch(seq), T0 + 10 * seq)
    spool.trim(T0 + 85)
    assert [each.seq for each in everything(spool)] == [3, 4]
    assert spool.lost == 6


def test_a_file_that_cannot_be_read_is_lost_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10**6, HOUR)
    for seq in (1, 2, 3):
        spool.put(seq, batch(seq), T0)
    victim = sorted(tmp_path.iterdir())[1]
    victim.write_bytes(victim.read_bytes()[:50])
    assert [each.seq for each in everything(Spool(tmp_path, 10**6, HOUR))] == [1, 3]
    assert [each.seq for each in everything(spool)] == [1, 3]
    assert spool.lost == 2


def test_strange_files_are_left_alone(tmp_path: Path) -> None:
    for name in (".lock", "notes.txt", "1.json"):
        (tmp_path / name).write_text("x")
    spool = Spool(tmp_path, 10**6, HOUR)
    spool.put(1, batch(1), T0)
    assert everything(spool) == [batch(1)]
    assert (tmp_path / "notes.txt").exists()


def test_killed_at_any_step_it_holds_all_that_was_kept_and_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certain: dict[int, int] = {}
    """What must be there: stretches by number."""

    def work(stop: int, how: str) -> None:
        certain.clear()
        spool = Spool(tmp_path / f"{how}-{stop}", 10**6, HOUR)
        for number, stretches in ((1, 2), (2, 1), (2, 3), (3, 4), (2, 5)):
            spool.put(number, batch(number, stretches), T0)
            certain[number] = stretches
        assert certain.pop(1) == 2
        spool.drop(1)

    def check(stop: int, how: str) -> None:
        folder = tmp_path / f"{how}-{stop}"
        found = Spool(folder, 10**6, HOUR)
        there = {each.seq: len(each.trace) for each in everything(found)}
        assert found.lost == 0
        for number, stretches in certain.items():
            assert there[number] >= stretches
        assert len(list(folder.glob("*"))) == len(there)

    assert every_crash(monkeypatch, work, check) > 3 * 10


def test_a_full_disk_loses_the_newest_and_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, 10**6, HOUR)
    spool.put(1, batch(1), T0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", disk_full)
        assert not spool.put(2, batch(2), T0)
        assert not spool.put(1, batch(1, 9), T0)
    assert everything(spool) == [batch(1)]
    assert len(list(tmp_path.iterdir())) == 1
    assert spool.put(2, batch(2), T0)


@given(puts=st.lists(st.integers(1, 6), max_size=30), most_bytes=st.integers(300, 3000))
def test_whatever_is_put_what_is_there_and_what_is_lost_are_all(puts: list[int], most_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), most_bytes, HOUR)
        refused = 0
        for seq, stretches in enumerate(puts, start=1):
            refused += 0 if spool.put(seq, batch(seq, stretches), T0) else stretches
        there = sum(len(each.trace) for each in everything(spool))
        assert spool.size <= most_bytes
        assert there + spool.lost + refused == sum(puts)
        assert [each.seq for each in everything(spool)] == spool.numbers == sorted(spool.numbers)
