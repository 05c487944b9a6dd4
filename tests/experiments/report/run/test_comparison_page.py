"""A comparison opens with a sentence per group, and its runs have one short name and one colour each."""

from __future__ import annotations

import re

import pytest

from experiments.report.run.comparison_page import describe_groups
from experiments.report.run.loaded_runs import load_runs
from experiments.report.run.run_page import write_report
from experiments.report.run.seed_groups import group_by_experiment


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


def test_runs_that_differ_in_many_fields_are_named_by_their_folders(make_run):
    other = make_run("b", policy="maxn", rounds=2, fleet=[{"device": "tx2", "count": 1}])
    with (other / "run.yaml").open("a", encoding="utf-8") as file:
        file.write("strategy: FedMedian\n")
    runs = load_runs([make_run("a"), other])
    assert [(run.name, run.group_name) for run in runs] == [("a", "a"), ("b", "b")]


def test_ten_runs_have_ten_colours_and_more_differ_in_their_lines(make_run):
    runs = load_runs([make_run(f"run-{i}") for i in range(13)])
    assert len({run.colour for run in runs[:10]}) == 10
    assert len({(run.colour, run.dash) for run in runs}) == 13


def test_names_are_escaped(make_run, tmp_path):
    evil = '<img src=x onerror="alert(1)">'
    write_report([make_run(evil.replace("/", "")), make_run("b<script>")], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;img src=x" in page
    assert not re.search(r"<img|b<script>", page.partition("<script>")[0])
    data = re.search(r'id="charts">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert "<" not in data[1]
