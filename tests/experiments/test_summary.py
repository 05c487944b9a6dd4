"""The summary's savings: over the rounds in which every board's truth is known, against both baselines."""

from __future__ import annotations

import pytest

from experiments.schema import load_experiment
from experiments.summary import summarise
from fedge.telemetry.rows import ClientRow, RoundRow
from fedge.telemetry.store import read_rows


def summary_of(folder):
    experiment = load_experiment(folder / "run.yaml")
    return summarise(experiment, read_rows(folder, RoundRow), read_rows(folder, ClientRow), 1.0)


def test_savings_are_against_maxn_and_against_maxn_with_low_waiting(make_run):
    found = summary_of(make_run())
    assert found["compared_rounds"] == 3
    assert found["saving_vs_maxn"] == pytest.approx(1 - 100 / 150)
    assert found["saving_vs_maxn_parked"] == pytest.approx(1 - 100 / 120)
    assert found["oracle_saving_vs_maxn"] == pytest.approx(1 - 90 / 150)
    assert found["oracle_saving_vs_maxn_parked"] == pytest.approx(1 - 90 / 120)


def test_a_round_with_a_failed_board_is_left_out_of_the_savings(make_run, fail):
    found = summary_of(make_run(change=fail))
    assert (found["compared_rounds"], found["maxn_energy_j"]) == (2, None)
    assert found["saving_vs_maxn"] == pytest.approx(1 - 100 / 150)


def test_without_truth_there_are_no_savings(make_run):
    found = summary_of(make_run(truth=False))
    assert found["compared_rounds"] == 0
    assert found["saving_vs_maxn"] is found["oracle_saving_vs_maxn_parked"] is None
