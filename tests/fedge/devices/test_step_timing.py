"""Minibatches timed in stretches: all are done, limits are kept, and the seconds add up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.step_timing import CHUNK_S, UNKNOWN_SE_LOG, TimedChunk, count_next_steps, estimate_step_timing

TIMES = st.floats(1e-4, 20.0)


def played(steps: int, step_s: float, warm_up_s: float, limit_s: float | None) -> list[TimedChunk]:
    """A board whose minibatches take ``step_s``, the first one ``warm_up_s`` longer."""
    done: list[TimedChunk] = []
    left, room_s = steps, limit_s
    while (count := count_next_steps(done[-1] if done else None, left, room_s)) > 0:
        done.append(TimedChunk(count, count * step_s + (0.0 if done else warm_up_s)))
        left, room_s = left - count, None if room_s is None else room_s - done[-1].seconds
    return done


@given(steps=st.integers(1, 500), step_s=TIMES, warm_up_s=st.floats(0.0, 30.0))
def test_all_the_work_is_done_and_its_seconds_add_up(steps: int, step_s: float, warm_up_s: float) -> None:
    done = played(steps, step_s, warm_up_s, None)
    timing = estimate_step_timing(done)

    assert sum(chunk.steps for chunk in done) == steps
    total_s = sum(chunk.seconds for chunk in done)
    assert steps * timing.step_s + timing.warm_up_s == pytest.approx(total_s)
    if steps > 1:
        assert timing.step_s == pytest.approx(step_s)
        assert timing.warm_up_s == pytest.approx(warm_up_s, abs=1e-6 + 1e-9 * total_s)


@given(steps=st.integers(1, 500), step_s=TIMES, limit_s=st.floats(-1.0, 60.0))
def test_a_limit_is_kept_but_for_the_one_minibatch_that_is_always_done(
    steps: int, step_s: float, limit_s: float
) -> None:
    done = played(steps, step_s, 0.0, limit_s)
    seconds, count = sum(chunk.seconds for chunk in done), sum(chunk.steps for chunk in done)

    assert count == 1 or seconds <= limit_s * (1 + 1e-9)
    most = min(steps, math.floor(limit_s / step_s * (1 + 1e-9)))
    assert count >= max(1, most - 1)  # rounding may cost the last one


def test_the_first_minibatch_is_timed_alone_and_the_rest_in_stretches() -> None:
    counts = [chunk.steps for chunk in played(60, CHUNK_S / 10, 0.0, None)]

    assert counts == [1, 10, 10, 10, 10, 10, 9]


def test_a_first_minibatch_that_is_faster_is_no_negative_warm_up() -> None:
    timing = estimate_step_timing([TimedChunk(1, 0.8), TimedChunk(3, 3.0)])

    assert timing.warm_up_s == 0.0
    assert timing.step_s == pytest.approx(0.95)


def test_one_stretch_says_nothing_of_its_own_error() -> None:
    assert estimate_step_timing([TimedChunk(1, 0.5)]).se_log == UNKNOWN_SE_LOG


def test_the_error_falls_with_more_stretches() -> None:
    few = [TimedChunk(1, 1.0), *[TimedChunk(5, 5.0 + 0.1 * (-1) ** i) for i in range(4)]]
    many = [TimedChunk(1, 1.0), *[TimedChunk(5, 5.0 + 0.1 * (-1) ** i) for i in range(64)]]

    assert estimate_step_timing(many).se_log < estimate_step_timing(few).se_log / 3


@given(st.lists(st.floats(0.02, 5.0), min_size=2, max_size=2))
def test_in_a_mode_that_is_warm_a_slow_first_minibatch_is_one_like_the_others(seconds: list[float]) -> None:
    timing = estimate_step_timing([TimedChunk(1, s) for s in seconds], cold=False)

    assert timing.warm_up_s == 0.0
    assert timing.step_s == pytest.approx(sum(seconds) / 2)
