"""The sweep against evaluating the cost everywhere, with few points and with so many that they are binned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.decisions.planning import cost_sweep
from fedge.decisions.planning.cost_sweep import CostSteps, build_cost_steps, find_first_within, find_least
from fedge.decisions.planning.front_columns import build_columns

places = st.lists(st.tuples(st.integers(1, 60), st.integers(-12, 6)), max_size=60)


def steps_from(rows: list[tuple[int, int]], slope: float) -> CostSteps:
    at_s, change = (np.array(column, dtype=float) for column in (zip(*rows, strict=True) if rows else ([], [])))
    return CostSteps(2.0, 100.0, slope, 2.0 + at_s / 4, change)


@pytest.fixture(params=[0, 10**6], ids=["binned", "sorted"])
def _binned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_sweep, "SORTED_AT_ONCE", request.param)
    monkeypatch.setattr(cost_sweep, "BINS", 7)


@pytest.mark.usefixtures("_binned")
class TestSweep:
    def test_no_deadline_costs_less(self):
        @given(places, st.sampled_from([0.0, 0.5, 2.0, 20.0]))
        @settings(max_examples=300, deadline=None)
        def check(rows: list[tuple[int, int]], slope: float) -> None:
            steps = steps_from(rows, slope)
            tried = sorted({2.0, *steps.at_s.tolist()})
            costs = [steps.evaluate(d) for d in tried]
            assert find_least(steps) == (tried[int(np.argmin(costs))], pytest.approx(min(costs)))

        check()

    def test_no_shorter_deadline_keeps_the_limit(self):
        @given(places, st.sampled_from([0.0, 0.5, 2.0]), st.integers(0, 110))
        @settings(max_examples=300, deadline=None)
        def check(rows: list[tuple[int, int]], slope: float, limit: int) -> None:
            steps = steps_from(rows, slope)
            kept = [d for d in sorted({2.0, *steps.at_s.tolist()}) if steps.evaluate(d) <= limit]
            assert find_first_within(steps, limit) == (kept[0] if kept else None)

        check()


def test_no_board_at_all_costs_nothing_from_the_start():
    steps = build_cost_steps(build_columns({}), np.zeros(0), 0.0)
    assert find_least(steps) == (0.0, 0.0)
    assert find_first_within(steps, 0.0) == 0.0
