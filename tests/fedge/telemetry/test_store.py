"""Rows come back as they were written, whatever stopped the writer, and nothing of them is there twice."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contracts.crashing import disk_full, every_crash
from contracts.store_rows import client_row, event_row, round_row, sample_row, traced

from fedge.clock import SimulatedClock
from fedge.errors import BadInput
from fedge.telemetry import store, store_files
from fedge.telemetry.store import MemoryTables, RunTables
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow, SampleRow
from fedge.types import Trace


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third row fills a part."""
    monkeypatch.setattr(store, "FULL_ROWS", 3)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here is about a loss of power, and waiting for the disk takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def names_of(folder: Path, table: str) -> list[str]:
    return sorted(path.name for path in (folder / "store" / table).iterdir())


def played(folder: Path) -> list[int]:
    return [row.round for row in read_rows(folder, RoundRow)]


def test_rows_come_back_with_their_types_and_their_gaps(tmp_path):
    rows = [round_row(1), client_row(1), event_row(1), sample_row(0.5)]
    tables = RunTables(tmp_path)
    tables.append(rows)

    def told() -> list[object]:
        kinds = (RoundRow, ClientRow, EventRow, SampleRow)
        return [row for kind in kinds for row in read_rows(tmp_path, kind)]

    assert told() == rows, "as write-ahead rows"
    tables.close()
    assert told() == rows, "as parts"
    assert [names_of(tmp_path, name) for name in ("rounds", "samples")] == [["000001.parquet"]] * 2


def test_so_many_appends_make_a_part_of_rounds_and_more_of_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FULL_FRAMES", 2)
    monkeypatch.setattr(store, "FULL_SAMPLE_FRAMES", 4)
    tables = RunTables(tmp_path)
    for number in range(5):
        tables.append([round_row(number), sample_row(float(number))])

    assert names_of(tmp_path, "rounds") == ["000001.parquet", "000002.parquet", "000003.wal"]
    assert names_of(tmp_path, "samples") == ["000001.parquet", "000002.wal"]
    assert played(tmp_path) == [*range(5)]
    tables.close()


def test_a_trace_becomes_a_row_for_every_stretch(tmp_path):
    tables = RunTables(tmp_path)
    tables.append([traced(1, "a", 3), traced(2, "b", 2), sample_row(9.0, "c"), traced(3, "a", 0)])
    tables.append([])

    rows = read_rows(tmp_path, SampleRow)
    assert [(row.round, row.board, row.at_s, row.power_w) for row in rows] == [
        (1, "a", 0.0, 5.0),
        (1, "a", 0.1, 6.0),
        (1, "a", 0.2, 7.0),
        (2, "b", 0.0, 5.0),
        (2, "b", 0.1, 6.0),
        (1, "c", 9.0, 14.0),
    ]
    assert [row.gpu_load for row in rows[:3]] == [0.5, None, None]
    assert [row.rails_w for row in rows[:2]] == [{"VDD_IN": 5.0, "VDD_CPU": 1.5}, {"VDD_IN": 5.0}]
    assert {row.mem_mhz for row in rows} == {None}
    assert sum(row.power_w * row.span_s for row in rows[:3]) == pytest.approx(traced(1, "a", 3).trace.energy_j)


def test_a_trace_with_columns_of_different_lengths_is_refused_before_anything_is_kept(tmp_path):
    broken = Trace(start_s=(0.0, 1.0), span_s=(1.0, 1.0), power_w=(5.0,))
    tables = RunTables(tmp_path)
    with pytest.raises(ValueError, match="power_w has 1 values for 2 stretches"):
        tables.append([round_row(1), type(traced(1, "a", 0))(1, "a", broken)])

    assert played(tmp_path) == []


def test_boards_and_rails_are_coded_in_parts(tmp_path):
    tables = RunTables(tmp_path)
    tables.append([traced(1, "a", 3)])
    tables.close()

    schema = pq.read_schema(tmp_path / "store" / "samples" / "000001.parquet")
    assert str(schema.field("board").type).startswith("dictionary<values=string, indices=int32")
    assert str(schema.field("rails_w").type).startswith("map<string, double")


