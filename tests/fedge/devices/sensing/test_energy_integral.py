"""Energy is the exact integral of straight lines between samples, and says what was odd; made-up samples."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedge.devices.sensing.energy_integral import (
    GAP_SD_LOG,
    UNKNOWN_SE_LOG,
    account_for_gaps,
    integrate_energy,
    join_windows,
    mean_power_se_log,
)
from fedge.errors import SensorLost
from fedge.types import Energy, SensorSample

PERIOD_S = 0.1

watts = st.floats(0.5, 80.0)
steps = st.lists(st.tuples(st.floats(0.01, 2.0), watts), min_size=1, max_size=40)
shares = st.floats(0.0, 1.0)


def train(points: list[tuple[float, float]], start_s: float = 0.0) -> list[SensorSample]:
    """Samples from (seconds since the one before, watts)."""
    samples, at_s = [], start_s
    for step_s, power_w in points:
        at_s += step_s
        samples.append(SensorSample(at_s, power_w))
    return samples


def even(powers: list[float], start_s: float = 0.0) -> list[SensorSample]:
    return [SensorSample(start_s + i * PERIOD_S, power_w) for i, power_w in enumerate(powers)]


def energy(samples: list[SensorSample], start_s: float, end_s: float, changes: tuple[float, ...] = ()) -> Energy:
    return integrate_energy(samples, start_s, end_s, PERIOD_S, "VDD_IN", changes)


def long(samples: list[SensorSample], start_s: float, end_s: float) -> float:
    """Joules without a care for gaps."""
    return integrate_energy(samples, start_s, end_s, 1e6, "VDD_IN").energy_j


def window(samples: list[SensorSample], a: float, b: float) -> tuple[float, float]:
    """A window by two shares of the samples' span and half a second on each side."""
    first_s, last_s = samples[0].at_s - 0.5, samples[-1].at_s + 0.5
    low, high = sorted((first_s + a * (last_s - first_s), first_s + b * (last_s - first_s)))
    assume(high - low > 1e-6)
    return low, high


@given(steps, shares, shares, shares)
def test_adjacent_windows_add_up(points, a, b, c):
    samples = train(points)
    start_s, end_s = window(samples, a, b)
    middle_s = start_s + c * (end_s - start_s)
    assume(start_s < middle_s < end_s)

    parts = long(samples, start_s, middle_s) + long(samples, middle_s, end_s)

    assert parts == pytest.approx(long(samples, start_s, end_s), rel=1e-9)


@given(steps, shares, shares)
def test_energy_is_the_integral_of_the_lines_between_samples(points, a, b):
    samples = train(points)
    start_s, end_s = window(samples, a, b)
    n = 200_000
    middles = start_s + (np.arange(n) + 0.5) * (end_s - start_s) / n

    fine = np.interp(middles, [s.at_s for s in samples], [s.total_w for s in samples]).mean() * (end_s - start_s)

    assert long(samples, start_s, end_s) == pytest.approx(float(fine), rel=1e-4)


@given(steps, shares, shares, st.floats(-1e6, 1e6))
def test_energy_does_not_depend_on_when_the_clock_began(points, a, b, shift_s):
    start_s, end_s = window(train(points), a, b)
    assume(end_s - start_s > 1e-2)

    shifted = long(train(points, shift_s), start_s + shift_s, end_s + shift_s)

    assert shifted == pytest.approx(long(train(points), start_s, end_s), rel=1e-5)


def test_a_steady_window_has_no_gap_and_all_its_samples():
    found = energy(even([5.0] * 101), 2.0, 4.0)

    assert (found.samples, found.gaps, found.throttled, found.mode_changes) == (21, 0, False, 0)
    assert found.longest_gap_s == pytest.approx(PERIOD_S)
    assert (found.mean_w, found.power_se_log, found.peak_c, found.total_power) == (5.0, 0.0, None, "VDD_IN")


