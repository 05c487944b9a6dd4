"""One mode is measured in chunks until it has settled, within a limit, and once more if it throttled."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.mode_measurement import BLIND_REST_S, MAX_REST_S, REST_S, count_chunk_steps, measure_mode
from fedge.characterisation.stability import StabilityRule
from fedge.errors import SensorLost
from fedge.types import Measurement, PowerMode

RULE = StabilityRule()
MODE = PowerMode(4, 921.6, 307.2, 1600.0)
TRUE_S = 300.0 / 307.2 / 10


def tenth(seen: Measurement) -> Measurement:
    return dataclasses.replace(seen, step_s=seen.step_s / 10)


def noisy(seen: Measurement, count=itertools.count()) -> Measurement:  # noqa: B008 -- every call differs on purpose
    return dataclasses.replace(seen, step_s=seen.step_s * (2.0 if next(count) % 3 else 0.5))


def hot(times: int):
    """Throttles in the first ``times`` chunks."""
    count = itertools.count()
    return lambda seen: dataclasses.replace(tenth(seen), throttled=next(count) < times)


def test_a_steady_board_is_left_as_soon_as_it_has_settled(fake):
    board, bench = fake(change=tenth)

    seen = measure_mode(bench, MODE, RULE)

    assert seen.verdict.settled
    assert seen.verdict.step_s == pytest.approx(TRUE_S)
    assert seen.note == ""
    assert board.chunks == [1] + [round(1 / TRUE_S)] * RULE.least_chunks
    assert board.visits == [MODE]
    assert seen.seconds == pytest.approx(board.clock.now_s(), abs=1e-3)
    assert seen.joules == pytest.approx(5.0 * board.clock.now_s(), abs=1e-2)


def test_a_board_that_never_settles_is_left_at_the_limit_and_marked(fake):
    board, bench = fake(change=noisy)

    seen = measure_mode(bench, MODE, RULE)

    assert not seen.verdict.settled
    assert seen.note.startswith("not settled: ")
    assert RULE.limit_s <= board.clock.now_s() < RULE.limit_s + 10
    assert seen.as_measurement().step_s > 0


def test_every_verdict_is_told_on_the_way(fake):
    _, bench = fake(change=tenth)
    told = []

    seen = measure_mode(bench, MODE, RULE, told.append)

    assert len(told) == RULE.least_chunks + 1
    assert told[-1] == seen.verdict
    assert not any(verdict.settled for verdict in told[:-1])


def test_a_throttled_board_rests_until_it_is_cooler_and_is_measured_once_more(fake):
    board, bench = fake(change=hot(1), temperature_c=97.0)

    seen = measure_mode(bench, MODE, RULE)

    assert board.visits == [MODE, MODE]
    assert board.rested_s == [REST_S] * 5, "3 degrees each, until 15 degrees cooler"
    assert not seen.throttled
    assert seen.verdict.settled
    assert seen.note == "measured again after it had throttled"
    assert seen.joules == pytest.approx(5.0 * (board.clock.now_s() - 50.0) + 1.5 * 50.0, abs=1e-2)


def test_a_board_that_throttles_again_is_kept_with_a_note(fake):
    board, bench = fake(change=hot(1000), temperature_c=97.0)

    seen = measure_mode(bench, MODE, RULE)

    assert len(board.visits) == 2
    assert seen.throttled
    assert not seen.verdict.settled
    assert seen.note == "not settled: it throttled; throttled, again after cooling"
    assert seen.as_measurement().throttled


def test_a_rest_has_a_limit(fake):
    board, bench = fake(change=hot(1), temperature_c=97.0)
    bench = dataclasses.replace(bench, temperature_c=lambda: 97.0)

    measure_mode(bench, MODE, RULE)

    assert sum(board.rested_s) == MAX_REST_S


@pytest.mark.parametrize(("temperature_c", "rests"), [(None, [BLIND_REST_S]), (60.0, [REST_S])])
def test_a_board_without_a_sensor_or_without_heat_rests_for_a_fixed_time(fake, temperature_c, rests):
    board, bench = fake(change=hot(1), temperature_c=temperature_c)

    measure_mode(bench, MODE, RULE)

    assert board.rested_s == rests


def test_a_lost_sensor_ends_the_mode_and_the_mode_before_is_set_again(fake):
    def lost(seen):
        raise SensorLost("no rail")

    board, bench = fake(change=lost)

    with pytest.raises(SensorLost):
        measure_mode(bench, MODE, RULE)
    assert board.mode != MODE


def test_the_work_is_prepared_before_every_attempt_while_nothing_is_metered(fake):
    board, bench = fake(change=hot(1), temperature_c=97.0)
    prepared = []
    bench = dataclasses.replace(bench, prepare=lambda: prepared.append((board.mode, len(board.visits))))

    measure_mode(bench, MODE, RULE)

    assert prepared == [(bench.device.spec.maxn, 0), (bench.device.spec.maxn, 1)]


@given(st.floats(1e-6, 1e4))
def test_a_chunk_is_about_a_second_or_one_minibatch(step_s):
    steps = count_chunk_steps(step_s, RULE)

    assert 1 <= steps <= 10_000
    assert steps * step_s <= 1.5 * RULE.chunk_s or steps == 1