@pytest.mark.usefixtures("small_parts")
def test_a_part_is_made_whenever_there_are_enough_rows_and_earlier_parts_stay_as_they_are(tmp_path):
    tables = RunTables(tmp_path)
    for number in range(1, 4):
        tables.append([round_row(number)])
    first = (tmp_path / "store/rounds/000001.parquet").stat()
    for number in range(4, 9):
        tables.append([round_row(number)])

    assert names_of(tmp_path, "rounds") == ["000001.parquet", "000002.parquet", "000003.wal"]
    assert (tmp_path / "store/rounds/000001.parquet").stat().st_mtime_ns == first.st_mtime_ns
    assert played(tmp_path) == [*range(1, 9)]
    assert [row.round for row in read_rows(tmp_path, RoundRow, since_round=6)] == [6, 7, 8]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("last", [-1, 0, 1, 3, 4, 7, 9])
def test_rounds_after_the_checkpoint_are_forgotten(tmp_path, last):
    tables = RunTables(tmp_path)
    for number in range(8):
        tables.append([round_row(number), event_row(number), traced(number, "a", 2)])
    tables.forget_after(last)
    tables.forget_after(last)

    kept = [number for number in range(8) if number <= last]
    assert played(tmp_path) == kept
    assert [row.round for row in tables.rounds] == kept
    assert [row.round for row in read_rows(tmp_path, EventRow)] == kept
    assert [row.round for row in read_rows(tmp_path, SampleRow)] == sorted(kept * 2)
    tables.append([round_row(99)])
    assert played(tmp_path) == [*kept, 99]


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_a_crash_at_any_step_loses_no_acknowledged_row_and_doubles_none(tmp_path, monkeypatch):
    acknowledged: list[int] = []

    def work(stop: int, how: str) -> None:
        acknowledged.clear()
        tables = RunTables(tmp_path / f"{how}-{stop}")
        for number in range(7):
            tables.append([round_row(number)])
            acknowledged.append(number)
        tables.close()

    def check(stop: int, how: str) -> None:
        folder, count = tmp_path / f"{how}-{stop}", len(acknowledged)
        for _ in ("as it was left", "as the next writer finds it"):
            assert played(folder) in ([*range(count)], [*range(min(7, count + 1))])
            RunTables(folder).close()
        found = played(folder)
        RunTables(folder).append([round_row(99)])
        assert played(folder) == [*found, 99]
        assert not list((folder / "store").rglob("*.part"))

    assert every_crash(monkeypatch, work, check) > 3 * 20


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_a_crash_while_forgetting_is_mended_by_forgetting_again(tmp_path, monkeypatch):
    whole = RunTables(tmp_path / "whole")
    for number in range(8):
        whole.append([round_row(number), event_row(number)])
    for how in ("before", "half", "after"):
        for stop in range(40):
            shutil.copytree(tmp_path / "whole", tmp_path / f"{how}-{stop}")

    def work(stop: int, how: str) -> None:
        RunTables(tmp_path / f"{how}-{stop}").forget_after(4)

    def check(stop: int, how: str) -> None:
        folder = tmp_path / f"{how}-{stop}"
        seen = played(folder)
        assert seen[:5] == [*range(5)], "what stays is there all the time"
        assert seen == sorted(set(seen))
        tables = RunTables(folder)
        tables.forget_after(4)
        assert played(folder) == [row.round for row in read_rows(folder, EventRow)] == [*range(5)]

    assert every_crash(monkeypatch, work, check) > 3 * 10


def test_a_torn_last_row_is_cut_off_and_what_was_before_stays(tmp_path, caplog):
    RunTables(tmp_path).append([round_row(1)])
    path = tmp_path / "store/rounds/000001.wal"
    path.write_bytes(path.read_bytes() + path.read_bytes()[:100])

    assert played(tmp_path) == [1], "a reader leaves it out"
    tables = RunTables(tmp_path)
    assert "cut off" in caplog.text
    tables.append([round_row(2)])
    assert played(tmp_path) == [1, 2]


