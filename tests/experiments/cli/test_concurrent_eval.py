"""``fedge concurrent eval`` checks what was typed, plays every strategy on every problem, and writes a list of rows."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.jobs import modes, write_tables
from typer.testing import CliRunner

from experiments.cli.command_output import Outputs
from experiments.cli.concurrent_commands import evaluate_jobs, evaluate_strategies
from experiments.cli.main import app
from fedge.errors import BadInput, FedgeError
from fedge.studies.serving.job_tables import JobTableOptions
from fedge.studies.serving.strategy_study import StrategyStudyOptions, build_strategy_jobs, run_strategy_job

FIRST = (
    "strategy",
    "pair",
    "solvable",
    "solved",
    "violations",
    "loss_mean",
    "loss_median",
    "excess_mean",
    "modes_mean",
    "modes_max",
)
PROBLEMS = """
- {family: concurrent, power_w: 30, latency_s: 0.5, rate_hz: 60}
- {power_w: 25, latency_s: 0.5, rate_hz: 60}
- {power_w: 25}
- {family: infer, power_w: 20, latency_s: 0.2, rate_hz: 30}
"""


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    return write_tables(tmp_path)


@pytest.fixture
def asked(tables: tuple[Path, Path], tmp_path: Path, one_core: None) -> StrategyStudyOptions:
    file = tmp_path / "problems.yaml"
    file.write_text(PROBLEMS, encoding="utf-8")
    return StrategyStudyOptions(JobTableOptions((tables[0],), (tables[1],)), "gmd,oracle", str(file))


def test_rows_come_out_one_per_strategy_and_family(asked, tmp_path, capsys):
    evaluate_strategies(asked, Outputs(False, tmp_path / "rows.json"))
    rows: list[dict[str, Any]] = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert [(row["family"], row["strategy"], row["problems"]) for row in rows] == [
        ("train", "gmd", 1),
        ("train", "oracle", 1),
        ("infer", "gmd", 1),
        ("infer", "oracle", 1),
        ("concurrent", "gmd", 2),
        ("concurrent", "oracle", 2),
    ]
    assert all(tuple(row)[: len(FIRST)] == FIRST for row in rows)
    assert {row["pair"] for row in rows} == {"net", "served", "net+served"}
    oracle = rows[-1]
    assert (oracle["solved"], oracle["solvable"], oracle["loss_mean"], oracle["error"]) == (2, 2, 0.0, None)
    told = capsys.readouterr()
    assert "net+served: training and inference, 2 problems" in told.out
    assert "done: oracle on net+served (concurrent), seed 0" in told.err


def test_by_default_the_family_follows_from_the_tables(tables):
    both = build_strategy_jobs(StrategyStudyOptions(JobTableOptions((tables[0],), (tables[1],)), "gmd"))
    train = build_strategy_jobs(StrategyStudyOptions(JobTableOptions((tables[0],)), "gmd"))
    infer = build_strategy_jobs(StrategyStudyOptions(JobTableOptions((), (tables[1],)), "gmd"))
    sizes = [(job.case.family, len(job.case.problems)) for job in (*train, *infer, *both)]
    assert sizes == [("train", 41), ("infer", 5863), ("concurrent", 6560)]


def spoilt(table: Path, column: str, factor: float, line: int) -> None:
    """The table with one number of a line (from 1) made larger or smaller."""
    head, *lines = table.read_text(encoding="utf-8").splitlines()
    cells = lines[line - 1].split(",")
    at = head.split(",").index(column)
    cells[at] = str(factor * float(cells[at]))
    lines[line - 1] = ",".join(cells)
    table.write_text("\n".join([head, *lines]), encoding="utf-8")


def test_modes_with_an_implausible_row_in_any_table_are_left_out(tables):
    asked = StrategyStudyOptions(JobTableOptions((tables[0],), (tables[1],)), "oracle", plausible=True)
    (before,) = build_strategy_jobs(asked)
    spoilt(tables[0], "power_w", 0.4, 15)
    spoilt(tables[1], "power_w", 0.4, 36 + 22)

    (job,) = build_strategy_jobs(asked)
    (whole,) = build_strategy_jobs(replace(asked, plausible=False))

    assert (before.case.blank_row.modes_left_out, whole.case.blank_row.modes_left_out) == (0, None)
    assert job.case.blank_row.modes_left_out == 2
    gone = {*map(tuple, whole.case.pair.modes.knobs)} - {*map(tuple, job.case.pair.modes.knobs)}
    assert gone == {tuple(modes().knobs[14]), tuple(modes().knobs[21])}
    assert job.case.context.modes is job.case.pair.modes
    assert job.case.pair.infer_w.shape == (3, 34)
    assert job.case.pair.train_w.min() > whole.case.pair.train_w.min()


def test_a_search_over_a_grid_plays_where_modes_are_left_out(tables):
    spoilt(tables[0], "power_w", 0.4, 15)

    row = run_strategy_job(
        build_strategy_jobs(StrategyStudyOptions(JobTableOptions((tables[0],)), "gmd", plausible=True))[0]
    )

    assert row.error is None
    assert row.modes_left_out == 1
    assert row.solved == row.solvable > 0


def test_every_training_table_goes_with_every_inference_table(tables, tmp_path):
    more = [shutil.copy(path, path.with_name(f"other-{path.name}")) for path in tables]
    jobs = build_strategy_jobs(
        StrategyStudyOptions(JobTableOptions((tables[0], Path(more[0])), (tables[1], Path(more[1]))), "gmd,oracle")
    )
    assert [(job.case.pair.name, job.strategy) for job in jobs] == [
        (pair, name)
        for pair in ("net+served", "net+other-served", "other-net+served", "other-net+other-served")
        for name in ("gmd", "oracle")
    ]


@pytest.mark.slow
def test_seeds_draw_streams_of_their_own_and_rows_do_not_depend_on_the_processes(tables):
    asked = StrategyStudyOptions(JobTableOptions((tables[0],)), "gmd", reuse=True, problem_count=7, seed=3, seeds=2)
    rows = evaluate_jobs(build_strategy_jobs(asked), workers=1)
    assert [(row.seed, row.problems, row.reuse) for row in rows] == [(3, 7, True), (4, 7, True)]
    again = evaluate_jobs(build_strategy_jobs(asked), workers=2)
    assert [replace(row, seconds=0.0) for row in rows] == [replace(row, seconds=0.0) for row in again]


def test_a_strategy_that_fails_is_a_row_with_an_error_and_the_command_fails_at_the_end(asked, tmp_path, monkeypatch):
    code = "class Broken:\n    def __init__(self, context):\n        raise ValueError('on purpose')\n"
    (tmp_path / "broken_strategy.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(FedgeError, match=r"3 of 6 rows failed; broken_strategy:Broken on net: ValueError: on purpose"):
        evaluate_strategies(
            replace(asked, strategies="broken_strategy:Broken,gmd"), Outputs(False, tmp_path / "rows.json")
        )
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert [row["error"] is None for row in rows] == [False, True] * 3
    assert rows[0]["solved"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategies": "gmd,lucky"}, "--strategies: got 'lucky'; known: "),
        ({"strategies": "gmd,gmd"}, "each once"),
        ({"strategies": ""}, "--strategies: got ''"),
        ({"problems": "nowhere.yaml"}, "--problems: got nowhere.yaml; `default`, or a YAML"),
        ({"problem_count": 99}, "--problem-count: got 99; at most 1"),
        ({"tables": JobTableOptions()}, "--train-table, --infer-table: got no table"),
        ({"tables": JobTableOptions((Path("nowhere.csv"),))}, "nowhere.csv"),
    ],
)
def test_wrong_options_are_one_line(asked, change, words):
    with pytest.raises(BadInput) as error:
        build_strategy_jobs(replace(asked, **change))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {power_w: 30", "text that is not YAML"),
        ("power_w: 30", "a list of problems"),
        ("", "an empty file"),
        ("- " + "[" * 3000, "deeply nested lists"),
        ("- {power_w: 30, a: &a [1, 1], b: &b [*a, *a], c: [*b, *b]}", "a mapping with family"),
    ],
)
def test_a_wrong_file_of_problems_is_one_line(asked, tmp_path, text, words):
    file = tmp_path / "wrong.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as error:
        build_strategy_jobs(replace(asked, problems=str(file)))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_without_a_training_table_a_problem_with_a_rate_is_one_of_inference(tables, tmp_path):
    file = tmp_path / "some.json"
    file.write_text('[{"power_w": 20, "latency_s": 0.2, "rate_hz": 30}]', encoding="utf-8")
    (job,) = build_strategy_jobs(StrategyStudyOptions(JobTableOptions((), (tables[1],)), "gmd", str(file)))
    assert [problem.family for problem in job.case.problems] == ["infer"]


def test_problems_of_a_job_without_a_table_are_refused(asked, tables):
    with pytest.raises(
        BadInput, match="--infer-table: got no table; an inference table: the problems are of family infer"
    ):
        build_strategy_jobs(replace(asked, tables=JobTableOptions((tables[0],))))


def test_tables_of_two_boards_a_swapped_pair_and_a_name_for_two_are_refused(tables):
    train, infer = tables
    for given, words in (
        (JobTableOptions((infer,), (train,)), "--train-table: got"),
        (JobTableOptions((), (train,)), "--infer-table: got"),
        (JobTableOptions((train,), (infer,), None, "name"), "--workload: got 2 tables"),
        (JobTableOptions((train, train)), "the same table twice"),
    ):
        with pytest.raises(BadInput) as error:
            build_strategy_jobs(StrategyStudyOptions(given, "gmd"))
        assert words in str(error.value)


def test_the_command_itself_judges(tables, tmp_path):
    out = tmp_path / "rows.json"
    command = ["concurrent", "eval", "--train-table", str(tables[0]), "--strategies", "oracle", "--out", str(out)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert len(json.loads(out.read_text(encoding="utf-8"))) == 1
