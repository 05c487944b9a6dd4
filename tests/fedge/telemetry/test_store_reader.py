"""Readers see one moment of a store that is being written, also of damaged files."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from contracts.board_runs import begin, client, play
from contracts.store_rows import client_row, event_row, round_row, sample_row, traced

from fedge.errors import BadInput, UnknownName
from fedge.telemetry import open_run
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_reader import compute_store_stamp, read_new_rounds, read_newest_rows, read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow

WRITER = """
import sys
from pathlib import Path
from contracts.store_rows import client_row, round_row, traced
from fedge.telemetry import store
import os
store.FULL_ROWS = 4
os.fsync = lambda _: None
tables = store.RunTables(Path(sys.argv[1]))
print("open", flush=True)
number = 0
while not Path(sys.argv[2]).exists():
    tables.append([round_row(number), *(client_row(number, board) for board in "abc"), traced(number, "a", 2)])
    number += 1
tables.close()
"""


def test_new_rounds_join_the_known_ones_and_rounds_that_a_resumed_run_repeats_replace_them(tmp_path):
    tables = RunTables(tmp_path)
    known = read_new_rounds(tmp_path, [])
    assert known == []
    for number in (1, 2, 3):
        tables.append([round_row(number)])
        known, before = read_new_rounds(tmp_path, known), known
        assert known == read_rows(tmp_path, RoundRow)
        assert all(old is new for old, new in zip(before[:-1], known, strict=False)), "not read again"
    diverged = dataclasses.replace(round_row(4), loss=math.nan)
    tables.append([diverged])
    before = read_new_rounds(tmp_path, known)
    assert all(old is new for old, new in zip(before[:-1], read_new_rounds(tmp_path, before), strict=False))
    tables.forget_after(1)
    assert read_new_rounds(tmp_path, known) == [round_row(1)]
    tables.append([dataclasses.replace(round_row(number), energy_j=7.0) for number in (2, 3)])
    assert read_new_rounds(tmp_path, known) == read_rows(tmp_path, RoundRow)
    tables.close()


@pytest.mark.slow
def test_a_reader_beside_a_writer_that_makes_parts_all_the_time_sees_whole_rounds_in_order(tmp_path):
    run, stop = tmp_path / "run", tmp_path / "stop"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(run), str(stop)], stdout=subprocess.PIPE, env={"PYTHONPATH": "tests:."}
    )
    try:
        assert process.stdout.readline() == b"open\n"
        seen, reads = 0, 0
        while seen < 150 or reads <= 5:
            with open_run(run) as opened:
                rounds = [row.round for row in opened.rows(RoundRow)]
                clients = [row.round for row in opened.rows(ClientRow)]
                samples = opened.arrow("samples").column("round").to_pylist()
            assert rounds == [*range(len(rounds))], "no gap, none twice"
            assert clients[: 3 * len(rounds)] == [number for number in rounds for _ in "abc"]
            assert samples[: 2 * len(rounds)] == [number for number in rounds for _ in range(2)]
            assert clients == sorted(clients)
            assert len(rounds) >= seen, "what was there once stays"
            seen, reads = len(rounds), reads + 1
    finally:
        stop.touch()
        assert process.wait(timeout=60) == 0


def test_a_stamp_changes_with_every_append_and_with_nothing_else(tmp_path):
    stamps = [compute_store_stamp(tmp_path)]
    tables = RunTables(tmp_path)
    for row in (round_row(1), client_row(1), event_row(1), sample_row(1.0)):
        tables.append([row])
        stamps.append(compute_store_stamp(tmp_path))
        assert compute_store_stamp(tmp_path) == stamps[-1]
    assert len(set(stamps)) == 5
    rounds = compute_store_stamp(tmp_path, RoundRow)
    tables.append([sample_row(2.0)])
    assert compute_store_stamp(tmp_path, RoundRow) == rounds
    assert compute_store_stamp(tmp_path) != stamps[-1]


def test_a_column_that_was_added_later_is_none_and_one_that_nobody_knows_is_left_out(tmp_path):
    tables = RunTables(tmp_path)
    tables.append([client_row(1, charge=0.5), round_row(1)])
    tables.close()
    for name, column in (("clients", "charge"), ("rounds", "stale")):
        part = tmp_path / "store" / name / "000001.parquet"
        found = pq.ParquetFile(part).read().drop_columns([column])
        pq.write_table(found.append_column("colour", [["red"]]), part)
    tables.append([client_row(2, charge=0.25)])

    assert [row.charge for row in read_rows(tmp_path, ClientRow)] == [None, 0.25]
    assert read_rows(tmp_path, RoundRow) == [round_row(1)], "the default, where None would be wrong"


def test_a_folder_where_nothing_was_stored_has_no_rows(tmp_path):
    assert read_rows(tmp_path, EventRow) == read_rows(tmp_path / "none", EventRow) == []
    assert compute_store_stamp(tmp_path) == ()


def test_damage_ends_a_table_where_it_is_and_is_told_for_good(tmp_path, caplog):
    tables = RunTables(tmp_path)
    for number in (1, 2, 3):
        tables.append([round_row(number)])
    path = tmp_path / "store/rounds/000001.wal"
    data = bytearray(path.read_bytes())
    data[data.rindex(b"nano-1", 0, data.rindex(b"nano-1"))] ^= 1
    path.write_bytes(data)

    with open_run(tmp_path) as opened:
        assert [row.round for row in opened.rows(RoundRow)] == [1]
        assert opened.notes == ("rounds/000001.wal: damaged after 1 rows, which are read; what follows is not",)
    assert "damaged after 1 rows" in caplog.text

    del tables  # its process is gone
    RunTables(tmp_path).append([round_row(4)])
    with open_run(tmp_path) as opened:
        assert [row.round for row in opened.rows(RoundRow)] == [1, 4]
        assert opened.notes == ("rounds/000001.damaged: set aside, it was damaged",)
    assert (tmp_path / "store/rounds/000001.damaged").read_bytes() == data


def test_the_newest_rows_and_the_joules_are_those_of_the_store(tmp_path):
    folder = tmp_path / "run"
    tables = begin(folder, 9)
    for number in range(1, 6):
        play(tables, 9 if number < 5 else 6, number, sampled=False)
        if number == 3:
            tables.seal()
    found = read_newest_rows(folder, ("board", "round", "status"), 2, 4)
    with open_run(folder) as run:
        last = run.query("select board, max(round) as round from clients group by board").to_pylist()
        sums = run.query(
            "select board, coalesce(sum(energy_j) filter (round < 4), 0) as gone,"
            " coalesce(sum(energy_j) filter (round >= 4), 0) as left_ from clients where round >= 2 group by board"
        ).to_pylist()
    assert {name: row[1] for name, row in found.rows.items()} == {row["board"]: row["round"] for row in last}
    assert all(row[0] == name for name, row in found.rows.items())
    assert found.before_j == pytest.approx({row["board"]: row["gone"] for row in sums})
    assert found.from_j == pytest.approx({row["board"]: row["left_"] for row in sums})


def test_the_greatest_round_counts_wherever_it_stands(tmp_path):
    tables = begin(tmp_path / "run", 1)
    tables.append([client(2, "nano-1", "nano", 0, "late"), client(1, "nano-1", "nano", 0)])
    found = read_newest_rows(tmp_path / "run", ("status",), 0, 2)
    assert found.rows == {"nano-1": ("late",)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that goes on: the first round is in parts, the second in write-ahead files."""
    folder = tmp_path / "run"
    tables = RunTables(folder)
    for number in (1, 2):
        tables.append([client_row(number, board) for board in "ab"])
        tables.append([traced(number, "a", 3), traced(number, "b", 1), round_row(number)])
        if number == 1:
            tables.seal()
    return folder