def test_after_a_step_to_a_part_failed_rows_are_still_taken(tmp_path, monkeypatch):
    tables = RunTables(tmp_path)
    tables.append([round_row(1)])
    with monkeypatch.context() as patch:
        patch.setattr(store_files, "write_part", disk_full)
        with pytest.raises(OSError, match="No space"):
            tables.close()
    tables.append([round_row(2)])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="error"):
            tables.close()
    tables.append([round_row(3)])

    assert played(tmp_path) == [1, 2, 3]
    tables.close()
    RunTables(tmp_path).close()
    assert played(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_rows_that_did_not_fit_on_the_disk_are_not_there_and_later_ones_are(tmp_path, monkeypatch, failing):
    def full(fd: int, *data: bytes) -> None:
        if data:
            real_write(fd, data[0][:100])
        disk_full()

    real_write, tables = os.write, RunTables(tmp_path)
    tables.append([round_row(1)])
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        with pytest.raises(OSError, match=r"No space left on device: '.*store/rounds/000001.wal'"):
            tables.append([round_row(2)])
        patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="No space"):
            tables.append([round_row(2)])
    tables.append([round_row(3)])

    assert played(tmp_path) == [1, 3]
    tables.close()
    assert played(tmp_path) == [1, 3]


def test_a_part_that_did_not_fit_leaves_nothing_behind_and_its_rows_where_they_were(tmp_path, monkeypatch):
    tables = RunTables(tmp_path)
    tables.append([round_row(1)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk_full)
        with pytest.raises(OSError, match=r"No space left on device: '.*store/rounds/000001.parquet'"):
            tables.close()

    assert names_of(tmp_path, "rounds") == ["000001.wal"]
    assert played(tmp_path) == [1]


def test_rows_that_are_in_are_not_said_to_have_failed_when_no_part_can_be_made_of_them(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(store, "FULL_ROWS", 3)
    tables = RunTables(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(store_files, "write_part", disk_full)
        for number in range(1, 6):
            tables.append([round_row(number)])
    assert played(tmp_path) == [1, 2, 3, 4, 5]
    assert [record.levelname for record in caplog.records] == ["WARNING"]

    tables.append([round_row(6)])

    assert names_of(tmp_path, "rounds") == ["000001.parquet"]
    assert played(tmp_path) == [1, 2, 3, 4, 5, 6]


HOLDER = """
import sys, pathlib
from fedge.telemetry.store import RunTables
tables = RunTables(pathlib.Path(sys.argv[1]))
print(1, flush=True)
sys.stdin.read()
"""


def test_a_second_writer_is_refused_until_the_first_is_done_or_gone(tmp_path):
    tables = RunTables(tmp_path)
    tables.append([round_row(1)])
    left = tmp_path / "store/rounds/000002.parquet.1.part"
    left.touch()
    with pytest.raises(BadInput, match=f"store: got a store that process {os.getpid()} is writing; one writer"):
        RunTables(tmp_path)
    assert left.exists(), "what may be the first one's is left alone"

    tables.close()
    RunTables(tmp_path).close()
    held = [sys.executable, "-c", HOLDER, str(tmp_path)]
    process = subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout.readline() == b"1\n"
    with pytest.raises(BadInput, match=f"process {process.pid} is writing"):
        RunTables(tmp_path)
    killer = threading.Timer(0.3, process.kill)
    killer.start()
    RunTables(tmp_path, wait_s=60.0)  # as a resumed run waits for the server process of a killed SuperLink
    process.communicate()


def test_a_store_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(BadInput, match="run/store: got Not a directory; a folder that this user may write to"):
        RunTables(tmp_path / "run")


def test_the_trivial_store_keeps_rows_in_memory():
    tables = MemoryTables()
    tables.append([round_row(1), traced(1, "a", 2)])

    assert tables.rows == [round_row(1), traced(1, "a", 2)]


def test_samples_are_on_the_disk_after_a_second_at_the_latest_and_all_other_rows_at_once(tmp_path, monkeypatch):
    clock, synced = SimulatedClock(), list[str]()
    tables = RunTables(tmp_path, clock.now_s)
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().parent.name))
    tables.append([round_row(1), sample_row(0.0)])
    assert synced.count("rounds") == 1
    counts = []
    for _ in range(5):
        clock.sleep_s(0.5)
        tables.append([sample_row(clock.now_s())])
        counts.append(synced.count("samples"))

    assert counts == [0, 1, 1, 2, 2]


def test_a_process_reads_with_few_threads_while_it_writes_a_store(tmp_path):
    pa.set_io_thread_count(8)
    tables = RunTables(tmp_path)
    assert pa.io_thread_count() == store.IO_THREADS
    tables.close()
    assert pa.io_thread_count() == 8
