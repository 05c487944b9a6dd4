"""Profiling a table asks the explorer once, tells it what was measured, and counts what it would have cost."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.errors import BadInput, FedgeError
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers import load_explorer
from fedge.predictors.table_board import (
    TableBoard,
    check_predictions,
    profile_table,
    profiling_time_s,
    score_predictions,
)
from fedge.types import Modes, PowerMode, Predictions, ProfileTable


def test_the_rows_asked_for_are_told_as_the_table_has_them(table, plug_ins):
    board = TableBoard(table)
    rows = profile_table(load_explorer(f"{plug_ins}:Draw", table.modes, PriorKnowledge(table.maxn, seed=3)), board, 10)

    (told,) = importlib.import_module(plug_ins).TOLD
    assert len(set(rows)) == 10
    assert [m.mode for m in told] == [table.modes[row] for row in rows]
    assert [m.step_s for m in told] == table.step_s[list(rows)].tolist()
    assert [m.power_w for m in told] == table.power_w[list(rows)].tolist()
    assert {m.steps for m in told} == {40}


def test_an_explorer_that_gives_fewer_is_asked_for_the_rest(table, plug_ins):
    rows = profile_table(
        load_explorer(f"{plug_ins}:Stingy", table.modes, PriorKnowledge(table.maxn)), TableBoard(table), 7
    )

    assert len(set(rows)) == 7
    assert [len(told) for told in importlib.import_module(plug_ins).TOLD] == [2, 2, 2, 1]


def test_a_table_that_is_exhausted_gives_fewer(table, plug_ins):
    explorer = load_explorer(f"{plug_ins}:Draw", table.modes, PriorKnowledge(table.maxn))

    assert len(profile_table(explorer, TableBoard(table), len(table.modes) + 5)) == len(table.modes)


def test_a_mode_that_the_table_does_not_have_is_refused(table, plug_ins):
    explorer = load_explorer(f"{plug_ins}:Stranger", table.modes, PriorKnowledge(table.maxn))

    with pytest.raises(BadInput, match="one of the 126 candidates"):
        profile_table(explorer, TableBoard(table), 3)


def test_a_mode_is_found_by_its_knobs(table):
    board = TableBoard(table)

    assert [board.find_row(mode) for mode in table.modes] == list(range(len(table.modes)))
    with pytest.raises(BadInput):
        board.find_row(PowerMode(1, 1.0, 1.0, 1.0))


def test_profiling_takes_settling_and_forty_minibatches_per_mode(table):
    assert profiling_time_s(table, ()) == 0.0
    assert profiling_time_s(table, (4, 9)) == pytest.approx(6.0 + 40 * (table.step_s[4] + table.step_s[9]))


Entry = tuple[float, float, float, float, bool, bool]
POSITIVE = st.floats(0.1, 10.0)


def made(entries: list[Entry]) -> tuple[Predictions, ProfileTable]:
    """Predicted seconds and spread, measured seconds, watts (predicted a tenth too high)."""
    count = len(entries)
    modes = Modes(np.arange(1.0, 4.0 * count + 1.0).reshape(count, 4))
    predicted, sd, measured, watts = (np.array([entry[i] for entry in entries], dtype=np.float64) for i in range(4))
    table = ProfileTable("b", "w", 16, modes, measured, watts, "0" * 64, "w.csv")
    return Predictions(modes, predicted, 1.1 * watts, sd, np.full(count, 0.05)), table


@given(
    st.lists(st.tuples(POSITIVE, POSITIVE, POSITIVE, POSITIVE, st.booleans(), st.booleans()), min_size=1, max_size=20)
)
@settings(max_examples=100)
def test_the_figures_are_those_of_a_plain_loop(entries):
    predictions, table = made(entries)
    profiled = tuple(i for i, entry in enumerate(entries) if entry[4])
    plausible = np.array([entry[5] for entry in entries])

    found = score_predictions(predictions, table, profiled, plausible)

    left = [entry for entry in entries if not entry[4]]
    errors = [abs(p - m) / m for p, _, m, *_ in left]
    inside = [m * math.exp(-1.645 * sd) <= p <= m * math.exp(1.645 * sd) for p, sd, m, *_ in left]
    if not left:
        assert found.time_mape is None
        assert found.coverage90 is None
        return
    assert found.time_mape == pytest.approx(100 * sum(errors) / len(left))
    assert found.power_mape == pytest.approx(10.0)
    assert found.coverage90_time == pytest.approx(100 * sum(inside) / len(left))
    assert found.coverage90_power == 0.0, "log 1.1 lies outside 1.645 x 0.05"
    assert found.coverage90 == pytest.approx(found.coverage90_time / 2)
    good = [error for error, entry in zip(errors, left, strict=True) if entry[5]]
    assert found.time_mape_plausible == (pytest.approx(100 * sum(good) / len(good)) if good else None)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.0, -1.0])
def test_predictions_that_are_no_positive_numbers_cannot_be_scored(wrong):
    predictions, _ = made([(1.0, 0.1, 1.0, 5.0, False, True), (wrong, 0.1, 1.0, 5.0, False, True)])

    with pytest.raises(FedgeError, match="1 of 2 predictions"):
        check_predictions(predictions, 2)


def test_there_must_be_a_prediction_per_row():
    predictions, _ = made([(1.0, 0.1, 1.0, 5.0, False, True)])

    with pytest.raises(FedgeError, match="for 2 modes"):
        check_predictions(predictions, 2)
    check_predictions(predictions, 1)
