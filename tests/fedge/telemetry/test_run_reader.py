"""A run's tables as Arrow, pandas and SQL; SQL reads these tables and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from contracts.store_rows import client_row, round_row, traced

from fedge.errors import BadInput, UnknownName
from fedge.telemetry import open_run
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_records import ClientRow


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


def test_sql_sees_parts_and_what_is_not_in_a_part_yet(run: Path) -> None:
    sql = "select board, count(*) n, sum(power_w * span_s) j, max(rails_w['VDD_IN']) v from samples group by board"
    with open_run(run) as opened:
        found = opened.query(f"{sql} order by board").to_pylist()
        assert opened.query("select count(*) n from events").to_pylist() == [{"n": 0}]

    assert [(row["board"], row["n"], row["v"]) for row in found] == [("a", 6, 5.0), ("b", 2, 5.0)]
    assert found[0]["j"] == pytest.approx(2 * traced(1, "a", 3).trace.energy_j)


def test_the_same_rows_as_arrow_pandas_and_records(run: Path) -> None:
    with open_run(str(run)) as opened:
        arrow, frame, rows = opened.arrow("clients"), opened.pandas("samples"), opened.rows(ClientRow)

    assert arrow.num_rows == len(rows) == 4
    assert rows == [client_row(number, board) for number in (1, 2) for board in "ab"]
    assert list(frame["board"]) == ["a", "a", "a", "b"] * 2
    assert frame["rails_w"][0] == {"VDD_IN": 5.0, "VDD_CPU": 1.5}


def test_an_open_run_stays_as_it_was(run: Path) -> None:
    with open_run(run) as opened:
        RunTables(run).append([round_row(3)])
        assert opened.query("select max(round) m from rounds").to_pylist() == [{"m": 2}]
    with open_run(run) as opened:
        assert opened.query("select max(round) m from rounds").to_pylist() == [{"m": 3}]


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
def test_what_is_no_select_over_the_tables_is_one_line_that_names_them(run: Path, sql: str, said: str) -> None:
    secret = run.parent / "secret.txt"
    secret.write_text("1,2\n")
    before = sorted(run.parent.rglob("*"))
    with open_run(run) as opened, pytest.raises(BadInput, match=said) as raised:
        opened.query(sql.format(secret=secret, run=run))

    assert "rounds, clients, evaluations, events, samples" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert sorted(run.parent.rglob("*")) == before


def test_a_plan_and_the_columns_may_be_asked_for(run: Path) -> None:
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


def test_sql_neither_installs_nor_loads_an_extension_by_itself(run: Path) -> None:
    sql = "select current_setting('autoinstall_known_extensions') a, current_setting('autoload_known_extensions') b"
    with open_run(run) as opened:
        assert opened.query(sql).to_pylist() == [{"a": False, "b": False}]


def test_a_folder_that_is_no_run_and_a_table_that_is_none_are_refused(run: Path) -> None:
    with pytest.raises(BadInput, match="none: got no such folder; the folder of a run"):
        open_run(run / "none")
    with pytest.raises(BadInput, match="a folder without a run's rows"):
        open_run(run.parent)
    with open_run(run) as opened, pytest.raises(UnknownName, match="known: rounds, clients, evaluations, "):
        opened.arrow("rows")


def test_a_run_before_its_first_row_is_open_and_empty(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: x\n")
    with open_run(tmp_path) as opened:
        assert opened.query("select count(*) n from samples").to_pylist() == [{"n": 0}]
