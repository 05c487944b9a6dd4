"""Runs that differ in the seed alone are one group, whose figures have intervals and whose pairs decide."""

import csv
import io

import plotly.graph_objects as go
import pytest

from experiments.report.run import seed_comparison
from experiments.report.run.comparison_page import describe_unlike_labels, labels_table
from experiments.report.run.loaded_runs import load_runs
from experiments.report.run.seed_comparison import group_by_experiment


def rows_of(table):
    return list(csv.DictReader(io.StringIO(table.csv)))


@pytest.fixture
def runs(seeded):
    """MAXN takes 50 J more of seed 1, 60 J more of seed 2, 55 J more of seed 3."""
    ours = [seeded(seed, factor=factor) for seed, factor in ((1, 1.0), (2, 2.0), (3, 3.0))]
    theirs = [seeded(seed, "maxn", factor) for seed, factor in ((1, 7 / 6), (2, 2.2), (3, 3 + 55 / 300))]
    return load_runs([*ours, *theirs])


def test_runs_that_differ_in_the_seed_alone_are_one_group(runs):
    groups = group_by_experiment(runs)
    assert [(group.name, list(group.by_seed)) for group in groups] == [("balanced", [1, 2, 3]), ("maxn", [1, 2, 3])]


def test_a_run_of_a_seed_that_another_run_has_is_a_group_of_its_own(runs):
    again = (*runs, runs[0].__class__(**{name: getattr(runs[0], name) for name in runs[0].__slots__}))
    groups = group_by_experiment(again)
    assert [(group.name, list(group.by_seed)) for group in groups[2:]] == [(again[-1].name, [1])]


def test_a_headline_has_its_mean_its_interval_and_how_many_seeds(runs):
    balanced, maxn = rows_of(seed_comparison.list_seed_tables(runs, group_by_experiment(runs))[0])
    # 300, 600 and 900 J: mean 600, s = 300, t = 4.302653.
    assert (balanced["group"], balanced["n"], float(balanced["energy (J)"])) == ("balanced", "3", 600)
    assert float(balanced["energy (J), ±"]) == pytest.approx(4.302653 * 300 / 3**0.5, rel=1e-6)
    assert float(maxn["energy (J)"]) == pytest.approx(655)


def test_pairs_of_seeds_decide_although_the_intervals_overlap(runs):
    found = {
        row["figure"]: row for row in rows_of(seed_comparison.paired_difference_table(runs, group_by_experiment(runs)))
    }
    assert found["energy"]["groups"] == "balanced − maxn"
    assert found["energy"]["seeds"] == "3"
    told = seed_comparison.paired_difference_table(runs, group_by_experiment(runs)).rows
    energy = next(row for row in told if row[1].plain_text == "energy")
    assert energy[3].value == pytest.approx(-55)
    assert energy[3].half_interval == pytest.approx(4.302653 * 5 / 3**0.5, rel=1e-6)
    assert energy[4].plain_text == "balanced"
    assert next(row for row in told if row[1].plain_text == "accuracy")[4].plain_text == "equal with every seed"


def test_with_one_seed_in_common_there_is_no_interval(seeded):
    runs = load_runs([seeded(1), seeded(2), seeded(2, "maxn", 1.5), seeded(3, "maxn")])
    rows = seed_comparison.paired_difference_table(runs, group_by_experiment(runs)).rows
    assert {row[4].plain_text for row in rows} == {"one common seed: no interval"}
    assert all(row[3].half_interval is None for row in rows)


def test_a_figure_that_a_seed_lacks_says_over_how_many_it_is(seeded):
    runs = load_runs([seeded(1), seeded(2, truth=False), seeded(3)])
    table, *_ = seed_comparison.list_seed_tables(runs, group_by_experiment(runs))
    cell = dict(zip(table.heads, table.rows[0], strict=True))["saving vs MAXN"]
    assert cell.plain_text.endswith("(n = 2)")


def test_lines_are_means_and_bands_their_intervals(runs):
    charts = {chart.key: chart for chart in seed_comparison.build_band_charts(group_by_experiment(runs))}
    band, line = charts["seeds-energy"].data[:2]
    assert line["x"] == [1, 2, 3]
    assert line["y"] == pytest.approx([200, 400, 600])
    half = 4.302653 * 300 / 3**0.5
    # The interval's low end lies below nought, where no energy can be.
    assert band["x"] == [1, 2, 3, 3, 2, 1]
    assert band["y"][2:4] == pytest.approx([600 + half, 0.0], rel=1e-6)
    assert max(charts["seeds-accuracy"].data[0]["y"]) <= 100
    for chart in charts.values():
        go.Figure(data=chart.data, layout=chart.layout)


def test_runs_of_one_seed_each_have_no_section_of_their_own(seeded):
    runs = load_runs([seeded(1), seeded(1, "maxn")])
    assert list(seed_comparison.build_seed_sections(runs, group_by_experiment(runs))) == []


def test_every_run_says_how_its_figures_came_about(seeded, tmp_path):
    labels = {"nano": {"truth": {"label": "calibrated", "source": "x"}, "prior": {"label": "estimated", "source": "y"}}}
    fleet = [{"device": "nano", "count": 1}]
    folders = [seeded(1, fleet=fleet, summary={"labels": labels}), seeded(2, fleet=fleet)]
    runs = load_runs(folders)
    texts = [[cell.plain_text for cell in row] for row in labels_table(runs).rows]
    assert [row[1:] for row in texts] == [
        ["calibrated: nano", "estimated: nano"],
        ["estimated: nano", "estimated: nano"],
    ]
    (sentence,) = describe_unlike_labels(runs)
    assert sentence.endswith(f": calibrated in {runs[0].name}; estimated in {runs[1].name}.")
    assert describe_unlike_labels(runs[:1] * 5) == []
    assert "calibrated in 4 runs; estimated in" in describe_unlike_labels([*runs[:1] * 4, runs[1]])[0]
