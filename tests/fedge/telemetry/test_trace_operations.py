"""Whatever is done to a trace, its joules stay where they were; what is no trace is told apart."""

import dataclasses
import math
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.sensing.energy_integral import integrate_energy
from fedge.telemetry import trace_operations
from fedge.types import EMPTY_TRACE, SensorSample, Trace

SAME = 1e-9
UNIX_S = 1.79e9
finite = st.floats(0.0, 60.0)
maybe = st.none() | finite
lengths = st.floats(1e-3, 7.0)


@st.composite
def traces(draw: st.DrawFn, origins_s: tuple[float, ...] = (0.0, 3.7, UNIX_S)) -> Trace:
    """Up to twelve stretches with and without gaps between them, with a rail and what else may be known."""
    count, at_s = draw(st.integers(1, 12)), draw(st.sampled_from(origins_s))
    starts, spans = [], []
    for _ in range(count):
        span_s = draw(lengths)
        starts.append(at_s)
        spans.append(span_s)
        at_s += span_s + draw(st.sampled_from([0.0, 0.0, 0.3, 5.0]))
    columns = {name: tuple(draw(maybe) for _ in range(count)) for name in trace_operations.OPTIONAL}
    powers = tuple(draw(finite) for _ in range(count))
    rails = {"gpu_load": tuple(draw(maybe) for _ in range(count))}
    return Trace(tuple(starts), tuple(spans), powers, **columns, rails_w=rails)


def known_j(trace: Trace, column: tuple[float | None, ...]) -> float:
    return math.fsum(v * span for v, span in zip(column, trace.span_s, strict=True) if v is not None)


def joules(trace: Trace, start_s: float, end_s: float) -> float:
    """The integral of power from ``start_s`` to ``end_s``, by brute force."""
    pieces = zip(trace.start_s, trace.span_s, trace.power_w, strict=True)
    return math.fsum(
        power * max(0.0, min(span, end_s - start) - max(0.0, start_s - start)) for start, span, power in pieces
    )


@given(traces(), st.sampled_from([0.25, 1.0, 3.0, 64.0]), st.integers(1, 5))
def test_averaging_keeps_the_energy_and_the_time_whatever_the_cells(trace, period_s, most):
    limited = trace_operations.limit_trace_length(trace, most)
    assert len(limited) <= most
    for fewer in (limited, trace_operations.check_trace(trace_operations.downsample_trace(trace, period_s))):
        assert fewer.energy_j == pytest.approx(trace.energy_j, rel=SAME)
        assert math.fsum(fewer.span_s) == pytest.approx(math.fsum(trace.span_s), rel=SAME)
    cells = [math.floor((start + 1e-7) / period_s) for start in fewer.start_s]
    assert cells == sorted(set(cells))


@given(traces(origins_s=(0.0, 3.7)), st.sampled_from([0.25, 1.0, 3.0]))
def test_every_cell_has_the_joules_that_fell_into_it(trace, period_s):
    fewer = trace_operations.downsample_trace(trace, period_s)

    for start, span, power in zip(fewer.start_s, fewer.span_s, fewer.power_w, strict=True):
        cell_s = math.floor((start + span / 2) / period_s) * period_s
        assert power * span == pytest.approx(joules(trace, cell_s, cell_s + period_s), rel=1e-6, abs=1e-6)


@given(traces(origins_s=(0.0,)))
def test_of_a_column_that_is_known_throughout_the_mean_stays_too(trace):
    known = tuple(float(i) for i in range(len(trace)))
    trace = dataclasses.replace(trace, temperature_c=known, rails_w={"A": known})
    fewer = trace_operations.downsample_trace(trace, 2.0)

    assert known_j(fewer, fewer.temperature_c) == pytest.approx(known_j(trace, known), rel=SAME)
    assert known_j(fewer, fewer.rails_w["A"]) == pytest.approx(known_j(trace, known), rel=SAME)


