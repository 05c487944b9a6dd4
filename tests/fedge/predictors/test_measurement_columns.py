"""What predictors without a prior learn from: the board's own unthrottled measurements, as far as there are any."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.predictors.measurement_columns import collect_columns
from fedge.types import Measurement, PowerMode

MODE = PowerMode(4, 1000.0, 600.0, 2000.0)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8))
def test_own_ones_come_before_others_and_cool_ones_before_throttled(kinds):
    measurements = [
        Measurement(MODE, 40, 1.0 + i, 20.0, throttled=hot, board=None if own else "another")
        for i, (own, hot) in enumerate(kinds)
    ]
    any_own = any(own for own, _ in kinds)
    any_cool = any(not hot for own, hot in kinds if own == any_own)
    expected = [1.0 + i for i, (own, hot) in enumerate(kinds) if own == any_own and hot != any_cool]

    assert collect_columns("linear", measurements).step_s.tolist() == expected


@given(st.permutations(range(5)))
def test_the_order_of_measurements_does_not_matter(order):
    some = [Measurement(dataclasses.replace(MODE, cores=1 + i // 2), 40, 1.0 + i, 20.0) for i in range(5)]

    found = collect_columns("linear", [some[i] for i in order])

    assert found.step_s.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_nothing_measured_is_too_little():
    with pytest.raises(BadInput, match="predictor linear: got no measurement"):
        collect_columns("linear", [])