def test_a_window_shorter_than_a_period_is_interpolated_and_says_that_it_has_no_sample():
    found = energy(even([4.0, 6.0, 6.0]), 0.04, 0.06)

    assert found.samples == 0
    assert found.mean_w == pytest.approx(5.0)
    assert (found.gaps, found.power_se_log) == (0, UNKNOWN_SE_LOG)


def test_a_gap_counts_in_every_window_that_it_reaches_into():
    samples = [*even([5.0] * 10), *even([5.0] * 10, 2.0)]

    inside, edge, none = (energy(samples, *ends) for ends in ((1.0, 1.1), (1.9, 2.5), (2.0, 2.5)))

    assert (inside.gaps, inside.samples, edge.gaps, none.gaps) == (1, 0, 1, 0)
    assert inside.longest_gap_s == pytest.approx(1.1)


def test_a_window_that_begins_long_before_the_first_sample_has_a_gap():
    assert energy(even([5.0] * 10, 10.0), 5.0, 10.5).gaps == 1
    assert energy(even([5.0] * 10), 0.5, 5.0).longest_gap_s == pytest.approx(4.1)


@pytest.mark.parametrize("ends", [(5.0, 6.0), (-3.0, -1.0)])
def test_a_window_that_no_sample_covers_is_a_loss(ends):
    with pytest.raises(SensorLost, match="no power sample within 3 periods of the window"):
        energy(even([5.0] * 10), *ends)
    with pytest.raises(SensorLost):
        energy([], *ends)


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2.0, 1.0), (1.0, math.nan)])
def test_a_window_has_to_end_after_its_start(ends):
    with pytest.raises(ValueError, match="has to end after its start"):
        energy(even([5.0] * 30), *ends)


@pytest.mark.parametrize(
    ("counts", "throttled"),
    [
        ([3, 3, 3, 3, 3], False),
        ([3, 3, 4, 4, 4], True),
        ([3, 3, None, 4, 4], True),
        ([None] * 5, False),
        ([0, 3, 3, 3, 9], False),
        ([9, 9, 8, 8, 8], False),
    ],
)
def test_a_counter_that_grew_inside_marks_the_window_as_throttled(counts, throttled):
    samples = [SensorSample(float(at_s), 5.0, throttle_events=count) for at_s, count in enumerate(counts)]

    assert integrate_energy(samples, 1.0, 3.0, 1.0, "VDD_IN").throttled is throttled


@pytest.mark.parametrize("ends", [(0.5, 0.75), (0.5, 1.5), (0.0, 0.25)])
def test_throttling_between_samples_counts_in_every_window_that_it_may_lie_in(ends):
    samples = [SensorSample(float(at_s), 5.0, throttle_events=min(at_s, 1)) for at_s in range(4)]

    assert integrate_energy(samples, *ends, 1.0, "VDD_IN").throttled
    assert not integrate_energy(samples, 1.0, 2.5, 1.0, "VDD_IN").throttled


def test_mode_changes_strictly_inside_are_counted():
    assert energy(even([5.0] * 30), 1.0, 2.0, (0.5, 1.0, 1.2, 1.9, 2.0, 2.5)).mode_changes == 2


def test_the_peak_is_that_of_the_hottest_sensor_inside():
    hot = {0.0: 90.0, 0.1: 41.0, 0.2: 47.0, 0.3: 44.0, 0.4: 95.0}
    samples = [SensorSample(at_s, 5.0, temperatures_c={"a": 30.0, "b": at_c}) for at_s, at_c in hot.items()]

    assert energy(samples, 0.05, 0.35).peak_c == 47.0


@given(st.lists(watts, max_size=60), st.floats(0.1, 10.0))
def test_the_standard_error_is_finite_and_has_no_unit(powers, factor):
    found = mean_power_se_log(powers)

    assert 0 <= found < math.inf
    assert mean_power_se_log([factor * power_w for power_w in powers]) == pytest.approx(found, rel=1e-6, abs=1e-9)


