"""Energy of a window from power samples, by the trapezoid rule, with irregularities of the window. Pure functions.

=====================  ==========================================================================================
``p(t)``               power in watts: linear between samples, constant before the first and after the last
``E``                  energy of the window [a, b] in joules: the integral of ``p`` from a to b
``T``                  sampling period in seconds
``n``, ``m``, ``s``    samples inside the window, their mean and standard deviation in watts
``r``                  correlation of neighbouring samples, corrected for its bias in short series
=====================  ==========================================================================================

Since ``p`` does not depend on the window, energies of adjacent windows add up exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

from fedge.errors import SensorLost
from fedge.types import Energy, SensorSample

GAP_PERIODS = 3.0
"""A time without samples is a gap if it is longer than this many sampling periods."""
MIN_SAMPLES_FOR_CORRELATION = 8
"""Samples below which they count as independent, because their correlation cannot be estimated. A default."""
MAX_CORRELATION = 0.999
UNKNOWN_SE_LOG = 0.05
"""Standard error (log units) assumed for a mean power of at most one sample; a default that gives it little weight."""
GAP_SD_LOG = 0.3
"""Standard deviation (log units) of power during a gap from that of the samples around it; a default: larger values
give measurements with gaps less weight.
"""
MOST_UNSEEN, MOST_UNSEEN_S = 0.1, 1.0
# A window is rejected if both its share in gaps and its longest gap (seconds) exceed these. Defaults: stricter limits
# lose work on a busy board, looser ones accept guessed energy.


def integrate_energy(
    samples: Sequence[SensorSample],
    start_s: float,
    end_s: float,
    period_s: float,
    total_power: str,
    mode_changes: Sequence[float] = (),
) -> Energy:
    """Integrate power over [start_s, end_s], and count irregularities.

    Samples outside the window are used to interpolate at its ends; without them, the nearest power is assumed. A window
    shorter than a period may contain no sample: its energy is then interpolated, and ``samples`` is 0. A gap counts
    with its whole length even if part of it is outside. ``throttled`` means that a throttle counter increased between
    the last sample not after the start and the first one not before the end. ``power_se_log`` is ``UNKNOWN_SE_LOG`` for
    fewer than two samples inside. ``samples`` are in the order of time. Mode changes strictly inside the window are
    counted.

    Raises:
        SensorLost: The nearest sample is more than ``GAP_PERIODS`` periods away from the window.
        ValueError: The window does not end after its start.
    """
    if not end_s > start_s:
        raise ValueError(f"a window from {start_s} to {end_s} s; it has to end after its start")
    inside, around = _select_samples(samples, start_s, end_s)
    if not is_covered(around, start_s, end_s, period_s):
        raise SensorLost(f"no power sample within {GAP_PERIODS:g} periods of the window {start_s:.3f} to {end_s:.3f} s")
    times = [sample.at_s for sample in around]
    # Where no sample lies outside, the end of the window takes its place.
    knots = [*([start_s] if times[0] >= start_s else []), *times, *([end_s] if times[-1] <= end_s else [])]
    stretches = [b - a for a, b in pairwise(knots)]
    gaps = [stretch for stretch in stretches if stretch > GAP_PERIODS * period_s]
    hottest = [at_c for sample in inside or around if (at_c := sample.hottest_c) is not None]
    return Energy(
        start_s=start_s,
        end_s=end_s,
        energy_j=_energy_j(inside, around, start_s, end_s),
        samples=len(inside),
        total_power=total_power,
        gaps=len(gaps),
        longest_gap_s=max(stretches),
        unseen_s=math.fsum(gaps),
        throttled=_has_throttled(around),
        mode_changes=sum(start_s < at_s < end_s for at_s in mode_changes),
        peak_c=max(hottest, default=None),
        power_se_log=mean_power_se_log([sample.total_w for sample in inside]),
    )


def account_for_gaps(energy: Energy) -> Energy:
    """Widen the standard error of an energy by the uncertainty of its gaps.

    Raises:
        SensorLost: More than a tenth of the window is in gaps, of which one is longer than a second.
    """
    whole_s = energy.end_s - energy.start_s
    unseen = min(energy.unseen_s / whole_s, 1.0)
    if unseen > MOST_UNSEEN and min(energy.longest_gap_s, whole_s) > MOST_UNSEEN_S:
        raise SensorLost(
            f"{energy.samples} power samples in {whole_s:.1f} s, {energy.gaps} gaps, the longest "
            f"{energy.longest_gap_s:.1f} s; at most {MOST_UNSEEN:.0%} may be unseen: check the sensor and "
            "what else the board does"
        )
    return replace(energy, power_se_log=math.hypot(energy.power_se_log, GAP_SD_LOG * unseen))


def join_windows(parts: Sequence[Energy]) -> Energy:
    """Combine adjacent windows; a gap across a border counts in both."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    energy_j = math.fsum(part.energy_j for part in parts)
    error_j = math.hypot(*(part.energy_j * part.power_se_log for part in parts))
    return replace(
        first,
        end_s=last.end_s,
        energy_j=energy_j,
        samples=sum(part.samples for part in parts),
        gaps=sum(part.gaps for part in parts),
        longest_gap_s=max(part.longest_gap_s for part in parts),
        unseen_s=math.fsum(part.unseen_s for part in parts),
        throttled=any(part.throttled for part in parts),
        mode_changes=sum(part.mode_changes for part in parts),
        peak_c=max((part.peak_c for part in parts if part.peak_c is not None), default=None),
        power_se_log=error_j / energy_j if energy_j > 0 else UNKNOWN_SE_LOG,
    )


