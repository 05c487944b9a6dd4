"""The example of boards that serve, run and reported: budgets held, training slower, a section of its own."""

import dataclasses
from pathlib import Path

import plotly.graph_objects as go
import pytest

pytest.importorskip("torch", reason="boards really train")

from contracts.launching import run_here

from experiments.report.run import board_sections
from experiments.report.run.loaded_runs import LoadedRun, load_run
from experiments.report.run.run_page import write_report, write_report_tables
from fedge.telemetry.store_records import ClientRow

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, project_root: Path) -> LoadedRun:
    """Four rounds of the example."""
    out = tmp_path_factory.mktemp("serving") / "run"
    config = project_root / "experiments/configs/serving.yaml"
    with pytest.MonkeyPatch.context() as patch:
        assert run_here(patch, "run", config, "--set", "rounds=4", "--folder", out) == 0
    return load_run(out)


def rows(run: LoadedRun, board: str) -> list[ClientRow]:
    return [row for row in run.clients if row.board == board]


def test_the_budget_is_held_in_every_round(run):
    serving_rows = [row for row in run.clients if row.requests is not None]

    assert {row.board for row in serving_rows} == {"camera-1", "camera-2", "kiosk-1"}
    for row in serving_rows:
        assert row.latency_p99_s is not None
        assert row.latency_budget_s is not None
        assert row.latency_p99_s <= row.latency_budget_s
    assert run.summary["requests"] == sum(row.requests or 0 for row in serving_rows)
    assert run.summary["latency_held"] == 1.0


def test_training_is_slower_than_without_the_service(run):
    beside, alone = rows(run, "camera-1"), rows(run, "plain-1")
    share = sum(row.service_share or 0.0 for row in beside) / len(beside)

    assert share > 0.1
    for row in beside:
        assert (row.maxn_work_s or 0.0) / row.steps > 1.1 * (alone[0].maxn_work_s or 0.0) / alone[0].steps
        assert row.train_steps_per_s == pytest.approx(row.steps / row.work_s)
    assert all(row.idle_w > rows(run, "plain-1")[0].idle_w for row in rows(run, "camera-1"))


def test_what_a_board_foresees_accounts_for_its_service(run):
    last = [row for row in run.clients if row.round == run.rounds[-1].round and row.requests is not None]
    for row in last:
        assert row.predicted_step_s == pytest.approx(row.step_s, rel=0.25)
        assert row.predicted_power_w == pytest.approx(row.power_w, rel=0.15)


def test_the_report_has_a_section_whose_charts_plotly_takes(run, tmp_path):
    (section,) = board_sections.build_serving_sections(run)

    assert section.title == "Serving"
    assert [chart.title for chart in section.charts] == [
        "Latency against the budget", "Violations", "Training throughput",
    ]  # fmt: skip
    for chart in section.charts:
        go.Figure(chart.data, chart.layout)
        assert {trace["name"] for trace in chart.data} == {"camera-1", "camera-2", "kiosk-1"}
    assert "simulated one by one" not in section.html
    write_report([run.folder], tmp_path / "report.html")
    assert "<h2>Serving</h2>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert tmp_path / "tables/serving.csv" in write_report_tables([run.folder], tmp_path / "tables")


def test_the_report_says_so_when_not_every_request_was_played(run):
    part = [dataclasses.replace(row, service_played=0.25) if row.requests else row for row in run.clients]

    (section,) = board_sections.build_serving_sections(dataclasses.replace(run, clients=tuple(part)))

    assert "simulated one by one (at least 25 %)" in section.html


def test_the_table_has_a_row_for_every_board_and_round(run):
    table = board_sections.serving_table(run)

    assert len(table.rows) == 4 * 3
    assert len(board_sections.serving_table(run, 5).rows) == 5
    assert table.heads[:4] == ("round", "board", "requests", "late")
