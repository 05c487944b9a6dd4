"""Old parts go when they are too many or too old, the oldest first; a newer store is refused."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from contracts.store_rows import round_row, sample_row

from fedge.errors import BadInput
from fedge.telemetry import store
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_files import forget_after, forget_old
from fedge.telemetry.store_reader import RunReader, read_rows
from fedge.telemetry.store_records import RoundRow, SampleRow

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
    assert forget_old(fleet_store, "samples", MANY, max_age_s=5.0, now_s=10.0) == 2
    assert seconds(fleet_store) == [4, 5, 6, 7, 8, 9, 10]
    assert forget_old(fleet_store, "samples", MANY, max_age_s=5.0, now_s=10.0) == 0


def test_the_oldest_parts_go_when_there_are_too_many_bytes(fleet_store):
    table = fleet_store / "store" / "samples"
    parts = sorted(table.glob("*.parquet"))
    wal, newest = (table / "000006.wal").stat().st_size, [part.stat().st_size for part in parts[-2:]]

    assert forget_old(fleet_store, "samples", wal + sum(newest), max_age_s=1e9, now_s=10.0) == 3
    assert seconds(fleet_store) == [6, 7, 8, 9, 10]
    assert forget_old(fleet_store, "samples", 0, max_age_s=1e9, now_s=10.0) == 2
    assert seconds(fleet_store) == [10], "what is not a part yet stays"


def test_a_store_goes_on_after_its_parts_went(fleet_store):
    forget_old(fleet_store, "samples", 0, max_age_s=0.0, now_s=1e9)
    tables = RunTables(fleet_store)
    tables.append([sample_row(11.0)])
    tables.close()
    forget_old(fleet_store, "samples", 0, max_age_s=0.0, now_s=1e9)

    assert seconds(fleet_store) == []
    assert forget_old(fleet_store, "samples", 0, max_age_s=0.0, now_s=1e9) == 0
    RunTables(fleet_store).append([sample_row(12.0)])
    assert seconds(fleet_store) == [12.0]
    assert sorted(path.name for path in (fleet_store / "store" / "samples").iterdir()) == [
        "000007.parquet",
        "000008.wal",
    ], "no number is used twice: a reader may still hold the old list"


def test_a_damaged_part_is_no_obstacle_to_forgetting_others(fleet_store):
    (fleet_store / "store/samples/000001.parquet").write_bytes(b"PAR1 not at all")
    assert forget_old(fleet_store, "samples", MANY, max_age_s=5.0, now_s=10.0) == 1


def test_a_part_without_statistics_is_written_again_only_where_it_has_later_rounds(tmp_path):
    tables = RunTables(tmp_path)
    tables.append([round_row(1), round_row(2)])
    tables.close()
    part = tmp_path / "store/rounds/000001.parquet"
    pq.write_table(pq.read_table(part, partitioning=None), part, write_statistics=False)
    before = part.read_bytes()

    forget_after(part.parent, last_round=2)
    assert part.read_bytes() == before
    forget_after(part.parent, last_round=1)
    assert [row.round for row in read_rows(tmp_path, RoundRow)] == [1]


def test_a_table_that_is_not_there_has_nothing_to_forget(tmp_path):
    assert forget_old(tmp_path, "samples", 0, max_age_s=0.0, now_s=0.0) == 0


@pytest.mark.parametrize("use", [RunTables, lambda folder: read_rows(folder, RoundRow), RunReader])
@pytest.mark.parametrize(("version", "writer"), [(3, "a newer fedge"), (1, "an older fedge")])
def test_a_store_of_another_version_is_refused_with_both_versions(tmp_path, use, version, writer):
    RunTables(tmp_path).append([round_row(1)])
    (tmp_path / "store" / "VERSION").write_text(json.dumps({"version": version}))

    with pytest.raises(BadInput, match=rf"VERSION: got version {version} of the store; version 2; {writer} wrote this"):
        use(tmp_path)


@pytest.mark.parametrize("use", [RunTables, lambda folder: read_rows(folder, RoundRow), RunReader])
def test_a_run_from_before_the_store_is_refused_with_what_to_do(tmp_path, use):
    (tmp_path / "rounds.parquet").write_bytes(b"PAR1")

    with pytest.raises(BadInput, match=r"got version 1 of the store; version 2; .*: fedge run FOLDER/run.yaml"):
        use(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"version": null}', "two"])
def test_a_version_that_says_nothing_is_refused(tmp_path, text):
    RunTables(tmp_path)
    (tmp_path / "store" / "VERSION").write_text(text)

    with pytest.raises(BadInput, match=r"VERSION: got (no version|a file that cannot be read)"):
        RunTables(tmp_path)


def test_tables_without_a_version_are_neither_read_nor_overwritten(tmp_path):
    RunTables(tmp_path).append([round_row(1)])
    (tmp_path / "store" / "VERSION").unlink()

    with pytest.raises(BadInput, match="no such file beside tables"):
        RunTables(tmp_path)
    assert (tmp_path / "store" / "rounds" / "000001.wal").exists()