def is_covered(samples: Sequence[SensorSample], start_s: float, end_s: float, period_s: float) -> bool:
    """Return True if a sample is in the window, or within ``GAP_PERIODS`` periods of it."""
    margin_s = GAP_PERIODS * period_s
    return any(start_s - margin_s <= sample.at_s <= end_s + margin_s for sample in samples)


def mean_power_se_log(watts: Sequence[float]) -> float:
    """Return the standard error of the mean of equidistant power samples, in log units.

    It is ``s / (m sqrt(n'))`` with ``n' = n (1 - r) / (1 + r)`` effectively independent samples, since power samples
    are correlated. ``r`` is the correlation of neighbours plus ``(1 + 3 r) / n``, its bias in a short series, and at
    least 0, so that an alternating series gains nothing. A drift counts as scatter.

    Returns:
        The standard error; ``UNKNOWN_SE_LOG`` for fewer than two samples.

    References:
        Kendall, M. G. 1954: Note on bias in the estimation of autocorrelation. Biometrika 41.
    """
    n = len(watts)
    mean_w = math.fsum(watts) / n if n else 0.0
    if n < 2 or mean_w <= 0:
        return UNKNOWN_SE_LOG
    off = [power_w - mean_w for power_w in watts]
    squares = math.fsum(o * o for o in off)
    if squares <= (1e-12 * mean_w) ** 2 * n:
        return 0.0
    r = 0.0
    if n >= MIN_SAMPLES_FOR_CORRELATION:
        neighbours = math.fsum(a * b for a, b in pairwise(off)) / squares
        r = min(max(neighbours + (1 + 3 * neighbours) / n, 0.0), MAX_CORRELATION)
    independent = max(n * (1 - r) / (1 + r), 1.0)
    return math.sqrt(squares / (n - 1) / independent) / mean_w


def _select_samples(
    samples: Sequence[SensorSample], start_s: float, end_s: float
) -> tuple[Sequence[SensorSample], Sequence[SensorSample]]:
    """Return the samples inside a window or on its ends, and these with the nearest ones outside of an open end."""
    first = bisect_left(samples, start_s, key=attrgetter("at_s"))
    after = bisect_right(samples, end_s, key=attrgetter("at_s"))
    inside = samples[first:after]
    starts_on, ends_on = (inside[0].at_s == start_s, inside[-1].at_s == end_s) if inside else (False, False)
    return inside, samples[max(first - (not starts_on), 0) : after + (not ends_on)]


def _energy_j(inside: Sequence[SensorSample], around: Sequence[SensorSample], start_s: float, end_s: float) -> float:
    """Integrate the straight lines through the samples, constant before the first and after the last."""
    lines = [(sample.at_s, sample.total_w) for sample in around]
    middle = [(sample.at_s, sample.total_w) for sample in inside]
    points = [(start_s, _power_at(lines, start_s)), *middle, (end_s, _power_at(lines, end_s))]
    return math.fsum((b_s - a_s) * (a_w + b_w) / 2 for (a_s, a_w), (b_s, b_w) in pairwise(points))


def _power_at(lines: Sequence[tuple[float, float]], at_s: float) -> float:
    right = bisect_left(lines, at_s, key=lambda point: point[0])
    if right == len(lines):
        return lines[-1][1]
    b_s, b_w = lines[right]
    if right == 0 or b_s == at_s:
        return b_w
    a_s, a_w = lines[right - 1]
    return a_w + (b_w - a_w) * ((at_s - a_s) / (b_s - a_s))


def _has_throttled(samples: Sequence[SensorSample]) -> bool:
    counts = [sample.throttle_events for sample in samples if sample.throttle_events is not None]
    return any(later > earlier for earlier, later in pairwise(counts))
