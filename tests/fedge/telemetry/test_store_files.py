"""The files of a store: rounds are forgotten; a newer store is refused."""

import json

import pyarrow.parquet as pq
import pytest
from contracts.store_rows import round_row

from fedge.errors import BadInput
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_files import forget_after
from fedge.telemetry.store_reader import RunReader, read_rows
from fedge.telemetry.store_records import RoundRow


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
