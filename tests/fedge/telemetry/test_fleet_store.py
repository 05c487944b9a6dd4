"""Of a fleet's store old parts go, the oldest first, neighbours become one, and no row is lost or read twice."""

import math
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from contracts.store_rows import sample_row

from fedge import atomic_files
from fedge.errors import BadInput
from fedge.telemetry import fleet_store as fleet
from fedge.telemetry import store, store_files
from fedge.telemetry.fleet_store import forget_old, merge_parts, read_last_ends, read_samples
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_reader import RunReader, read_rows
from fedge.telemetry.store_records import SampleRow

MANY = 2**40


@pytest.fixture
def fleet_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Samples of the seconds 0 to 10 in parts of two, the last one not in a part yet."""
    monkeypatch.setattr(store, "FULL_ROWS", 2)
    tables = RunTables(tmp_path)
    for second in range(11):
        tables.append([sample_row(float(second))])
    return tmp_path


def seconds(folder: Path) -> list[float]:
    return [row.at_s for row in read_rows(folder, SampleRow)]


def test_parts_go_when_all_of_their_rows_are_too_old(fleet_store):
    assert forget_old(fleet_store, MANY, max_age_s=5.0, now_s=10.0) == 2
    assert seconds(fleet_store) == [4, 5, 6, 7, 8, 9, 10]
    assert forget_old(fleet_store, MANY, max_age_s=5.0, now_s=10.0) == 0


def test_the_oldest_parts_go_when_there_are_too_many_bytes(fleet_store):
    table = fleet_store / "store" / "samples"
    parts = sorted(table.glob("*.parquet"))
    wal, newest = (table / "000006.wal").stat().st_size, [part.stat().st_size for part in parts[-2:]]

    assert forget_old(fleet_store, wal + sum(newest), max_age_s=1e9, now_s=10.0) == 3
    assert seconds(fleet_store) == [6, 7, 8, 9, 10]
    assert forget_old(fleet_store, 0, max_age_s=1e9, now_s=10.0) == 2
    assert seconds(fleet_store) == [10], "what is not a part yet stays"


def test_a_store_goes_on_after_its_parts_went(fleet_store):
    forget_old(fleet_store, 0, max_age_s=0.0, now_s=1e9)
    tables = RunTables(fleet_store)
    tables.append([sample_row(11.0)])
    tables.close()
    forget_old(fleet_store, 0, max_age_s=0.0, now_s=1e9)

    assert seconds(fleet_store) == []
    assert forget_old(fleet_store, 0, max_age_s=0.0, now_s=1e9) == 0
    RunTables(fleet_store).append([sample_row(12.0)])
    assert seconds(fleet_store) == [12.0]
    assert sorted(path.name for path in (fleet_store / "store" / "samples").iterdir()) == [
        "000007.parquet",
        "000008.wal",
    ], "no number is used twice: a reader may still hold the old list"


@pytest.fixture(scope="module")
def written_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample of each of the seconds 1 to 70, each in a part of its own, and of the 71st in a write-ahead file."""
    folder = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "FULL_ROWS", 1)
        tables = RunTables(folder)
        for second in range(1, 71):
            tables.append([sample_row(float(second))])
        patched.setattr(store, "FULL_ROWS", 10)
        tables.append([sample_row(71.0)])
    return folder


