"""A mode has settled when its start is over, its scatter small and nothing drifts; simulated series say so."""

import math

import numpy as np
import pytest
from contracts.characterised_points import series
from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.stability import (
    MAX_MINIBATCH_OUTLIER_SHARE,
    MIN_STEPS,
    MeasuredChunk,
    StabilityRule,
    StabilityVerdict,
    assess_steadiness,
    count_warm_up,
    describe_drift,
    find_outliers,
    judge_stability,
)

RULE = StabilityRule()
SEEDS = st.integers(0, 2**32 - 1)
LEVELS = st.floats(1e-3, 5.0)


def chunks_of(times, powers=None, steps: int = 10) -> list[MeasuredChunk]:
    powers = np.full(len(times), 20.0) if powers is None else powers
    return [MeasuredChunk(steps, float(t), float(p), 1.0) for t, p in zip(times, powers, strict=True)]


def until_settled(chunks: list[MeasuredChunk], rule: StabilityRule = RULE) -> StabilityVerdict:
    """What a campaign does: judge after every chunk, stop when settled."""
    for count in range(1, len(chunks) + 1):
        verdict = judge_stability(chunks[:count], rule)
        if verdict.settled:
            return verdict
    return verdict


@given(LEVELS, SEEDS, st.floats(0.0, 0.02))
def test_a_steady_series_settles_near_its_level(level, seed, noise):
    times = level * np.exp(noise * np.random.default_rng(seed).standard_normal(180))
    verdict = until_settled(chunks_of(times))

    assert verdict.settled
    assert abs(math.log(verdict.step_s / level)) < 5.5 * RULE.target
    assert verdict.time_se_log <= RULE.target


@given(SEEDS, st.floats(1.2, 3.0), st.integers(1, 12), st.booleans())
def test_a_step_at_the_start_is_dropped_whichever_figure_shows_it(seed, factor, length, in_power):
    noise = np.exp(0.005 * np.random.default_rng(seed).standard_normal(120))
    stepped = noise * np.where(np.arange(120) < length, factor, 1.0)
    chunks = chunks_of(noise, 20 * stepped) if in_power else chunks_of(stepped)
    verdict = judge_stability(chunks[: 3 * length + 12], RULE)

    assert verdict.dropped >= length
    assert (verdict.power_w / 20 if in_power else verdict.step_s) == pytest.approx(1.0, rel=0.01)


@given(SEEDS, st.floats(1.5, 4.0))
def test_a_start_that_decays_is_not_averaged_in(seed, time_constant):
    """Time constants of a few chunks and 30 % at the start: what remains of it stays within the target's own size."""
    at = np.arange(120)
    noise = np.exp(0.004 * np.random.default_rng(seed).standard_normal(120))
    verdict = until_settled(chunks_of((1 + 0.3 * np.exp(-at / time_constant)) * noise))

    assert verdict.settled
    assert verdict.step_s == pytest.approx(1.0, rel=0.03)


@given(SEEDS, st.floats(0.01, 0.05))
def test_a_drift_that_does_not_end_never_settles(seed, per_chunk):
    noise = np.exp(0.002 * np.random.default_rng(seed).standard_normal(60))
    verdict = until_settled(chunks_of(np.exp(per_chunk * np.arange(60)) * noise))

    assert not verdict.settled
    assert verdict.why


@given(SEEDS, st.lists(st.integers(9, 39), min_size=1, max_size=4, unique=True), st.floats(1.2, 20.0))
def test_a_few_outliers_change_nothing(seed, places, factor):
    times = np.exp(0.005 * np.random.default_rng(seed).standard_normal(40))
    with_outliers = times.copy()
    with_outliers[places] *= factor
    verdict = judge_stability(chunks_of(with_outliers), RULE)

    assert verdict.outliers >= len([place for place in places if place >= verdict.dropped])
    assert verdict.step_s == pytest.approx(1.0, rel=0.01)


@given(SEEDS, st.floats(1.1, 2.0))
def test_a_step_in_the_middle_is_either_left_behind_or_not_settled(seed, factor):
    """Settled after the step means settled on the level after it, never between the two."""
    times = np.exp(0.004 * np.random.default_rng(seed).standard_normal(60))
    times[20:] *= factor
    for count in range(32, 61):
        verdict = judge_stability(chunks_of(times[:count]), RULE)
        if verdict.settled:
            near = [abs(math.log(verdict.step_s / level)) < 0.02 for level in (1.0, factor)]
            assert any(near)
    assert abs(math.log(judge_stability(chunks_of(times), RULE).step_s / factor)) < 0.02


@given(
    st.lists(st.floats(1e-3, 10.0), min_size=2, max_size=50), st.lists(st.floats(1.0, 60.0), min_size=50, max_size=50)
)
def test_any_series_gets_a_verdict_with_values_inside_its_range(times, powers):
    verdict = judge_stability(chunks_of(times, powers[: len(times)]), RULE)

    assert min(times) * 0.999 <= verdict.step_s <= max(times) * 1.001
    assert verdict.dropped <= 1 + len(times) // 2
    assert verdict.settled == (not verdict.why)
    assert verdict.time_se_log >= 0


