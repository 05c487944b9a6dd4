"""The pictures: what is drawn is what was seen, what is left out is said, missing sensors are not drawn as nought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from experiments.report.characterisation import epoch_breakdown, plane_chart, point_timeline, variability_chart
from experiments.report.characterisation.chart_elements import COMPUTE, STALL
from experiments.report.characterisation.setting_summary import SettingSummary, choose_settings, summarise_settings
from fedge.characterisation.point_statistics import compute_point_stats
from fedge.characterisation.reliability import compute_variability
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.characterisation.sweep_store import FinishedPoint, SweepResult
from fedge.errors import BadInput


def by_key(result: SweepResult) -> dict[str, FinishedPoint]:
    return {one.point.key: one for one in result.points}


def settings_in(result: SweepResult) -> tuple[SettingSummary, ...]:
    return summarise_settings([compute_point_stats(one, result.plan.course) for one in result.points], result.plan.base)


def test_the_bars_of_a_setting_add_up_to_its_epoch(settings: tuple[SettingSummary, ...]) -> None:
    chart = next(one for one in epoch_breakdown.build_breakdown_charts(settings) if one.key == "parts-workers")
    bars = [trace for trace in chart.data if trace["type"] == "bar"]
    whole = next(trace for trace in chart.data if trace["name"] == "end to end")
    assert np.sum([trace["x"] for trace in bars], axis=0) == pytest.approx(whole["x"])
    assert {trace["name"]: trace["marker"]["color"] for trace in bars}["stall"] == STALL.colour


def test_one_point_has_a_bar_too(sweep: Callable[..., SweepResult], base: SweepPoint) -> None:
    (chart,) = epoch_breakdown.build_breakdown_charts(settings_in(sweep([base])))
    assert [len(trace["y"]) for trace in chart.data] == [1] * len(chart.data)


def test_more_bars_than_fit_are_behind_a_menu_and_the_rest_is_said(
    sweep: Callable[..., SweepResult], base: SweepPoint
) -> None:
    points = [replace(base, workers=w, batch_size=b) for w in (0, 1) for b in range(1, 101)]
    chart = next(
        one
        for one in epoch_breakdown.build_breakdown_charts(settings_in(sweep(points, steps=2)))
        if one.key == "parts-workers"
    )
    assert len(chart.frames) == epoch_breakdown.MAX_VIEWS
    assert "72 of 100 groups are drawn" in chart.caption


def test_the_plane_marks_what_no_other_setting_beats(settings: tuple[SettingSummary, ...]) -> None:
    section = plane_chart.build_plane_section(settings)
    assert section is not None
    (chart,) = section.charts
    frame = chart.frames[0]
    dots, front, named = frame.data
    best = [one for one in settings if one.point.board == "agx-xavier-1" and one.key in front["customdata"]]
    assert min(one.get_mean("e2e_s") or 0 for one in best) == min(front["x"])
    assert len(dots["x"]) + len(front["x"]) == 6
    assert sorted(named["text"]) == ["MAXN", "MODE_15W"]


def test_a_board_with_one_setting_has_no_plane(sweep: Callable[..., SweepResult], base: SweepPoint) -> None:
    section = plane_chart.build_plane_section(settings_in(sweep([base, replace(base, board="agx-xavier-2")])))
    assert section is not None
    assert section.charts == ()
    assert "nothing to choose from" in section.lead


def test_without_a_meter_there_is_no_plane(sweep: Callable[..., SweepResult], base: SweepPoint) -> None:
    assert plane_chart.build_plane_section(settings_in(sweep([base], metered=False))) is None


def test_the_timeline_keeps_every_extreme_of_a_long_point(sweep: Callable[..., SweepResult], base: SweepPoint) -> None:
    result = sweep([base], steps=4000)
    (chart,) = point_timeline.build_timeline_section(settings_in(result), by_key(result), 1).charts
    (frame,) = chart.frames
    minibatches = result.points[0].read_minibatches()
    line = next(trace for trace in frame.data if trace["name"] == COMPUTE.name)
    assert len(line["x"]) <= point_timeline.MAX_MINIBATCHES
    assert "12,000 minibatches" in frame.told
    assert "drawn with all extremes" in frame.told
    top = frame.layout["yaxis"]["range"][1]
    longest = 1e3 * float(minibatches.compute_s.max())
    assert max(line["y"]) == pytest.approx(min(longest, top))
    beyond = next(trace for trace in frame.data if trace["name"] == "higher than the axis")
    assert any(f"{longest:.4g} ms" in text for text in beyond["hovertext"])


def test_the_timeline_marks_outliers_and_shades_epochs_that_do_not_count(few: SweepResult) -> None:
    (chart,) = point_timeline.build_timeline_section(settings_in(few), by_key(few), 1).charts
    frame = chart.frames[0]
    marked = next(trace for trace in frame.data if trace["name"] == "outlier")
    assert len(marked["x"]) == 2
    shade = frame.layout["shapes"][0]
    assert shade["x0"] == 0.0
    finished = few.points[0]
    assert shade["x1"] < finished.read_minibatches().start_s[-1]


def test_a_lost_file_costs_its_picture_and_is_named(few: SweepResult) -> None:
    def lost() -> None:
        raise BadInput("minibatches/abc.parquet", "no file", "the one that the sweep wrote")

    finished = by_key(few)
    key = next(one for one in finished if finished[one].point.workers == 1)
    finished[key] = replace(finished[key], arrays=replace(finished[key].arrays, minibatches=lost, sensor_trace=lost))
    for section in (
        point_timeline.build_timeline_section(settings_in(few), finished, 1),
        point_timeline.build_sensor_section(settings_in(few), finished),
    ):
        assert "minibatches/abc.parquet" in section.html
        assert section.charts[0].frames


def test_a_missing_sensor_is_named_and_not_drawn(sweep: Callable[..., SweepResult], base: SweepPoint) -> None:
    result = sweep([base], metered=False, gpu=False)
    (chart,) = point_timeline.build_sensor_section(settings_in(result), by_key(result)).charts
    (frame,) = chart.frames
    assert [trace["name"] for trace in frame.data] == ["CPU", "memory", "disk reads", "temperature"]
    assert frame.told.startswith("No sensor: GPU, power.")


def test_what_is_drawn_in_detail_says_why(settings: tuple[SettingSummary, ...]) -> None:
    picked = choose_settings(settings, 5)
    assert len(picked) == 5
    assert picked[0][1] == "typical"
    assert {why for _, why in picked} >= {"most stall", "longest epoch"}
    assert len(choose_settings(settings, 99)) == len(settings)
    assert choose_settings((), 5) == []


def test_variability_shows_repeats_and_boards_around_their_means(few: SweepResult) -> None:
    found = compute_variability([compute_point_stats(one, few.plan.course) for one in few.points])
    section = variability_chart.build_variability_section(found)
    assert [chart.key for chart in section.charts] == [
        "within-e2e_s", "within-energy_j", "between-e2e_s", "between-energy_j",
    ]  # fmt: skip
    repeats = section.charts[0].data[0]
    assert sorted(repeats["x"]) == [1, 2, 3]
    assert sum(repeats["y"]) == pytest.approx(0.0, abs=1e-9)
    assert "varies by" in section.charts[0].title


def test_without_repeats_nothing_is_said_about_variability() -> None:
    assert "course.repeats" in variability_chart.build_variability_section(()).lead
