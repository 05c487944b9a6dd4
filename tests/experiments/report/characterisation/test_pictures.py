"""The pictures: what is drawn is what was seen, what is left out is said, missing sensors are not drawn as nought."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.report.characterisation import knob_charts, point_timeline, setting_charts
from experiments.report.characterisation.characterisation_summary import (
    SettingSummary,
    choose_settings,
    summarise_settings,
)
from experiments.report.characterisation.setting_charts import COMPUTE, STALL
from experiments.report.chart import Chart
from experiments.report.quantities import number
from fedge.characterisation.point_measurement import PointMeasurement
from fedge.characterisation.point_statistics import compute_point_stats
from fedge.characterisation.sweep_findings import compute_variability
from fedge.characterisation.sweep_store import SweepResult
from fedge.devices.catalogue import find
from fedge.errors import BadInput


def by_key(result: SweepResult) -> dict[str, PointMeasurement]:
    return {one.point.key: one for one in result.points}


def settings_in(result: SweepResult) -> tuple[SettingSummary, ...]:
    return summarise_settings([compute_point_stats(one, result.plan.course) for one in result.points], result.plan.base)


def knob_chart(settings: tuple[SettingSummary, ...], key: str) -> Chart:
    return next(one for one in knob_charts.build_knob_section(settings, metered=True).charts if one.key == key)


def test_the_bars_of_a_setting_add_up_to_its_epoch(settings):
    breakdown, *_ = knob_chart(settings, "knob-workers").frames
    bars = [trace for trace in breakdown.data if trace["type"] == "bar"]
    whole = next(trace for trace in breakdown.data if trace["name"] == "end to end")
    assert np.sum([trace["x"] for trace in bars], axis=0) == pytest.approx(whole["x"])
    assert {trace["name"]: trace["marker"]["color"] for trace in bars}["stall"] == STALL.colour


def test_one_point_has_a_bar_too(sweep, base):
    (frame,) = knob_chart(settings_in(sweep([base])), "knob-none").frames
    assert [len(trace["y"]) for trace in frame.data] == [1] * len(frame.data)


def test_more_bars_than_fit_are_behind_a_menu_and_the_rest_is_said(sweep, base):
    points = [replace(base, workers=w, batch_size=b) for w in (0, 1) for b in range(1, 101)]
    chart = knob_chart(settings_in(sweep(points, steps=2)), "knob-workers")
    assert sum(frame.label.startswith("parts") for frame in chart.frames) == knob_charts.MAX_VIEWS
    assert "48 of 100 groups are shown as parts, 6 as lines" in chart.caption


def test_the_menu_has_every_quantity_of_a_knob(settings):
    chart = knob_chart(settings, "knob-workers")
    quantities = ["time of an epoch", "stall of an epoch", "energy of an epoch", "mean power"]
    assert [frame.label for frame in chart.frames] == ["parts of an epoch", *quantities]
    assert chart.frames[1].summary.startswith("Time of an epoch falls by 5")
    unmetered = knob_charts.build_knob_section(settings, metered=False).charts[0]
    assert [frame.label for frame in unmetered.frames] == ["parts of an epoch", *quantities[:2]]


def test_the_plane_marks_what_no_other_setting_beats(settings):
    (section,) = setting_charts.build_plane_section(settings)
    (chart,) = section.charts
    frame = chart.frames[0]
    dots, front, *named = frame.data
    best = [one for one in settings if one.point.board == "agx-xavier-1" and one.key in front["customdata"]]
    assert min(one.get_mean("e2e_s") or 0 for one in best) == min(front["x"])
    assert len(dots["x"]) + len(front["x"]) == 6
    assert [(trace["text"], trace["name"]) for trace in named] == [(["1"], "1 MAXN"), (["2"], "2 MODE_15W")]
    assert "numbers as in the legend" in chart.caption


def test_named_modes_at_one_place_share_a_label(sweep, base):
    modes = find("agx-xavier").presets
    points = [replace(base, mode=mode) for mode in modes.values()]
    settings = settings_in(sweep(points, steps=12))
    place = {"e2e_s": settings[0].stats.e2e_s, "energy_j": settings[0].stats.energy_j}
    near = [replace(one, stats=replace(one.stats, **place)) for one in settings[:3]]
    (section,) = setting_charts.build_plane_section([*near, *settings[3:]])
    named = section.charts[0].frames[0].data[2:]
    labels = [label for trace in named for label in trace["text"] if label]
    assert len(labels) == len(named)
    assert labels[0].startswith("1–")
    assert ", ".join(trace["name"] for trace in named).count("MODE_") == len(modes) - 1


def test_a_board_with_one_setting_has_no_plane(sweep, base):
    (section,) = setting_charts.build_plane_section(settings_in(sweep([base, replace(base, board="agx-xavier-2")])))
    assert section.charts == ()
    assert "only one setting" in section.lead


def test_without_a_meter_there_is_no_plane(sweep, base):
    assert list(setting_charts.build_plane_section(settings_in(sweep([base], metered=False)))) == []


def test_the_timeline_keeps_every_extreme_of_a_long_point(sweep, base):
    result = sweep([base], steps=4000)
    chart, _ = point_timeline.build_point_section(settings_in(result), by_key(result), 1).charts
    (frame,) = chart.frames
    minibatches = result.points[0].read_minibatches()
    line = next(trace for trace in frame.data if trace["name"] == COMPUTE.name)
    assert len(line["x"]) <= point_timeline.MAX_STEPS
    assert "12,000 steps" in frame.summary
    assert "shown with all extremes" in frame.summary
    top = frame.layout["yaxis"]["range"][1]
    longest = 1e3 * float(minibatches.compute_s.max())
    assert max(line["y"]) == pytest.approx(min(longest, top))
    beyond = next(trace for trace in frame.data if trace["name"] == "higher than the axis")
    assert any(f"{number(longest, 4)} ms" in text for text in beyond["hovertext"])


def test_the_timeline_marks_outliers_and_shades_epochs_that_do_not_count(few):
    chart, _ = point_timeline.build_point_section(settings_in(few), by_key(few), 1).charts
    frame = chart.frames[0]
    marked = next(trace for trace in frame.data if trace["name"] == "outlier")
    assert len(marked["x"]) == 2
    shade = frame.layout["shapes"][0]
    assert shade["x0"] == 0.0
    finished = few.points[0]
    assert shade["x1"] < finished.read_minibatches().start_s[-1]


def test_a_lost_file_costs_its_picture_and_is_named(few):
    def lost() -> None:
        raise BadInput("minibatches/abc.parquet", "no file", "the one that the sweep wrote")

    finished = by_key(few)
    key = next(one for one in finished if finished[one].point.workers == 1)
    finished[key] = replace(finished[key], read_minibatches=lost, read_sensor_trace=lost)
    section = point_timeline.build_point_section(settings_in(few), finished, 1)
    assert section.html.count("minibatches/abc.parquet") == 1
    assert all(chart.frames for chart in section.charts)


def test_a_missing_sensor_is_named_and_not_drawn(sweep, base):
    result = sweep([base], metered=False, gpu=False)
    _, chart = point_timeline.build_point_section(settings_in(result), by_key(result), 1).charts
    (frame,) = chart.frames
    assert [trace["name"] for trace in frame.data] == ["CPU", "memory", "disk reads", "temperature"]
    assert frame.summary.startswith("No sensor: GPU, power.")


def test_what_is_drawn_in_detail_says_why(settings):
    picked = choose_settings(settings, 5)
    assert len(picked) == 5
    assert picked[0][1] == "typical"
    most = len(settings) - 1
    spaced = settings[:: -(-len(settings) // most)]
    assert {one.key for one in spaced} <= {one.key for one, _ in choose_settings(settings, most)}
    assert {why for _, why in picked} >= {"most stall", "longest epoch"}
    assert len(choose_settings(settings, 99)) == len(settings)
    assert choose_settings((), 5) == []


def test_variability_shows_repeats_and_boards_around_their_means(few):
    found = compute_variability([compute_point_stats(one, few.plan.course) for one in few.points])
    section = setting_charts.build_variability_section(found)
    assert [(chart.key, frame.label) for chart in section.charts for frame in chart.frames] == [
        ("within", "time"), ("within", "energy"), ("between", "time"), ("between", "energy"),
    ]  # fmt: skip
    repeats = section.charts[0].frames[0].data[0]
    assert sorted(repeats["x"]) == [1, 2, 3]
    assert sum(repeats["y"]) == pytest.approx(0.0, abs=1e-9)
    assert section.charts[0].frames[0].summary.startswith("Time varies by")


def test_without_repeats_nothing_is_said_about_variability():
    assert "course.repeats" in setting_charts.build_variability_section(()).lead
