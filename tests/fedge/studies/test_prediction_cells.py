"""A cell becomes one row with every figure, or one row that says why it has none."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from fedge.errors import UnknownName
from fedge.protocols import SimulatedClock
from fedge.studies.prediction_cells import (
    MethodSetup,
    PredictionCell,
    PredictionRow,
    PredictionTarget,
    resolve_setup,
    row_to_dict,
    run_cell,
    warm_up,
)

NAMES = [
    "method",
    "target",
    "modes",
    "seed",
    "time_mape",
    "power_mape",
    "coverage90",
    "penalty_median",
    "penalty_mean",
    "excess_w",
    "over_limit",
    "over_limit_1w",
    "verify_modes",
    "fit_s",
    "predict_s",
    "profiling_s",
]


class Ticking(SimulatedClock):
    """A second passes whenever one looks."""

    def now_s(self) -> float:
        self.sleep_s(1.0)
        return super().now_s()


def test_rows_begin_with_the_published_names() -> None:
    assert [field.name for field in dataclasses.fields(PredictionRow)][: len(NAMES)] == NAMES


def test_a_played_cell_has_every_figure(target: PredictionTarget, plug_ins: str) -> None:
    outcome = run_cell(
        PredictionCell(0, MethodSetup("physical", f"{plug_ins}:Draw", "plain"), 10, 0), target, Ticking()
    )

    row = outcome.row
    assert row.error is None
    assert [name for name in NAMES if getattr(row, name) is None] == []
    assert (row.method, row.target, row.modes, row.seed) == ("physical", target.table.path, 10, 0)
    assert (row.fit_s, row.predict_s, row.explore_s) == (1.0, 1.0, 1.0)
    assert row.time_mape is not None
    assert 0.0 < row.time_mape < 20.0
    assert row.problems == 3
    assert (row.profiled, row.rows, row.implausible) == (10, len(target.table.modes), 0)
    assert row.prior_tables == ("board/other 0123",)
    assert len(outcome.profiled) == 10


def test_a_plain_choice_is_scored_like_a_search_through_the_predictions(
    target: PredictionTarget, plug_ins: str
) -> None:
    outcome = run_cell(
        PredictionCell(0, MethodSetup("physical", f"{plug_ins}:Draw", "plain"), 10, 0), target, Ticking()
    )
    assert outcome.predictions is not None
    table, penalties = target.table, []
    for budget_w in target.budgets_w:
        allowed = outcome.predictions.power_w <= budget_w
        chosen = np.flatnonzero(allowed)[np.argmin(outcome.predictions.step_s[allowed])]
        penalties.append(table.step_s[chosen] / table.step_s[table.power_w <= budget_w].min() - 1)

    assert outcome.row.penalty_mean == pytest.approx(100 * np.mean(penalties))


def test_all_methods_get_the_same_random_modes(target: PredictionTarget, plug_ins: str) -> None:
    methods = ("physical", f"{plug_ins}:Constant")
    drawn = {
        seed: [
            run_cell(
                PredictionCell(0, MethodSetup(m, f"{plug_ins}:Draw", "plain"), 10, seed), target, Ticking()
            ).profiled
            for m in methods
        ]
        for seed in (0, 1)
    }

    assert drawn[0][0] == drawn[0][1]
    assert drawn[0][0] != drawn[1][0]


def test_implausible_rows_count_in_the_figures_that_say_all_only(target: PredictionTarget, plug_ins: str) -> None:
    step_s = target.table.step_s.copy()
    bad = int(np.argmin(target.table.power_w))
    step_s[bad] = step_s.min() / 3
    table = dataclasses.replace(target.table, step_s=step_s)
    plausible = np.arange(len(step_s)) != bad
    spoilt = dataclasses.replace(target, table=table, plausible=plausible)

    row = run_cell(
        PredictionCell(0, MethodSetup("physical", f"{plug_ins}:Draw", "plain"), 10, 0), spoilt, Ticking()
    ).row

    assert row.implausible == 1
    assert row.penalty_mean is not None
    assert row.penalty_mean_all is not None
    assert row.penalty_mean_all > row.penalty_mean + 50.0, "the lucky row is the optimum at every budget"
    assert row.time_mape is not None
    assert row.time_mape_plausible is not None
    assert row.time_mape > row.time_mape_plausible


@pytest.mark.parametrize(
    ("method", "explorer", "words"),
    [
        ("Broken", "Draw", "ZeroDivisionError: on purpose"),
        ("Blind", "Draw", "126 of 126 predictions"),
        ("Constant", "Stranger", "one of the 126 candidates"),
    ],
)
def test_a_method_that_fails_becomes_a_row_with_the_reason(
    target: PredictionTarget, plug_ins: str, method: str, explorer: str, words: str
) -> None:
    outcome = run_cell(
        PredictionCell(0, MethodSetup(f"{plug_ins}:{method}", f"{plug_ins}:{explorer}", "plain"), 10, 2),
        target,
        Ticking(),
    )

    assert words in str(outcome.row.error)
    assert outcome.predictions is None
    assert [name for name in NAMES[4:] if getattr(outcome.row, name) is not None] == []
    assert outcome.row.workload == "net"


def test_warming_up_never_raises(target: PredictionTarget, plug_ins: str) -> None:
    warm_up(MethodSetup(f"{plug_ins}:Broken", "random", "plain"), target)
    warm_up(MethodSetup("no such method", "random", "plain"), target)


def test_a_row_is_json_without_numbers_that_are_none(target: PredictionTarget) -> None:
    row = PredictionRow("physical", "t.csv", 10, 0, time_mape=math.nan, power_mape=math.inf, coverage90=90.0)

    data = json.loads(json.dumps(row_to_dict(row), allow_nan=False))

    assert list(data)[: len(NAMES)] == NAMES
    assert (data["time_mape"], data["power_mape"], data["coverage90"]) == (None, None, 90.0)
    assert data["prior_tables"] == []


@pytest.mark.parametrize(
    ("method", "explorer", "choice", "expected"),
    [
        ("fedge", None, None, MethodSetup("fedge", "active", "verified")),
        ("powertrain", None, None, MethodSetup("powertrain", "random", "plain")),
        ("fedge", "random", None, MethodSetup("fedge", "random", "verified")),
        ("mlp", None, "margin", MethodSetup("mlp", "random", "margin")),
    ],
)
def test_every_method_has_its_own_way_unless_one_is_asked_for(
    method: str, explorer: str | None, choice: str | None, expected: MethodSetup
) -> None:
    assert resolve_setup(method, explorer, choice) == expected


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(UnknownName, match="plain, margin, verified"):
        resolve_setup("fedge", None, "lucky")