@given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=40), st.floats(0.1, 100.0))
def test_the_unit_of_a_series_does_not_matter(times, scale):
    """Up to ties that rounding may break, the verdict on milliseconds is the verdict on seconds."""
    one, other = (
        judge_stability(chunks_of(np.array(times) * factor), RULE) for factor in (1.0, 2.0 ** round(math.log2(scale)))
    )

    assert one.dropped == other.dropped
    assert one.settled == other.settled


def test_one_chunk_says_something_but_is_never_settled():
    verdict = judge_stability(chunks_of([0.3]), RULE)

    assert verdict.step_s == 0.3
    assert verdict.time_se_log == math.inf
    assert verdict.why == "too little was measured"


@pytest.mark.parametrize(
    ("rule", "settled"),
    [
        (StabilityRule(), True),
        (StabilityRule(least_steps=400), False),
        (StabilityRule(least_s=60.0), False),
        (StabilityRule(least_chunks=31), False),
    ],
)
def test_so_many_chunks_minibatches_and_seconds_are_needed(rule, settled):
    assert judge_stability(chunks_of([0.1] * 30), rule).settled is settled


def test_standard_errors_are_about_what_means_scatter():
    """Judged at a fixed length, 2 standard errors hold about 95 % of the time (MSER costs some)."""
    held = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        verdict = judge_stability(chunks_of(1 + 0.02 * rng.standard_normal(30)), RULE)
        held += abs(math.log(verdict.step_s)) <= 2 * verdict.time_se_log
    assert 0.85 <= held / 400 <= 0.99


seeds = st.integers(0, 10_000)


@given(seeds, st.integers(1, 40), st.floats(1.5, 20.0))
def test_a_start_that_takes_longer_is_found_whole(seed, start, factor):
    times = series(np.random.default_rng(seed), 200, 0.03, 0.3)
    times[:start] *= factor
    assert start <= count_warm_up(times) <= 100


def test_noise_has_no_start():
    rng = np.random.default_rng(0)
    for n, phi in ((10, 0.0), (40, 0.5), (200, 0.0), (200, 0.8)):
        assert np.mean([count_warm_up(series(rng, n, 0.1, phi)) > 0 for _ in range(200)]) <= 0.1


@given(seeds, st.integers(1, 300))
def test_the_start_is_half_of_the_series_at_most(seed, n):
    times = np.exp(np.random.default_rng(seed).normal(size=n) * 2) + np.linspace(10, 0, n) ** 2
    assert 0 <= count_warm_up(times) <= n // 2


@given(seeds, st.sets(st.integers(0, 199), max_size=10))
def test_planted_outliers_are_marked_and_no_others(seed, places):
    rng = np.random.default_rng(seed)
    times = 1.0 + rng.uniform(-0.05, 0.05, 200)
    times[list(places)] *= 3.0
    assert set(np.flatnonzero(find_outliers(times))) == places


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=200))
def test_never_more_than_the_given_share_is_marked(values):
    assert find_outliers(np.array(values)).mean() <= MAX_MINIBATCH_OUTLIER_SHARE


def test_where_every_fourth_minibatch_waits_that_is_how_the_board_works():
    times = np.where(np.arange(200) % 4 == 0, 3.0, 1.0) * series(np.random.default_rng(0), 200, 0.02)
    assert not find_outliers(times).any()
    assert describe_drift(times) == ""


@given(seeds, st.sampled_from([-0.2, -0.1, 0.1, 0.3]))
def test_a_step_in_the_middle_and_a_trend_are_no_steady_state(seed, change):
    times = series(np.random.default_rng(seed), 200, 0.03)
    word = "more" if change > 0 else "less"
    step, trend = times.copy(), times * (1.0 + change * np.linspace(0, 1, 200))
    step[100:] *= 1.0 + change
    assert word in describe_drift(step)
    assert word in describe_drift(trend)


def test_noise_alone_is_seldom_taken_for_a_drift():
    rng = np.random.default_rng(5)
    assert np.mean([bool(describe_drift(series(rng, 100, 0.1))) for _ in range(300)]) <= 0.03


def test_a_single_long_minibatch_is_no_drift():
    times = series(np.random.default_rng(2), 100, 0.02)
    times[70] = 40.0
    judged = assess_steadiness(times)
    assert judged.settled
    assert np.flatnonzero(judged.outliers).tolist() == [70]


def test_too_few_minibatches_say_nothing():
    judged = assess_steadiness(np.ones(MIN_STEPS - 1))
    assert not judged.settled
    assert "minibatches" in judged.why
    assert assess_steadiness(np.ones(MIN_STEPS)).settled
