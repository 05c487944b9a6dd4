"""The pages and tables of both studies show every run, draw valid charts, escape names, and fit a terminal."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contracts.shown import check_drawn, shown_text

from experiments.report.predictors.fleet_study_report import print_fleet_study, write_fleet_page
from experiments.report.predictors.mode_choice_report import ChoiceColumn, print_mode_choice, write_mode_choice_page
from fedge.experiment import Experiment, FleetEntry
from fedge.modes import stack_modes
from fedge.studies.fleet.fleet_costs import FleetCost
from fedge.studies.fleet.round_comparison import FleetRun, RoundComparison
from fedge.studies.mode_choice_study import POLICIES, ModeChoiceResult, ModeRound
from fedge.types import PowerMode, ProfileTable

TABLE = ProfileTable(
    "board<1>",
    "net",
    32,
    stack_modes([PowerMode(4, 1000.0, 900.0, 800.0)]),
    np.ones(1),
    np.ones(1),
    "0" * 64,
    "b/net.csv",
)


def choice_of(policy: str, ratio: float, seed: int, rounds: int = 12, **unlike: Any) -> ModeChoiceResult:
    """One run of a board with a regret of 5 % and ``seed`` more, which saves 25 % and ``seed`` less."""
    round_ = ModeRound(0, 30.0, 30.0, 105.0 + seed, 100.0, (105.0 + seed) / (0.75 + seed / 100), 9, False, "<4 cores>")
    played = (replace(round_, round=i, deadline_s=30.0 + i % 7, **unlike) for i in range(1, rounds + 1))
    return ModeChoiceResult(policy, ratio, seed, tuple(played))


CHOICES = [choice_of(policy, ratio, seed) for policy in ("fedge", "maxn") for ratio in (1.5, 4.0) for seed in (1, 2)]


def run_of(policy: str, seed: int, rounds: int = 12) -> FleetRun:
    def spent(value_j: float) -> FleetCost:
        return FleetCost(30.0, {"nano-1": value_j, "nano-2": 2 * value_j}, {"nano-1": 30.0, "nano-2": 29.0})

    judged = tuple(
        RoundComparison(
            number, 30.0, 31.0, 310.0, spent(105.0), spent(100.0), spent(95.0), spent(99.0), spent(140.0), spent(130.0),
            spent(120.0), spent(110.0), 0, 1, 315.0, 300.0, 290.0,
        )
        for number in range(1, rounds + 1)
    )  # fmt: skip
    return FleetRun(policy, seed, judged, tuple(float(number) for number in range(1, rounds + 1)))


RUNS = [run_of(policy, seed) for policy in ("least-energy-within-deadline", "<b>mine</b>") for seed in (1, 2)]
FLEET = Experiment(name="demo", fleet=(FleetEntry(device="nano", count=2),))


def test_the_page_of_one_board_has_energy_regret_and_modes_per_ratio(tmp_path):
    write_mode_choice_page(TABLE, 200, CHOICES, tmp_path / "page.html")

    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    charts = check_drawn(page)
    assert list(charts) == [f"r{place}-{what}" for place in (0, 1) for what in ("energy", "regret", "explored")]
    assert [trace["name"] for trace in charts["r0-energy"]["data"]] == ["MAXN", "oracle", "fedge", "maxn"]
    assert charts["r0-regret"]["data"][0]["y"] == [pytest.approx(6.5)] * 12
    assert "board&lt;1&gt;" in page
    assert "board<1>" not in page
    assert "http://" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_the_page_of_a_fleet_has_the_plane_the_rounds_and_every_board(tmp_path):
    write_fleet_page(FLEET, RUNS, tmp_path / "page.html")

    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    charts = check_drawn(page)
    assert list(charts) == ["plane", "gaps", "explored", "boards-0", "boards-1"]
    assert len(charts["plane"]["data"]) == 2 + 6, "what is the same for every policy is drawn once"
    assert charts["gaps"]["layout"]["xaxis"]["dtick"] == 1
    assert '<span class="badge estimated">estimated</span> for 2 of the 2 boards' in page
    assert charts["boards-0"]["data"][0]["x"] == ["nano-1", "nano-2"]
    assert charts["gaps"]["data"][0]["y"] == [pytest.approx(5.0)] * 12
    assert "<b>mine</b>" not in page.split("<script", 1)[0]


def test_boards_that_were_selected_in_some_rounds_only_are_shown(tmp_path):
    run = run_of("balanced", 1)
    ways = ("chosen", "oracle", "maxn", "preset")

    def select(one: RoundComparison, board: str) -> RoundComparison:
        costs = {way: getattr(one, way) for way in ways}
        return replace(one, **{way: replace(c, energies_j={board: c.energies_j[board]}) for way, c in costs.items()})

    rounds = tuple(select(one, f"nano-{1 + one.round % 2}") for one in run.rounds)
    write_fleet_page(FLEET, [replace(run, rounds=rounds)], tmp_path / "page.html")

    (chosen, *_) = check_drawn((tmp_path / "page.html").read_text(encoding="utf-8"))["boards-0"]["data"]
    assert dict(zip(chosen["x"], chosen["y"], strict=True)) == {
        "nano-1": pytest.approx(75.0),
        "nano-2": pytest.approx(75.0),
    }


def test_a_run_of_learning_only_is_shown_as_far_as_it_goes(tmp_path):
    write_fleet_page(FLEET, [run_of("balanced", 1, 2)], tmp_path / "page.html")

    assert "Rounds 1 to 2, seed 1" in (tmp_path / "page.html").read_text(encoding="utf-8")


def fleet_text(runs: Sequence[FleetRun], width: int = 80) -> str:
    return shown_text(print_fleet_study, runs, width=width)


def choice_text(choices: Sequence[Any], width: int = 80) -> str:
    return shown_text(print_mode_choice, TABLE, 200, choices, width=width)


def test_the_terminals_tables_fit_eighty_columns_uncut():
    fleet = fleet_text(RUNS)
    board = choice_text(CHOICES)

    assert "…" not in fleet + board
    assert "5.00 (5.00)" in fleet
    assert "0.32" in fleet
    assert "102.4" not in fleet
    assert "6.50 (7.00)" in board
    assert "23.5 (23.0)" in board, "the worst saving is the least"


@pytest.mark.parametrize(
    ("energy_j", "missed", "explored", "cells"),
    [(100.0, False, 3, ("0.00 (0.00)", "28.6 (28.6)", "3.0 (3)")), (245.67, True, 15, ("145.7 (145.7)", "15.0 (15)"))],
)
def test_the_table_of_one_board_shows_every_column_in_eighty_columns_whatever_the_figures(
    energy_j, missed, explored, cells
):
    figures = {"energy_j": energy_j, "maxn_j": 140.0, "missed": missed, "explored": explored}
    choices = [
        choice_of(policy, ratio, seed, 100, **figures)
        for policy in POLICIES
        for ratio in (1.25, 4.0)
        for seed in (1, 2)
    ]

    text = choice_text(choices)

    assert "…" not in text
    for cell in cells:
        assert text.count(cell) >= len(POLICIES) * 2
    for head in ("ratio", "regret, %", "saved, %", "missed", "modes"):
        assert head in text
    for policy in POLICIES:
        assert len(re.findall(rf"^(?:policy:)? ?{policy}\b", text, re.MULTILINE)) == 2, "a policy begins its line"


def test_limits_out_of_reach_are_told_and_have_no_gap(tmp_path):
    run = run_of("fastest", 1)
    beyond = replace(run, rounds=tuple(replace(one, limits_kept=False) for one in run.rounds))

    write_fleet_page(FLEET, [beyond], tmp_path / "page.html")

    told = "fastest: in 12 of 12 rounds even the oracle exceeds the limits"
    assert told in (tmp_path / "page.html").read_text(encoding="utf-8")
    text = " ".join(fleet_text([beyond], width=160).split())
    assert told in text
    assert "–" in text
    assert "5.00" not in text
    assert "even the oracle" not in fleet_text(RUNS)


def test_a_row_of_one_board_has_the_published_keys():
    row = CHOICES[0].row

    assert list(row) == [
        "policy", "ratio", "seed", "regret_pct", "regret_after10_pct", "energy_saved_pct", "deadlines_missed",
        "modes_explored",
    ]  # fmt: skip


def test_a_figure_that_no_seed_has_is_a_dash():
    assert ChoiceColumn("x", "x").make_cell([{"x": None}]).content == "–"
    assert ChoiceColumn("x", "x").make_cell([{"x": 1.0}, {"x": None}]).content == "1.00"


def test_counts_show_the_worst_as_the_whole_number_that_it_is_and_large_figures_fewer_digits():
    assert ChoiceColumn("x", "x", 1, is_whole_number=True).make_cell([{"x": 1}, {"x": 2}]).content == "1.5 (2)"
    assert ChoiceColumn("x", "x").make_cell([{"x": 99.994}, {"x": 123.456}]).content == "111.7 (123.5)"
