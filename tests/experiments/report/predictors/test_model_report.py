"""The page of a front holds its figures, needs nothing but itself, and escapes what came from a file."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.boards import MAXN, coefficients, grid
from contracts.shown import charts_of, check_drawn

from experiments.report.predictors.model_report import (
    MAX_TABLE_ROWS,
    compare_with_maxn,
    describe_facts,
    describe_point,
    thin_front,
    write_front_page,
)
from fedge.knowledge.model_file import (
    BoardModel,
    HeldOutErrors,
    ModelInfo,
    ModelOrigin,
    fit_model_predictor,
    predict_candidates,
)
from fedge.knowledge.model_summary import ModelSummary, summarize_model
from fedge.knowledge.saved_model import ModeFront, build_mode_front
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import Measurement, Modes, Predictions

Made = tuple[ModeFront, ModelSummary, Predictions]


def made(against: Any = "power", label: Any = "measured", modes: Modes | None = None, workload: str = "net") -> Made:
    known = grid() if modes is None else modes
    seconds, watts = compute_step_s(coefficients(), MAXN, known), compute_power_w(coefficients(), MAXN, known)
    rows = range(0, len(known), max(1, len(known) // 8))
    seen = tuple(Measurement(known[i], 40, float(seconds[i]), float(watts[i])) for i in rows)
    origin = ModelOrigin(label, "the <source>", len(known), None, None, 5.0, 50.0)
    about = ModelInfo(
        "physical", "b", workload, 16, origin, "the table's modes", held_out=HeldOutErrors(9, 0.04, 0.02, 0.9, 0.9)
    )
    model = BoardModel(about, seen, known, PriorKnowledge(MAXN, (coefficients(),), (), 1.0))
    predictor = fit_model_predictor(model)
    predictions = predict_candidates(model, predictor)
    maxn = int(np.argmax(known.knobs.sum(axis=1)))
    front = build_mode_front(predictions, against, maxn, frozenset(one.mode for one in seen))
    return front, summarize_model(model, predictor, predictions), predictions


def written(tmp_path: Path, pieces: Made) -> str:
    write_front_page(*pieces, tmp_path / "front.html")
    return (tmp_path / "front.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("against_what", "unit"), [("power", "W"), ("energy", "J")])
def test_the_picture_holds_front_bars_measurements_maxn_and_knee(tmp_path, against_what, unit):
    pieces = made(against_what)
    front = pieces[0]

    chart = charts_of(written(tmp_path, pieces))["front"]

    traces = {trace["name"]: trace for trace in chart["data"]}
    assert set(traces) == {"other modes", "front", "90 %", "measured", "knee", "MAXN"}
    assert len(traces["front"]["x"]) == len(front.points)
    assert traces["MAXN"]["x"][0] == pytest.approx(1e3 * front.maxn.step_s.value, rel=1e-4)
    quantity = front.knee.power_w if against_what == "power" else front.knee.energy_j
    assert traces["knee"]["y"][0] == pytest.approx(quantity.value, rel=1e-4)
    bars = traces["90 %"]
    assert 2 <= len(bars["x"]) <= 20
    assert min(bars["error_y"]["array"]) > 0
    assert f"({unit})" in chart["layout"]["yaxis"]["title"]["text"]


def test_what_is_drawn_is_what_plotly_can_draw(tmp_path):
    assert set(check_drawn(written(tmp_path, made()))) == {"front", "knobs"}


def test_words_from_a_file_cannot_become_markup(tmp_path):
    page = written(tmp_path, made(workload="<script>alert(1)</script>"))

    assert "<script>alert" not in page
    assert "the <source>" not in page
    assert "the &lt;source&gt;" in page


def test_an_emulated_board_is_never_called_measured(tmp_path):
    page = written(tmp_path, made(label="calibrated"))

    assert "<b>Emulated:</b> no board was measured" in page
    assert 'badge measured"' not in page
    assert "emulated" in {trace["name"] for trace in charts_of(page)["front"]["data"]}


def test_the_headline_says_the_error_and_how_the_knee_stands_against_maxn(tmp_path):
    pieces = made()
    front = pieces[0]

    page = written(tmp_path, pieces)

    assert "4.0 % / 2.0 %" in page
    assert compare_with_maxn(front.knee, front.maxn) in page


def test_a_front_of_one_mode_is_drawn_too(tmp_path):
    page = written(tmp_path, made(modes=Modes(grid().knobs[-1:])))

    assert len(charts_of(page)["knobs"]["data"]) == 4


def test_a_thinned_front_keeps_ends_knee_and_maxn_in_order():
    front = made()[0]

    shown = thin_front(front)

    assert len(front.points) > MAX_TABLE_ROWS
    assert len(shown) <= MAX_TABLE_ROWS + 2
    for point in (front.points[0], front.points[-1], front.knee, front.maxn):
        assert point in shown
    on_front = [front.points.index(point) for point in shown if point in front.points]
    assert on_front == sorted(on_front)
    assert "knee" in describe_point(front.knee, front)


def test_throttled_measurements_are_mentioned():
    facts = made()[1]
    hot = tuple(Measurement(one.mode, 40, one.step_s, one.power_w, throttled=True) for one in facts.measurements[:2])
    lines = dict(describe_facts(dataclasses.replace(facts, measurements=(*hot, *facts.measurements[2:]))))

    assert lines["throttled"].startswith("2 of the measurements")
    assert "throttled" not in dict(describe_facts(facts))


def test_against_maxn_is_told_in_percent_with_signs():
    front = made()[0]

    said = compare_with_maxn(front.points[-1], front.maxn)

    assert re.fullmatch(r"\+\d+ % ms, −\d+ % W, [+−]\d+ % J", said)
    assert compare_with_maxn(front.maxn, front.maxn) == "+0 % ms, +0 % W, +0 % J"
