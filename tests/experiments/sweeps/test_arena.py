"""The arena's three protocols, on made-up courses of runs."""

import dataclasses

import pytest

from experiments.report.run.loaded_runs import Course
from experiments.report.run.sweep_report import list_arena_tables
from experiments.sweeps.arena import find_quality, judge_variants, read_courses
from fedge.errors import BadInput

SLOW = Course((0.5, 0.8, 0.9, 0.9, 0.9), (10.0, 20.0, 30.0, 40.0, 50.0), (1.0, 2.0, 3.0, 4.0, 5.0))
QUICK = Course((0.5, 0.8, 0.9, 0.9, 0.9), (5.0, 10.0, 15.0, 20.0, 25.0), (0.5, 1.0, 1.5, 2.0, 2.5))
LUCKY = Course((0.9, 0.5, 0.5, 0.8, 0.8), (1.0, 2.0, 3.0, 4.0, 5.0), (1.0, 2.0, 3.0, 4.0, 5.0))


def test_quality_is_that_of_the_last_model_within_both_budgets():
    assert find_quality(SLOW, budget_s=29.0, budget_j=9.0) == 0.8
    assert find_quality(SLOW, budget_s=29.0, budget_j=1.5) == 0.5
    assert find_quality(SLOW, budget_s=5.0, budget_j=9.0) == 0.0


def test_a_variant_that_costs_half_in_every_seed_has_a_ratio_of_a_half():
    courses = {"a": {1: SLOW, 2: SLOW}, "b": {1: QUICK, 2: QUICK}}
    first, second = judge_variants(courses, target=0.9).rows
    assert first.seconds.difference is None
    assert second.seconds.difference.mean == pytest.approx(-0.6931, abs=1e-4)
    assert second.seconds.difference.verdict == "lower"


def test_a_ratio_over_fewer_seeds_than_the_mean_beside_it_says_over_how_many():
    found = judge_variants({"a": {1: SLOW, 2: LUCKY}, "b": {1: QUICK, 2: QUICK}}, target=0.9)
    first, second = found.rows
    assert (first.seconds.reached, second.seconds.reached) == (1, 2)
    assert second.seconds.difference.n == 1
    (table,) = list_arena_tables(found, "swept")
    assert [table.rows[1][place].plain_text for place in (6, 8)] == ["0.50 (1 of 2 seeds)"] * 2


def test_by_default_all_runs_reach_the_target_and_use_up_the_budgets():
    found = judge_variants({"a": {1: SLOW}, "b": {1: QUICK}})
    assert (found.budget_s, found.budget_j) == (25.0, 2.5)
    assert found.target == pytest.approx(0.9)
    assert [row.quality.mean.mean for row in found.rows if row.quality.mean] == [0.8, 0.9]


def test_a_course_that_still_rises_reaches_the_default_target():
    rising = Course((0.5, 0.6, 0.70, 0.72, 0.74), SLOW.seconds, SLOW.joules)

    found = judge_variants({"a": {1: rising}, "b": {1: QUICK}})

    assert found.target == pytest.approx(0.70)
    assert [(row.seconds.reached, row.joules.reached) for row in found.rows] == [(1, 1), (1, 1)]


def test_a_metric_of_the_users_own_is_no_share():
    better = dataclasses.replace(SLOW, accuracy=(20.0, 25.0, 31.5, 31.5, 31.5))
    courses = {"a": {1: dataclasses.replace(SLOW, accuracy=(20.0, 25.0, 30.0, 30.0, 30.0))}, "b": {1: better}}

    (table,) = list_arena_tables(judge_variants(courses, target=30.0, metric="psnr"), "swept")

    assert table.title.startswith("arena: psnr within ")
    assert table.title.endswith("; cost to 30.0")
    assert table.heads[2] == "psnr"
    assert [cell.plain_text for cell in table.rows[1][2:4]] == ["31.5", "+1.50"]


def test_a_target_in_percent_is_refused():
    with pytest.raises(BadInput, match="--target-accuracy: got 90; from 0 to 1"):
        judge_variants({"a": {1: SLOW}}, target=90.0)


def test_a_folder_that_is_no_sweep_says_how_to_make_one(tmp_path):
    with pytest.raises(BadInput, match=rf"got no sweep; .*`fedge sweep FILE --folder {tmp_path}` makes one"):
        read_courses(tmp_path)


def test_a_disturbed_fleet_is_judged_by_the_same_numbers():
    found = judge_variants({"a": {1: QUICK}}, target=0.9, disturbed={"a": {1: SLOW}})
    assert found.disturbed[0].seconds.mean.mean == 30.0
    titles = [table.title for table in list_arena_tables(found, "swept")]
    assert len(titles) == 2
    assert all("90.0 %" in title for title in titles)


def test_the_cost_by_a_signal_is_compared_only_where_runs_have_one():
    plain = {"a": {1: SLOW, 2: SLOW}, "b": {1: QUICK, 2: QUICK}}
    priced = {
        label: {seed: dataclasses.replace(run, costs=run.seconds) for seed, run in runs.items()}
        for label, runs in plain.items()
    }
    (without,), (with_it,) = (
        list_arena_tables(judge_variants(courses, target=0.9), "swept") for courses in (plain, priced)
    )

    assert "cost by signal" not in without.heads
    assert [cell.plain_text for cell in with_it.rows[1][-2:]] == ["15.0", "0.50 [0.50, 0.50]"]
