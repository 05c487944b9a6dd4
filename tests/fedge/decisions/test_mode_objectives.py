"""Every objective picks what brute force finds on small tables full of ties, doubts and missing predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.mode_objectives import (
    FrontCost,
    ModeChoice,
    find_best_weighted,
    find_fastest_within_power,
    find_front_rows,
    find_knee,
    find_largest_power_within,
    find_least_energy_within_deadline,
    find_least_energy_within_slowdown,
)
from fedge.errors import BadInput, FedgeError
from fedge.types import Modes, Predictions

AGAINST: tuple[FrontCost, ...] = ("power", "energy")


def table(step_s: list[float], power_w: list[float], sd: list[float] | None = None) -> Predictions:
    n = len(step_s)
    knobs = np.column_stack([np.full(n, 4.0), 100.0 * np.arange(1, n + 1), np.full(n, 600.0), np.full(n, 2000.0)])
    spread = np.array(sd if sd is not None else [0.0] * n)
    return Predictions(Modes(knobs), np.array(step_s), np.array(power_w), spread, spread)


@st.composite
def tables(draw: st.DrawFn, missing: bool = True) -> Predictions:
    """1 to 10 modes on coarse grids, so that ties are common; some without a prediction, but never all."""
    n = draw(st.integers(1, 10))

    def column(values: list[float]) -> list[float]:
        return draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))

    step_s, power_w = column([0.1, 0.2, 0.25, 0.4, 0.8]), column([8.0, 10.0, 16.0, 20.0, 32.0])
    if missing:
        for i in draw(st.sets(st.integers(1, 9), max_size=3)):
            if i < n:
                (step_s if draw(st.booleans()) else power_w)[i] = draw(st.sampled_from([math.nan, math.inf]))
    return table(step_s, power_w, column([0.0, 0.05, 0.2]))


Row = tuple[float, float, float, int]


def finite(predictions: Predictions) -> list[Row]:
    """Seconds, watts, joules and number of each row that has a prediction."""
    return [
        (t, p, t * p, i)
        for i, (t, p) in enumerate(zip(predictions.step_s.tolist(), predictions.power_w.tolist(), strict=True))
        if math.isfinite(t) and math.isfinite(p)
    ]


def on_front(predictions: Predictions, against: FrontCost) -> list[Row]:
    """Literal: the rows that no other row beats, of equal ones the first, from fastest to cheapest."""
    rows = finite(predictions)
    cost = 1 if against == "power" else 2

    def beats(a: Row, b: Row) -> bool:
        no_worse = a[0] <= b[0] and a[cost] <= b[cost]
        return no_worse and (a[0] < b[0] or a[cost] < b[cost] or a[3] < b[3])

    return sorted(row for row in rows if not any(beats(other, row) for other in rows))


@given(tables(), st.sampled_from(AGAINST))
def test_the_front_is_what_brute_force_finds_from_fastest_to_cheapest(predictions, against):
    assert find_front_rows(predictions, against).tolist() == [row[3] for row in on_front(predictions, against)]


@given(tables(), st.sampled_from([7.0, 8.0, 13.0, 20.0, 40.0]), st.sampled_from([0.0, 0.5, 2.0]))
def test_fastest_within_power_is_what_brute_force_finds(predictions, limit_w, z):
    choice = find_fastest_within_power(predictions, limit_w, z)

    careful = [(t, p * math.exp(z * predictions.power_w_sd_log[i]), i) for t, p, _, i in finite(predictions)]
    allowed = [(t, p, i) for t, p, i in careful if p <= limit_w * (1 + 1e-9)]
    assert choice.feasible == bool(allowed)
    assert choice.row == (min(allowed)[2] if allowed else min((p, t, i) for t, p, i in careful)[2])


@given(tables(), st.sampled_from([0.05, 0.1, 0.22, 0.4, 1.0]), st.sampled_from([0.0, 0.5, 2.0]))
def test_least_energy_within_a_deadline_is_what_brute_force_finds(predictions, limit_s, z):
    choice = find_least_energy_within_deadline(predictions, limit_s, z)

    careful = [(e, t * math.exp(z * predictions.step_s_sd_log[i]), i) for t, _, e, i in finite(predictions)]
    allowed = [(e, t, i) for e, t, i in careful if t <= limit_s * (1 + 1e-9)]
    assert choice.feasible == bool(allowed)
    assert choice.row == (min(allowed)[2] if allowed else min((t, e, i) for e, t, i in careful)[2])


@given(tables(), st.sampled_from([1.0, 1.3, 2.0]), st.sampled_from([0.0, 0.5, 2.0]))
def test_least_energy_within_a_slowdown_is_what_brute_force_finds(predictions, most, z):
    top = finite(predictions)[0]

    choice = find_least_energy_within_slowdown(predictions, top[3], most, z)

    careful = [(e, t * math.exp(z * predictions.step_s_sd_log[i]), i) for t, _, e, i in finite(predictions)]
    careful[0] = (top[2], top[0], top[3])
    assert choice.feasible
    assert choice.row == min((e, t, i) for e, t, i in careful if t <= most * top[0] * (1 + 1e-9))[2]
    assert ("MAXN stays." in choice.why) == (choice.row == top[3])
    assert ("Measure more modes" in choice.why) == (choice.row == top[3] and z > 0.0)


@given(tables(), st.sampled_from([7.0, 8.0, 13.0, 20.0, 40.0]))
def test_the_largest_power_within_a_budget_on_the_front_is_what_brute_force_finds(predictions, limit_w):
    choice = find_largest_power_within(predictions, limit_w)

    front = on_front(predictions, "power")
    allowed = [row for row in front if row[1] <= limit_w]
    assert choice.feasible == bool(allowed)
    assert choice.row == (max(allowed, key=lambda row: row[1]) if allowed else min(front, key=lambda row: row[1]))[3]


@given(tables(), st.sampled_from(AGAINST))
def test_the_knee_lies_farthest_below_the_chord_of_the_front(predictions, against):
    choice = find_knee(predictions, against)

    whole = on_front(predictions, against)
    front = whole[: max(i for i, row in enumerate(whole) if row[2] <= whole[0][2]) + 1]
    logs = [(math.log(row[0]), math.log(row[1 if against == "power" else 2])) for row in front]
    (x0, y0), (x1, y1) = logs[0], logs[-1]
    width, height = x1 - x0 or 1.0, y0 - y1 or 1.0
    shape = [((x - x0) / width, (y - y1) / height) for x, y in logs]
    depth = [1.0 - x - y if len(front) > 1 else 0.0 for x, y in shape]
    chosen = [row[3] for row in front].index(choice.row)
    assert choice.feasible
    assert depth[chosen] == pytest.approx(max(depth))
    assert all(depth[i] < depth[chosen] + 1e-9 for i in range(chosen))


def test_the_knee_weighs_time_and_energy_by_their_own_ranges():
    step_s, joules = [1.0, 1.2, 2.2, 7.4], [1.65, 1.28, 1.05, 1.0]

    assert find_knee(table(step_s, [j / t for j, t in zip(joules, step_s, strict=True)]), "energy").row == 2


@given(tables(), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_the_weighted_choice_is_what_brute_force_finds(predictions, weight):
    choice = find_best_weighted(predictions, weight)

    rows = finite(predictions)
    fastest_s, of_it_j = min((t, e) for t, _, e, _ in rows)
    score = {i: weight * t / fastest_s + (1.0 - weight) * e / of_it_j for t, _, e, i in rows}
    assert score[choice.row] == pytest.approx(min(score.values()))


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
def test_a_weight_that_is_no_share_is_refused(weight):
    with pytest.raises(BadInput, match="time_weight: got"):
        find_best_weighted(table([0.1], [10.0]), weight)


def every_choice(predictions: Predictions) -> list[ModeChoice]:
    return [
        *(find_fastest_within_power(predictions, limit, z) for limit in (5.0, 20.0) for z in (0.0, 1.0)),
        *(find_largest_power_within(predictions, limit) for limit in (5.0, 20.0)),
        *(find_least_energy_within_deadline(predictions, limit, z) for limit in (0.01, 0.3) for z in (0.0, 1.0)),
        *(find_knee(predictions, against) for against in AGAINST),
        find_best_weighted(predictions, 0.5),
    ]


@given(tables())
def test_why_is_one_sentence_with_a_unit(predictions):
    for choice in every_choice(predictions):
        assert choice.why.endswith(".")
        assert choice.why[0].isupper()
        assert " W" in choice.why or " s" in choice.why
        assert len(choice.why) <= 160
        assert "nan" not in choice.why


def test_a_count_of_modes_has_its_thousands_apart():
    choice = find_fastest_within_power(table([1.0] * 1200, [5.0] * 1200), 10.0)

    assert choice.why.startswith("Fastest of 1,200 modes within 10.0 W")


def test_predictions_without_a_single_number_are_an_error_that_says_so():
    blank = table([math.nan, math.inf], [10.0, 10.0])
    for choose in (
        lambda: find_fastest_within_power(blank, 20.0),
        lambda: find_largest_power_within(blank, 20.0),
        lambda: find_least_energy_within_deadline(blank, 1.0),
        lambda: find_knee(blank, "power"),
        lambda: find_best_weighted(blank, 0.5),
    ):
        with pytest.raises(FedgeError, match="none of the 2 modes has a finite prediction"):
            choose()
