"""A round's minibatches, what warm-up and changes of mode took so far, and two parts taken as one."""

from __future__ import annotations

import dataclasses
import math

import pytest
from contracts.rounds import LOW, MAXN, MID, seen
from hypothesis import given
from hypothesis import strategies as st

from fedge.client.step_accounting import (
    DEFAULT_MODE_SWITCH_S,
    count_steps,
    merge_consecutive,
    mode_switch_s,
    warm_up_steps,
)
from fedge.types import Measurement


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 3.0), st.floats(2.0, 30.0), st.floats(0.0, 4.0)),
             min_size=2, max_size=2)
)  # fmt: skip
def test_two_parts_together_take_what_they_took_one_by_one(figures: list[tuple[int, float, float, float]]) -> None:
    """The mode changes before the first of them only."""
    (n, t, w, extra_s), (m, u, v, _) = figures
    first, more = Measurement(MID, n, t, w, warm_up_s=extra_s, switch_s=extra_s / 2), Measurement(MID, m, u, v)
    hot = dataclasses.replace(first, throttled=True)

    whole = merge_consecutive(first, more)

    assert whole.steps == first.steps + more.steps
    assert whole.work_s == pytest.approx(first.work_s + more.work_s)
    assert whole.work_j == pytest.approx(first.work_j + more.work_j)
    assert (merge_consecutive(hot, more).throttled, merge_consecutive(more, hot).throttled, whole.throttled) == (
        True,
        True,
        False,
    )


def test_warm_up_is_the_median_of_the_rounds_that_had_one() -> None:
    assert warm_up_steps([]) == 0.0
    assert warm_up_steps([seen(LOW)]) == 0.0
    assert warm_up_steps([seen(LOW, 1.5), seen(MAXN), seen(MAXN, 2.0), seen(MAXN, 40.0)]) == pytest.approx(2.0)


def test_a_change_of_mode_takes_the_median_of_those_seen_and_a_guess_before() -> None:
    assert mode_switch_s([]) == mode_switch_s([seen(LOW)]) == DEFAULT_MODE_SWITCH_S
    assert mode_switch_s([seen(LOW, 0.0, 0.3), seen(MAXN), seen(LOW, 0.0, 0.0), seen(MID, 0.0, 9.0)]) == pytest.approx(
        0.3
    )


@given(st.integers(1, 500), st.integers(1, 64), st.sampled_from([0.01, 0.5, 1.0, 2.0, 3.7]))
def test_a_share_s_minibatches_cover_it_once_per_epoch(samples: int, batch_size: int, epochs: float) -> None:
    count = count_steps(samples, batch_size, epochs)
    assert count >= 1
    assert abs(count - math.ceil(samples / batch_size) * epochs) <= 0.5 or count == 1