@pytest.fixture
def many_parts(written_parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, in a store that merges 4 and 16 neighbours."""
    monkeypatch.setattr(store, "FULL_ROWS", 10)
    monkeypatch.setattr(fleet, "MERGED_PARTS", 4)
    monkeypatch.setattr(fleet, "MERGED_TWICE", 16)
    monkeypatch.setattr(store_files, "ROW_GROUP", 3)
    return shutil.copytree(written_parts, tmp_path, dirs_exist_ok=True)


ALL = [float(second) for second in range(1, 72)]


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "store" / "samples").iterdir())


def test_neighbours_become_one_until_few_are_left_and_every_row_stays(many_parts):
    assert merge_parts(many_parts, MANY, 1e9) == 17 + 4
    assert seconds(many_parts) == ALL
    forget_old(many_parts, MANY, max_age_s=1e9, now_s=71.0)

    left = ["000001-000016", "000017-000032", "000033-000048", "000049-000064", "000065-000068"]
    assert names(many_parts) == [*left, "000069", "000070", "000071"]
    assert seconds(many_parts) == ALL
    assert merge_parts(many_parts, MANY, 1e9) == 0
    groups = pq.ParquetFile(many_parts / "store/samples/000001-000016.parquet").metadata
    assert [groups.row_group(place).num_rows for place in range(groups.num_row_groups)] == [3, 3, 3, 3, 3, 1]


def test_what_was_merged_can_be_read_until_old_parts_are_forgotten(many_parts):
    with RunReader(many_parts) as before:
        merge_parts(many_parts, MANY, 1e9)
        assert [row.at_s for row in before.rows(SampleRow)] == ALL


def test_a_merged_part_is_a_small_share_of_the_size_and_age_that_a_store_may_have(many_parts):
    one = (many_parts / "store/samples/000001.parquet").stat().st_size
    assert merge_parts(many_parts, 16 * 3 * one, 1e9) == 0
    assert merge_parts(many_parts, MANY, 16 * 2.9) == 0
    assert merge_parts(many_parts, 16 * 5 * one, 16 * 3.0) == 17


@pytest.mark.parametrize("step", range(3))
def test_a_crash_while_merging_loses_no_row_and_doubles_none(many_parts, monkeypatch, step):
    """Before the merged part is in place, after it, and while what it supersedes is removed."""

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        if step == 0:
            broken.setattr(atomic_files.os, "replace", crash)
            broken.setattr(atomic_files.Path, "replace", crash)
        elif step == 1:
            broken.setattr(fleet, "sync_folder", crash)
        else:
            merge_parts(many_parts, MANY, 1e9)
            removed = Path.unlink
            broken.setattr(Path, "unlink", lambda path, **_: crash() if path.stem == "000003" else removed(path))
        with pytest.raises(KeyboardInterrupt):
            merge_parts(many_parts, MANY, 1e9) if step < 2 else forget_old(many_parts, MANY, 1e9, 71.0)

    assert seconds(many_parts) == ALL
    RunTables(many_parts).close()
    assert seconds(many_parts) == ALL
    merge_parts(many_parts, MANY, 1e9)
    assert seconds(many_parts) == ALL


def test_a_write_ahead_file_that_a_loss_of_power_brought_back_is_not_read_beside_the_merged_part(many_parts):
    old = (many_parts / "store/samples/000071.wal").read_bytes()
    merge_parts(many_parts, MANY, 1e9)
    forget_old(many_parts, MANY, max_age_s=1e9, now_s=71.0)
    (many_parts / "store/samples/000005.wal").write_bytes(old)

    assert seconds(many_parts) == ALL
    RunTables(many_parts).close()
    assert "000005" not in names(many_parts)
    assert seconds(many_parts) == ALL


def test_a_damaged_part_stays_by_itself_and_others_are_merged(many_parts):
    (many_parts / "store/samples/000002.parquet").write_bytes(b"PAR1 not at all")

    assert merge_parts(many_parts, MANY, 1e9) >= 1
    assert {"000001", "000002"} <= set(names(many_parts))


def test_a_boards_samples_are_read_from_parts_of_their_time_alone(many_parts, monkeypatch):
    (many_parts / "store/samples/000040.parquet").write_bytes(b"")
    board = sample_row(1.0).board
    store_files.read_greatest(many_parts / "store/samples/000041.parquet", "at_s")

    with pytest.raises(BadInput):
        read_samples(many_parts, board, ("at_s",))
    (many_parts / "store/samples/000040.parquet").unlink()
    assert read_samples(many_parts, board, ("at_s",), 68.5).column("at_s").to_pylist() == [69.0, 70.0, 71.0]
    assert read_samples(many_parts, "nobody", ("at_s",)).num_rows == 0
    kept = store_files.list_store_files(many_parts / "store/samples").parts
    monkeypatch.setattr(store_files, "check_part", lambda path, _: kept.pop(int(path.stem)))
    read_samples(many_parts, board, ("at_s",), 68.5)
    assert 68 in kept
    assert 69 not in kept


def test_the_last_ends_are_those_of_the_files_that_were_changed_since(many_parts):
    parts = many_parts / "store/samples"
    for path in parts.iterdir():
        os.utime(path, (50.0, 50.0))
    board, span_s = sample_row(1.0).board, sample_row(1.0).span_s
    os.utime(parts / "000007.parquet", (100.0, 100.0))

    assert read_last_ends(many_parts, -math.inf) == {board: 71.0 + span_s}
    (parts / "000071.wal").unlink()
    assert read_last_ends(many_parts, 60.0) == {board: 7.0 + span_s}
    assert read_last_ends(many_parts, 1e12) == {}
