"""A comparison opens with a sentence per group; its Pareto charts mark what is dominated; its runs differ in colour."""

import re

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.report.chart import row_axis
from experiments.report.run.comparison_page import RunPoint, build_pareto_charts, describe_groups, list_front
from experiments.report.run.loaded_runs import load_runs
from experiments.report.run.run_names import find_differences
from experiments.report.run.run_page import write_report
from experiments.report.run.seed_comparison import group_by_experiment
from fedge.confidence_interval import ConfidenceInterval
from fedge.experiment import Experiment

PLACES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12)


def spots_at(places):
    return [
        RunPoint(str(i), ConfidenceInterval(float(t), None, 1), ConfidenceInterval(float(j), None, 1))
        for i, (t, j) in enumerate(places)
    ]


@given(PLACES)
def test_dominated_is_who_another_beats(places):
    found = spots_at(places)
    for one, (t, j) in zip(found, places, strict=True):
        beaten = any((a < t and b <= j) or (a <= t and b < j) for a, b in places)
        assert bool(one.find_dominating(found)) == beaten


@given(PLACES)
def test_the_front_goes_down_as_it_goes_right(places):
    front = list_front(spots_at(places))
    assert front == sorted(front, key=lambda one: one.time.mean)
    assert front == sorted(front, key=lambda one: one.energy.mean, reverse=True)


def test_groups_have_error_bars_and_the_points_of_maxn_and_the_oracle(seeded):
    folders = [seeded(1), seeded(2, factor=2.0), seeded(1, "maxn", 3.0), seeded(2, "maxn", 4.0)]
    whole, goal = build_pareto_charts(group_by_experiment(load_runs(folders)))
    marks = {one["name"]: one for one in whole.data}
    assert set(marks) == {
        "front",
        "the same rounds: MAXN",
        "the same rounds: oracle",
        "balanced",
        "maxn",
    }
    # Makespans of 60 and 120 s, 300 and 600 J.
    assert (marks["balanced"]["x"], marks["balanced"]["y"]) == ([90], [450])
    assert marks["balanced"]["error_x"]["array"][0] == pytest.approx(12.7062 * 42.4264 / 2**0.5, rel=1e-4)
    assert marks["maxn"]["marker"]["symbol"].endswith("-open")
    # Three rounds of 16 s and 450 J at MAXN, whatever was played; the oracle in the rounds played.
    assert (marks["the same rounds: MAXN"]["x"], marks["the same rounds: MAXN"]["y"]) == ([48, 48], [450, 450])
    assert (marks["the same rounds: oracle"]["x"], marks["the same rounds: oracle"]["y"]) == ([90, 210], [270, 270])
    assert "the same rounds: MAXN" not in {one["name"] for one in goal.data}
    for chart in (whole, goal):
        go.Figure(data=chart.data, layout=chart.layout)


def test_one_seed_has_no_error_bar_and_unknown_truth_no_points(seeded):
    whole, _ = build_pareto_charts(
        group_by_experiment(load_runs([seeded(1, truth=False), seeded(1, "maxn", 0.5, truth=False)]))
    )
    assert [one["name"] for one in whole.data] == ["front", "balanced", "maxn"]
    assert [one["marker"]["symbol"] for one in whole.data[1:]] == ["circle-open", "square"]
    assert not whole.data[1]["error_x"]["visible"]


def test_the_axes_do_not_magnify_small_differences(seeded):
    folders = [seeded(1, truth=False), seeded(1, "maxn", 1.001, truth=False)]
    for chart in build_pareto_charts(group_by_experiment(load_runs(folders))):
        for axis in (chart.layout["xaxis"], chart.layout["yaxis"]):
            low, high = axis["range"]
            assert high - low >= 0.095 * high
        assert "do not start at zero" in chart.caption


def sentences(folders):
    return [text for _, text in describe_groups(group_by_experiment(load_runs(folders)))]


def test_groups_are_compared_with_maxn_over_their_common_seeds(seeded):
    folders = [seeded(1, factor=0.5), seeded(2, factor=0.5), seeded(9, factor=7.0)]
    maxn, balanced = sentences([*folders, seeded(1, "maxn"), seeded(2, "maxn")])
    assert maxn == "maxn: 300 J, 60.0 s, accuracy 83.3 %; means over 2 seeds."
    changes = "balanced: 50 % less energy, 50 % less time than maxn"
    assert balanced == f"{changes}; accuracy 83.3 % against 83.3 %; means over 2 common seeds."


def test_without_maxn_the_first_group_is_the_reference(seeded):
    reference, other = sentences([seeded(1), seeded(1, "fastest", factor=1.018, rounds=2)])
    assert reference.startswith("balanced, rounds 3: 300 J")
    assert "32 % less energy" in other
    assert "than balanced, rounds 3 (2 rounds against 3)" in other


@pytest.mark.parametrize(("factor", "text"), [(1.0, "no more energy"), (1.018, "1.8 % more energy")])
def test_small_changes_have_a_decimal_and_none_is_none(seeded, factor, text):
    assert text in sentences([seeded(1), seeded(1, "fastest", factor=factor)])[1]


def test_runs_of_several_seeds_are_named_by_group_and_seed(seeded):
    runs = load_runs([seeded(1), seeded(2), seeded(1, "maxn")])
    assert [(run.name, run.group_name) for run in runs] == [
        ("balanced, seed 1", "balanced"),
        ("balanced, seed 2", "balanced"),
        ("maxn", "maxn"),
    ]
    assert [run.name for run in load_runs([run.folder for run in runs[:2]])] == ["seed 1", "seed 2"]


def test_ten_runs_have_ten_colours_and_more_differ_in_their_lines(make_run):
    runs = load_runs([make_run(f"run-{i}") for i in range(13)])
    assert len({run.style.colour for run in runs[:10]}) == 10
    assert len({(run.style.colour, run.style.dash) for run in runs}) == 13


def test_names_are_escaped(make_run, tmp_path):
    evil = '<img src=x onerror="alert(1)">'
    write_report([make_run(evil.replace("/", "")), make_run("b<script>")], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;img src=x" in page
    assert not re.search(r"<img|b<script>", page.partition("<script>")[0])
    data = re.search(r'id="charts">(.*?)</script>', page, re.DOTALL)
    assert "<" not in data[1]


def test_a_long_name_of_a_row_is_on_two_lines_and_still_escaped():
    assert row_axis(["maxn", "least-energy, deadline_s 120 <b>"])["ticktext"] == [
        "maxn",
        "least-energy,<br>deadline_s 120 &lt;b&gt;",
    ]


def test_whole_numbers_in_names_have_no_decimals():
    build = Experiment.model_validate
    files = [
        {"fleet": [{"device": "nano"}], "policy": {"name": "least-energy", "deadline_s": limit}}
        for limit in (90, 120.5)
    ]

    assert [one["policy.deadline_s"] for one in find_differences([build(file) for file in files])] == ["90", "120.5"]
