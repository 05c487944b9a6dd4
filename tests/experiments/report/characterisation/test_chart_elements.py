"""Of a long series the extremes are drawn: nothing that stands out is lost, and no more than asked for is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.report.characterisation.chart_elements import select_extremes

NUMBERS = st.floats(-1e6, 1e6) | st.just(float("nan"))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=300), st.integers(6, 80))
def test_the_extremes_of_every_series_are_among_the_rows(values: list[tuple[float, float]], most: int) -> None:
    series = list(np.array(values).T)
    rows = select_extremes(series, most)
    assert len(rows) <= max(most, 1)
    assert list(rows) == sorted(set(rows.tolist()))
    assert {0, len(values) - 1} <= set(rows.tolist())
    for one in series:
        if not np.isnan(one).all():
            assert np.nanmax(one[rows]) == np.nanmax(one)
            assert np.nanmin(one[rows]) == np.nanmin(one)


def test_a_short_series_stays_whole() -> None:
    assert list(select_extremes([np.arange(5.0)], 5)) == [0, 1, 2, 3, 4]


def test_a_series_without_rows_has_none() -> None:
    assert list(select_extremes([np.empty(0)], 10)) == []


def test_too_few_rows_for_the_extremes_are_refused() -> None:
    with pytest.raises(ValueError, match="6 can"):
        select_extremes([np.arange(99.0), np.arange(99.0)], 5)