def test_sql_sees_parts_and_what_is_not_in_a_part_yet(run):
    sql = "select board, count(*) n, sum(power_w * span_s) j, max(rails_w['VDD_IN']) v from samples group by board"
    with open_run(run) as opened:
        found = opened.query(f"{sql} order by board").to_pylist()
        assert opened.query("select count(*) n from events").to_pylist() == [{"n": 0}]

    assert [(row["board"], row["n"], row["v"]) for row in found] == [("a", 6, 5.0), ("b", 2, 5.0)]
    assert found[0]["j"] == pytest.approx(2 * traced(1, "a", 3).trace.energy_j)


@pytest.mark.parametrize("keep", [slice(0, 300), slice(0, 0), slice(None)])
def test_a_damaged_part_is_named_with_what_to_do_whoever_reads_it(run, keep):
    part = run / "store" / "clients" / "000001.parquet"
    content = bytearray(part.read_bytes())[keep]
    content[4:40] = bytes(sign ^ 0xFF for sign in content[4:40])
    part.write_bytes(content)

    for read in (
        lambda: read_rows(run, ClientRow),
        lambda: open_run(run).arrow("clients"),
        lambda: open_run(run).query("select * from clients"),
    ):
        with pytest.raises(BadInput, match=rf"^{part}: got a damaged file; .* can be moved away"):
            read()