def _series(n: int, r: float, seed: int) -> list[float]:
    """Power of mean 10 W and deviation 1 W whose neighbours are correlated by ``r``."""
    rng = np.random.default_rng(seed)
    power = [rng.normal()]
    for step in rng.normal(size=n - 1):
        power.append(r * power[-1] + math.sqrt(1 - r * r) * step)
    return [10 + p for p in power]


@pytest.mark.parametrize(("n", "r"), [(20, 0.0), (20, 0.5), (100, 0.0), (100, 0.8), (300, 0.95)])
def test_the_standard_error_is_about_how_far_means_scatter(n, r):
    series = [_series(n, r, seed) for seed in range(400)]
    scatter = float(np.std([math.log(np.mean(powers)) for powers in series]))
    said = math.sqrt(float(np.mean([mean_power_se_log(powers) ** 2 for powers in series])))

    assert 0.8 < said / scatter < 1.35


def test_the_power_of_a_single_sample_is_not_taken_for_exact():
    assert energy(even([4.0, 6.0]), 0.05, 0.15).power_se_log == UNKNOWN_SE_LOG
    assert mean_power_se_log([]) == mean_power_se_log([5.0]) == UNKNOWN_SE_LOG


def test_a_window_of_which_nearly_nothing_was_seen_is_no_measurement():
    found = energy(even([20.0] * 3, start_s=9.8), 0.0, 10.0)

    assert found.gaps == 1
    with pytest.raises(SensorLost, match=r"3 power samples in 10\.0 s, 1 gaps, the longest 9\.8 s"):
        account_for_gaps(found)


@pytest.mark.parametrize(("gap_s", "share"), [(0.5, 0.05), (0.9, 0.09)])
def test_a_short_gap_makes_the_mean_power_less_sure(gap_s, share):
    samples = [sample for sample in even([20.0] * 101) if not 5.0 < sample.at_s < 5.0 + gap_s - 1e-9]

    seen = account_for_gaps(energy(samples, 0.0, 10.0))

    assert seen.power_se_log == pytest.approx(GAP_SD_LOG * share)


def test_a_window_without_a_gap_stays_as_it_is():
    found = energy(even([4.0, 6.0, 5.0, 7.0, 5.0]), 0.0, 0.4)

    assert account_for_gaps(found) == found


def test_a_window_within_a_short_gap_is_kept_with_a_wide_error():
    found = energy([SensorSample(0.0, 5.0), SensorSample(0.4, 6.0)], 0.1, 0.2)

    assert account_for_gaps(found).power_se_log == pytest.approx(math.hypot(UNKNOWN_SE_LOG, GAP_SD_LOG))


@given(st.lists(st.floats(1.0, 50.0), min_size=61, max_size=61), st.lists(st.integers(1, 59), max_size=5, unique=True))
def test_parts_that_are_joined_are_the_whole(powers, cuts):
    samples = even(powers)
    borders = [0.0, *(cut * PERIOD_S + 0.03 for cut in sorted(cuts)), 60 * PERIOD_S]
    whole = energy(samples, borders[0], borders[-1])

    parts = [energy(samples, a, b) for a, b in pairwise(borders)]
    found = join_windows(parts)

    assert (found.start_s, found.end_s, found.samples, found.gaps) == (whole.start_s, whole.end_s, 61, 0)
    assert found.energy_j == pytest.approx(whole.energy_j)
    assert found.power_se_log <= max(part.power_se_log for part in parts) * (1 + 1e-9)


def test_what_was_odd_in_one_part_is_odd_in_all():
    plain = Energy(0.0, 10.0, 50.0, 100, "VDD_IN", peak_c=50.0, power_se_log=0.01)
    odd = Energy(10.0, 20.0, 50.0, 90, "VDD_IN", 1, 1.1, True, 1, 60.0, 0.01, 1.1)

    found = join_windows([plain, odd, plain])

    assert (found.gaps, found.longest_gap_s, found.mode_changes, found.peak_c) == (1, 1.1, 1, 60.0)
    assert found.unseen_s == 1.1
    assert found.throttled
    assert found.power_se_log == pytest.approx(0.01 / math.sqrt(3))