@given(traces(), st.lists(st.floats(-0.1, 1.1), max_size=6))
def test_cut_anywhere_and_joined_again_a_trace_has_its_energy(trace, places):
    first_s, last_s = trace.start_s[0], trace.start_s[-1] + trace.span_s[-1]
    cuts_s = sorted({first_s - 1.0, last_s + 1.0, *(first_s + p * (last_s - first_s) for p in places)})
    parts = [trace_operations.clip_trace(trace, a, b) for a, b in pairwise(cuts_s)]
    again = trace_operations.check_trace(trace_operations.join_traces(parts))

    assert again.energy_j == pytest.approx(trace.energy_j, rel=SAME)
    assert known_j(again, again.rails_w["gpu_load"]) == pytest.approx(
        known_j(trace, trace.rails_w["gpu_load"]), rel=SAME
    )


@given(traces(), st.floats(-0.2, 1.2), st.floats(-0.2, 1.2))
def test_a_part_of_a_trace_has_the_joules_of_that_time(trace, a, b):
    first_s, length_s = trace.start_s[0], trace.start_s[-1] + trace.span_s[-1] - trace.start_s[0]
    start_s, end_s = first_s + min(a, b) * length_s, first_s + max(a, b) * length_s
    part = trace_operations.check_trace(trace_operations.clip_trace(trace, start_s, end_s))

    assert part.energy_j == pytest.approx(joules(trace, start_s, end_s), rel=SAME, abs=1e-9)
    assert not len(part) or part.start_s[0] >= start_s


@given(traces())
def test_another_clock_changes_no_joule(trace):
    there = trace_operations.shift_trace(trace, 12.5)

    assert (there.energy_j, there.start_s[0]) == (trace.energy_j, trace.start_s[0] + 12.5)


samples_of = st.lists(st.tuples(st.floats(0.02, 2.0), finite, finite), min_size=1, max_size=30)


@given(samples_of, st.floats(-0.2, 0.9), st.floats(0.05, 0.5), st.sampled_from([0.0, 1e5]), st.sampled_from([0.3, 1.0]))
def test_samples_become_stretches_with_the_joules_of_the_integral(steps, begin, share, origin_s, period_s):
    at_s, samples = origin_s, []
    for step_s, watts, rail_w in steps:
        at_s += step_s
        samples.append(SensorSample(at_s, watts, {"GPU": rail_w}, {"cpu": watts}))
    length_s = max(1.0, at_s - origin_s)
    start_s, end_s = origin_s + begin * length_s, origin_s + (begin + share) * length_s
    trace = trace_operations.check_trace(trace_operations.trace_from_samples(samples, start_s, end_s, period_s))

    expected = integrate_energy(samples, start_s, end_s, 1e6, "GPU")
    assert trace.energy_j == pytest.approx(expected.energy_j, rel=SAME, abs=1e-7)
    assert math.fsum(trace.span_s) == pytest.approx(end_s - start_s, abs=1e-6)
    assert len(trace) <= math.ceil((end_s - start_s) / period_s) + 1
    assert None not in (*trace.temperature_c, *trace.rails_w["GPU"])
    for place, column in ((1, trace.temperature_c), (2, trace.rails_w["GPU"])):
        read = [step[place] for step in steps]
        assert all(min(read) - 1e-6 <= value <= max(read) + 1e-6 for value in column)
    assert set(trace.cpu_load) == {None}