def test_a_part_that_has_gone_since_the_run_was_opened_is_refused_in_words(run):
    with open_run(run) as reader:
        for part in (run / "store" / "rounds").glob("*.parquet"):
            part.unlink()

        with pytest.raises(BadInput, match=r"store: got .*No such file"):
            reader.arrow("rounds")


def test_the_same_rows_as_arrow_pandas_and_records(run):
    with open_run(str(run)) as opened:
        arrow, frame, rows = opened.arrow("clients"), opened.pandas("samples"), opened.rows(ClientRow)

    assert arrow.num_rows == len(rows) == 4
    assert rows == [client_row(number, board) for number in (1, 2) for board in "ab"]
    assert list(frame["board"]) == ["a", "a", "a", "b"] * 2
    assert frame["rails_w"][0] == {"VDD_IN": 5.0, "VDD_CPU": 1.5}


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selec 1", "syntax error"),
        ("", "got nothing"),
        ("select 1; select 2", "got SELECT and SELECT"),
        ("select * from roundz", "roundz does not exist"),
        ("select colour from rounds", '"colour" not found'),
        ("select 'a'::int from rounds", "Could not convert"),
        ("drop table rounds", "got DROP"),
        ("insert into rounds select * from rounds", "got INSERT"),
        ("copy rounds to '{secret}.csv'", "got COPY"),
        ("with a as (copy (select 1) to '{secret}.csv') select 1", "."),
        ("attach '{secret}.db'", "got ATTACH"),
        ("install httpfs", "got LOAD"),
        ("set enable_external_access = true", "got SET"),
        ("pragma enable_external_access = true", "."),
        ("export database '{secret}'", "got EXPORT"),
        ("select * from read_text('{secret}')", "disabled by configuration"),
        ("select * from read_csv('{secret}')", "disabled by configuration"),
        ("select * from glob('/*')", "disabled by configuration"),
        ("select * from '{secret}'", "does not exist"),
        ("from query('copy (select 1) to ''{secret}.csv''')", "."),
        ("select * from parquet_metadata('{run}/store/rounds/000001.parquet')", "disabled by configuration"),
        ("select * from opened", "opened does not exist"),
    ],
)
def test_what_is_no_select_over_the_tables_is_one_line_that_names_them(run, sql, said):
    secret = run.parent / "secret.txt"
    secret.write_text("1,2\n")
    before = sorted(run.parent.rglob("*"))
    with open_run(run) as opened, pytest.raises(BadInput, match=said) as raised:
        opened.query(sql.format(secret=secret, run=run))

    assert "rounds, clients, evaluations, events, samples" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert sorted(run.parent.rglob("*")) == before


def test_a_plan_and_the_columns_may_be_asked_for(run):
    with open_run(run) as opened:
        assert [row["name"] for row in opened.query("show tables").to_pylist()] == [
            "clients",
            "evaluations",
            "events",
            "rounds",
            "samples",
        ]
        assert opened.query("explain select * from rounds").num_rows > 0
        assert opened.query("describe samples").to_pylist()[3]["column_name"] == "board"


def test_sql_neither_installs_nor_loads_an_extension_by_itself(run):
    settings = ("autoinstall_known_extensions", "autoload_known_extensions", "lock_configuration")
    sql = "select " + ", ".join(f"current_setting('{name}') {name}" for name in settings)
    with open_run(run) as opened:
        assert opened.query(sql).to_pylist() == [dict(zip(settings, (False, False, True), strict=True))]


def test_a_folder_that_is_no_run_and_a_table_that_is_none_are_refused(run):
    with pytest.raises(BadInput, match="none: got no such folder; the folder of a run"):
        open_run(run / "none")
    with pytest.raises(BadInput, match=r"got a folder without run\.yaml; the folder of a run$"):
        open_run(run.parent)
    with open_run(run) as opened, pytest.raises(UnknownName, match="known: rounds, clients, evaluations, "):
        opened.arrow("rows")


def test_a_run_before_its_first_row_is_open_and_empty(tmp_path):
    (tmp_path / "run.yaml").write_text("name: x\n")
    with open_run(tmp_path) as opened:
        assert opened.query("select count(*) n from samples").to_pylist() == [{"n": 0}]
