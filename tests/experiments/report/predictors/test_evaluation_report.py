"""The page of a study draws valid charts of what was played, says what is measured, and survives what is missing."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.boards import MAXN, coefficients, grid
from contracts.shown import check_drawn

from experiments.report.chart import log_ticks
from experiments.report.predictors import evaluation_report
from experiments.report.predictors.evaluation_report import (
    group_seeds,
    name_targets,
    study_column,
    write_evaluation_page,
)
from fedge.knowledge.table_background import TableBackground
from fedge.pareto import front_mask
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.studies.prediction_study import (
    CellResult,
    MethodSetup,
    PredictionCell,
    PredictionRow,
    PredictionStudy,
    PredictionTarget,
)
from fedge.types import Modes, Predictions, ProfileTable

WAYS = (MethodSetup("physical", "random", "plain"), MethodSetup("<b>mine</b>", "active", "verified"))


@pytest.fixture
def target() -> PredictionTarget:
    modes = Modes(grid().knobs[::5])
    seconds, watts = compute_step_s(coefficients(), MAXN, modes), compute_power_w(coefficients(), MAXN, modes)
    table = ProfileTable("board", "net", 16, modes, seconds, watts, "0" * 64, "board/train/net.csv")
    plausible = np.arange(len(modes)) != 7
    background = TableBackground(PriorKnowledge(MAXN), ("tx2/vit 0123",), ("ref.csv 4567",), ("a <note>",))
    return PredictionTarget(table, background, plausible, (10.0, 20.0))


def outcome_of(target: PredictionTarget, way: MethodSetup, modes: int, seed: int, factor: float) -> CellResult:
    table = target.table
    spread = np.full(len(table.modes), 0.1)
    predictions = Predictions(table.modes, factor * table.step_s, table.power_w / factor, spread, spread)
    row = PredictionRow(
        way.method, table.path, modes, seed, time_mape=10.0 + seed, power_mape=5.0, device="board", workload="net"
    )
    return CellResult(PredictionCell(0, way, modes, seed), row, tuple(range(modes)), predictions if seed == 0 else None)


@pytest.fixture
def outcomes(target: PredictionTarget) -> list[CellResult]:
    return [outcome_of(target, way, n, seed, 1.1) for way in WAYS for n in (5, 10) for seed in (0, 1)]


def test_every_chart_of_the_page_is_one_that_plotly_draws(target, outcomes, tmp_path):
    write_evaluation_page(PredictionStudy((target,), WAYS, (5, 10), 2), outcomes, tmp_path / "page.html")

    drawn = check_drawn((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert set(drawn) == {"t0-time-error", "t0-power-error", "t0-predicted-time", "t0-predicted-power", "t0-fronts"}


def test_what_users_wrote_is_escaped(target, outcomes, tmp_path):
    write_evaluation_page(PredictionStudy((target,), WAYS, (5, 10), 2), outcomes, tmp_path / "page.html")

    words = (tmp_path / "page.html").read_text(encoding="utf-8").split("<script")[0]
    assert "<b>mine" not in words
    assert "&lt;b&gt;mine" in words
    assert "a &lt;note&gt;" in words


def test_axes_say_what_is_measured_and_what_is_predicted(target, outcomes):
    for unit in ("ms", "W"):
        layout = evaluation_report.build_scatter_chart("k", "cost", unit, target, outcomes).frames[-1].layout
        assert layout["xaxis"]["title"]["text"].startswith("measured")
        assert layout["yaxis"]["title"]["text"].startswith("predicted")
        assert layout["xaxis"]["title"]["text"].endswith(f"({unit})")
        assert layout["xaxis"]["range"] == layout["yaxis"]["range"]
    names = [trace["name"] for trace in evaluation_report.build_fronts_chart("k", target, outcomes).frames[-1].data]
    assert names[0] == "measured"
    assert "physical: predicted" in names
    assert "physical: measured there" in names


def test_an_axis_whose_ends_no_float_tells_apart_has_no_ticks_of_its_own():
    assert log_ticks(0.0, 1e-17) == {}


def test_profiled_modes_are_not_among_the_points(target, outcomes):
    time = evaluation_report.build_scatter_chart("k", "time", "ms", target, outcomes)
    points = time.frames[-1].data[1]

    assert len(points["x"]) == len(target.table.modes) - 10
    assert not set(points["x"]) & set((1e3 * target.table.step_s[:10]).tolist())
    np.testing.assert_allclose(points["y"], 1.1 * np.array(points["x"]))


def test_implausible_modes_are_hollow(target, outcomes):
    time = evaluation_report.build_scatter_chart("k", "time", "ms", target, outcomes)
    points = time.frames[0].data[1]

    hollow = [x for x, symbol in zip(points["x"], points["marker"]["symbol"], strict=True) if symbol.endswith("-open")]
    assert hollow == [pytest.approx(1e3 * target.table.step_s[7])]


def test_large_tables_are_thinned(target, monkeypatch):
    monkeypatch.setattr(evaluation_report, "MAX_SCATTER_POINTS", 20)
    drawn = [outcome_of(target, WAYS[0], 10, 0, 1.1)]
    time = evaluation_report.build_scatter_chart("k", "time", "ms", target, drawn)

    assert len(time.frames[0].data[1]["x"]) == 20


def test_the_measured_front_is_the_tables_own_without_implausible_rows(target, outcomes):
    measured = evaluation_report.build_fronts_chart("k", target, outcomes).frames[0].data[0]
    rows = np.flatnonzero(target.plausible)
    expected = rows[front_mask(target.table.step_s[rows], target.table.power_w[rows])]

    assert sorted(measured["x"]) == sorted((1e3 * target.table.step_s[expected]).tolist())


def test_bars_reach_from_the_best_seed_to_the_worst(target, outcomes):
    time = evaluation_report.build_error_chart("k", "time", "time_mape", [outcome.row for outcome in outcomes])

    bars = time.data[0]["error_y"]
    assert time.data[0]["y"] == [10.5, 10.5]
    assert (bars["array"], bars["arrayminus"]) == ([0.5, 0.5], [0.5, 0.5])
    assert time.layout["yaxis"]["type"] == "log"
    assert time.layout["xaxis"]["ticktext"] == ["5", "10"]


def test_a_study_of_failures_only_still_has_a_page(target, tmp_path):
    way = WAYS[0]
    failed = CellResult(
        PredictionCell(0, way, 5, 0), PredictionRow(way.method, target.table.path, 5, 0, error="out of <luck>")
    )

    write_evaluation_page(PredictionStudy((target,), (way,), (5,), 1), [failed], tmp_path / "page.html")

    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "1 of 1 cells failed" in page
    assert "out of &lt;luck&gt;" in page


def test_targets_of_one_name_are_told_apart_by_their_paths():
    rows = [
        PredictionRow("m", path, 5, 0, device="b", workload=name) for path, name in (("x", "n"), ("y", "n"), ("z", "o"))
    ]

    assert name_targets(rows) == {"x": "x", "y": "y", "z": "b/o"}
    assert list(group_seeds(rows)) == [("x", "m", 5), ("y", "m", 5), ("b/o", "m", 5)]


def test_a_column_shows_the_mean_and_the_worst_of_what_is_known():
    row = PredictionRow("m", "t", 5, 0)
    rows = [replace(row, time_mape=value, coverage90=value) for value in (10.0, 20.0)]

    assert study_column("", "time_mape").make_cell(rows).content == "15.0 (20.0)"
    assert study_column("", "coverage90", digits=0, worst=min).make_cell(rows).content == "15 (10)"
    assert study_column("", "time_mape", digits=0, worst=None, factor=1e3).make_cell(rows).content == "15,000"
    assert study_column("", "time_mape").make_cell([row, rows[0]]).content == "10.0"
    assert study_column("", "time_mape").make_cell([row]).content == "–"
