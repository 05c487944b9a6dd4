"""``fedge query`` prints what a SELECT gives, or one line that says what was wrong."""

import csv
import io
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from contracts.store_rows import round_row, sample_row

from fedge.telemetry import open_run
from fedge.telemetry.store import RunTables


@pytest.fixture
def run(tmp_path: Path) -> Path:
    tables = RunTables(tmp_path / "run")
    tables.append([round_row(1), round_row(2), sample_row(0.5), sample_row(1.5)])
    tables.close()
    return tmp_path / "run"


def test_a_table_for_the_eye(fedge, run):
    code, out, err = fedge("query", run, "select round, straggler, oracle_energy_j from rounds order by round")

    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["round", "straggler", "oracle_energy_j"],
        ["1", "nano-1"],
        ["2", "nano-1"],
    ]


def test_a_long_table_says_how_much_of_it_is_shown(fedge, run):
    _, out, _ = fedge("query", run, "select 1000 + i as i from range(300) t(i)")
    assert len(out.splitlines()) == 202
    assert out.splitlines()[-1] == "200 of 300 rows; --csv or --json has all"


def test_csv_and_json_have_every_figure_in_full(fedge, run):
    sql = "select at_s / 3 as third, board, rails_w, oracle, 'nan'::double as odd from samples, (select null as oracle)"
    _, text, _ = fedge("query", run, sql, "--csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert float(rows[0]["third"]) == 0.5 / 3
    assert json.loads(rows[1]["rails_w"]) == {"VDD_IN": 5.0, "VDD_CPU": 1.5}
    assert rows[0]["oracle"] == ""

    _, text, _ = fedge("query", run, sql, "--json")
    first = json.loads(text)[0]
    assert first == {
        "third": 0.5 / 3,
        "board": "nano-1",
        "rails_w": {"VDD_IN": 5.0, "VDD_CPU": 0.5},
        "oracle": None,
        "odd": None,
    }


def test_nothing_found_is_an_empty_answer_in_every_form(fedge, run):
    sql = "select round from rounds where round > 9"
    assert fedge("query", run, sql)[1].split() == ["round"]
    assert fedge("query", run, sql, "--csv")[1] == "round\n"
    assert fedge("query", run, sql, "--json")[1] == "[]\n"


def test_a_file_is_written_and_an_earlier_one_kept(fedge, run, tmp_path):
    target = tmp_path / "rounds.csv"
    code, out, err = fedge("query", run, "select round from rounds", "--csv", "--out", target)
    assert (code, out) == (0, "")
    assert "2 rows" in err
    assert target.read_text() == "round\n1\n2\n"

    code, _, err = fedge("query", run, "select 1", "--out", target)
    assert code == 2
    assert "exists already" in err
    assert target.read_text() == "round\n1\n2\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{run}", "delete from rounds"), "got DELETE; one SELECT over the tables rounds, clients, evaluations, "),
        (("{run}", "select 1", "--csv", "--json"), "one of the two"),
        (("{run}", "select 1", "--out", "{run}/none/x.csv"), "a file in a folder that exists"),
    ],
)
def test_a_mistake_is_one_line(fedge, run, arguments, said):
    code, out, err = fedge("query", *(argument.format(run=run) for argument in arguments))

    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select 1 as a, 2 as a", "two columns called a"),
        ("select map([{'x': 1}], [2]) as m", "a value of m that cannot be converted"),
        ("select date '0044-03-15 (BC)' as ides", "a value of ides that cannot be converted"),
        ("select case when i > 9000 then ('a' || i)::int else i end from range(10000) t(i)", "Could not convert"),
    ],
)
def test_an_answer_that_cannot_be_told_is_one_line_too(fedge, run, sql, said, tmp_path):
    code, _, err = fedge("query", run, sql, "--json", "--out", tmp_path / "x.json")

    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.glob("*x.json*")), "nothing half-written"


def test_words_of_boards_cannot_command_the_terminal(fedge, run):
    _, out, _ = fedge("query", run, "select chr(27) || '[2J' as a")
    assert "\x1b" not in out
    assert "?[2J" in out


def test_a_damaged_part_is_one_line_that_names_it(fedge, run):
    (run / "store/rounds/000001.parquet").write_bytes(b"PAR1 and no more")
    code, _, err = fedge("query", run, "select * from rounds")

    assert code == 2
    assert "rounds/000001.parquet" in err
    assert len(err.splitlines()) == 1


def test_a_pipe_that_is_closed_early_is_no_error(run):
    asked = f"{sys.executable} -m experiments.cli.main -q query {run} 'select * from range(300000)' --csv | head -1"
    done = subprocess.run(asked, shell=True, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("range\n", "")


ENDLESS = "select sum(a.i * b.i * c.i) from range(1000000) a(i), range(1000000) b(i), range(1000000) c(i)"


def test_ctrl_c_ends_a_long_question(run):
    program = "import sys; from fedge.telemetry import open_run\nwith open_run(sys.argv[1]) as r:\n"
    program += " print(r.query('select 1').num_rows, flush=True)\n r.query(sys.argv[2])"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(run), ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"1\n"
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()  # or the block would wait for the query
    assert b"KeyboardInterrupt" in err


def test_ctrl_c_while_a_long_question_begins_ends_it_too(run, monkeypatch):
    start = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with open_run(run) as reader:
        assert reader.query("select 1").num_rows == 1
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                reader.query(ENDLESS)
        assert reader.query("select 2").num_rows == 1
