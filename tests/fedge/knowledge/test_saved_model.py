"""A point carries its 90 % intervals; a front runs from fastest to cheapest and holds what nothing beats."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.errors import FedgeError
from fedge.knowledge.saved_model import build_mode_front, build_mode_point
from fedge.types import Modes, Predictions

Row = tuple[float, float, float, float]
rows = st.lists(
    st.tuples(st.floats(0.01, 10.0), st.floats(1.0, 60.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5)),
    min_size=1,
    max_size=12,
)


def predictions(table: list[Row]) -> Predictions:
    step_s, power_w, time_sd, power_sd = np.array(table).T
    knobs = [(1.0 + i, 1000.0, 500.0, 2000.0) for i in range(len(table))]
    return Predictions(Modes(np.array(knobs)), step_s, power_w, time_sd, power_sd)


def test_an_interval_is_as_wide_as_1645_spreads_in_logarithms():
    point = build_mode_point(predictions([(0.1, 20.0, 0.1, 0.0)]), 0)

    assert point.step_s.value == 0.1
    assert point.step_s.low90 == pytest.approx(0.1 * np.exp(-0.1645))
    assert point.step_s.high90 == pytest.approx(0.1 * np.exp(0.1645))
    assert (point.power_w.low90, point.power_w.high90) == (20.0, 20.0)
    assert point.energy_j.value == pytest.approx(2.0)


def test_energy_is_as_unsure_as_time_and_power_together():
    point = build_mode_point(predictions([(0.1, 20.0, 0.03, 0.04)]), 0)

    assert np.log(point.energy_j.high90 / point.energy_j.value) == pytest.approx(1.645 * 0.05)


@given(rows, st.sampled_from(["power", "energy"]))
def test_a_front_holds_exactly_what_no_other_mode_beats(table, against):
    made = predictions(table)
    cost = [p if against == "power" else t * p for t, p, _, _ in table]
    pairs = [(t, c) for (t, _, _, _), c in zip(table, cost, strict=True)]

    front = build_mode_front(made, against, 0)

    found = [
        (point.step_s.value, (point.power_w if against == "power" else point.energy_j).value) for point in front.points
    ]
    beaten = {a for a in pairs if any(b[0] <= a[0] and b[1] <= a[1] and b != a for b in pairs)}
    assert found == sorted(set(pairs) - beaten)
    assert front.knee in front.points
    assert front.maxn.mode == made.modes[0]


def test_a_point_says_whether_its_mode_was_learnt_from():
    made = predictions([(0.1, 20.0, 0.1, 0.1), (0.2, 10.0, 0.1, 0.1)])

    front = build_mode_front(made, "power", 0, frozenset([made.modes[1]]))

    assert [point.measured for point in front.points] == [False, True]


def test_there_is_no_front_of_nothing_finite():
    with pytest.raises(FedgeError, match="finite"):
        build_mode_front(predictions([(float("nan"), 20.0, 0.1, 0.1)]), "power", 0)