@given(samples_of.filter(lambda steps: len(steps) > 1), st.booleans())
def test_a_reading_that_every_other_sample_lacks_is_that_of_the_samples_beside_it(steps, first):
    times = list(accumulate(step_s for step_s, _, _ in steps))
    has = [(number % 2 == 0) == first for number in range(len(steps))]
    samples = [
        SensorSample(at_s, watts, {"GPU": rail_w} if known else {}, {"cpu": watts} if known else {})
        for at_s, (_, watts, rail_w), known in zip(times, steps, has, strict=True)
    ]
    trace = trace_operations.trace_from_samples(samples, times[0], times[-1], 0.3)

    for place, column in ((1, trace.temperature_c), (2, trace.rails_w["GPU"])):
        read = [step[place] for step, known in zip(steps, has, strict=True) if known]
        assert all(value is not None and min(read) - 1e-6 <= value <= max(read) + 1e-6 for value in column)


def test_where_no_sample_came_for_too_long_there_is_a_gap():
    samples = [SensorSample(at_s, 10.0) for at_s in (0.0, 0.1, 0.2, 2.2, 2.3)]
    trace = trace_operations.trace_from_samples(samples, 0.0, 4.0, 1.0, gap_s=0.3)

    assert trace.start_s == (0.0, 2.2)
    assert trace.span_s == pytest.approx((0.2, 0.1))
    assert trace_operations.trace_from_samples([], 0.0, 4.0) == EMPTY_TRACE


def test_nothing_at_all_can_be_cut_moved_joined_and_averaged():
    ops, one = trace_operations, trace_operations.make_constant_trace(0.0, 1.0, 2.0)
    empty = [ops.join_traces([]), ops.clip_trace(EMPTY_TRACE, 0.0, 1.0), ops.shift_trace(EMPTY_TRACE, 1.0)]
    empty += [ops.downsample_trace(EMPTY_TRACE, 1.0), ops.check_trace(EMPTY_TRACE)]
    empty += [ops.clip_trace(one, 1.0, 1.0), ops.make_constant_trace(0.0, 0.0, 1.0)]
    assert empty == [EMPTY_TRACE] * 7


def test_a_rail_that_one_part_lacks_is_unknown_there():
    one = dataclasses.replace(trace_operations.make_constant_trace(0.0, 1.0, 2.0), rails_w={"A": (1.5,)})

    assert trace_operations.join_traces([one, trace_operations.make_constant_trace(1.0, 1.0, 2.0)]).rails_w == {
        "A": (1.5, None)
    }


GOOD = trace_operations.join_traces(
    [trace_operations.make_constant_trace(0.0, 1.0, 5.0), trace_operations.make_constant_trace(1.0, 1.0, 6.0)]
)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"power_w": (1.0,)}, "power_w has 1 values"),
        ({"rails_w": {"A": (1.0,)}}, "rail A has 1 values"),
        ({"power_w": (1.0, math.nan)}, "power_w holds a number that is not finite"),
        ({"temperature_c": (None, math.inf)}, "temperature_c holds"),
        ({"span_s": (1.0, 0.0)}, "longer than nothing"),
        ({"start_s": (0.0, 0.5)}, "begins before it ends"),
        ({"start_s": (5.0, 1.0)}, "begins before it ends"),
    ],
)
def test_what_is_no_trace_is_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        trace_operations.check_trace(dataclasses.replace(GOOD, **changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"power_w": (1.0, 1e9)}, "power_w of 1e"),
        ({"power_w": (-1.0, 1.0)}, "power_w of -1"),
        ({"gpu_load": (None, 3.0)}, "gpu_load of 3"),
        ({"rails_w": {"A": (None, 1e6)}}, "rail A of 1e"),
        ({"rails_w": {"A" * 65: (None, None)}}, "rail's name"),
        ({"rails_w": {f"A{i}": (None, None) for i in range(33)}}, "33 rails"),
        ({"span_s": (1.0, -1.0)}, "longer than nothing"),
    ],
)
def test_what_no_board_has_is_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        trace_operations.check_plausible_trace(dataclasses.replace(GOOD, **changes))
    assert trace_operations.check_plausible_trace(GOOD) is GOOD
    with pytest.raises(ValueError, match="2 stretches; at most 1"):
        trace_operations.check_plausible_trace(GOOD, most=1)
