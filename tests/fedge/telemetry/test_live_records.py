"""Messages of boards: limits of every field, and their JSON form."""

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.json_reader import MalformedJson
from fedge.telemetry import trace_operations
from fedge.telemetry.live_records import (
    COLUMN_RANGES,
    MAX_MESSAGE_BYTES,
    MOST_STRETCHES,
    BoardProgress,
    OversizedMessage,
    TelemetryBatch,
    decode_batch,
    encode_batch,
    keep_plausible,
)
from fedge.telemetry.trace_operations import MOST_RAILS, check_trace
from fedge.types import EMPTY_TRACE, Trace

T0 = 1_790_000_000.0
PROGRESS = BoardProgress("nano-1", T0, "training", "orin-nano", "run", 3, 40, 7, "4c/1/2/3 MHz", 7.5, 44.0)


def trace_from(start_s: float, powers: list[float]) -> Trace:
    n = len(powers)
    nobody = (None,) * n
    return Trace(
        tuple(start_s + i for i in range(n)),
        (1.0,) * n,
        tuple(powers),
        tuple(40.0 + i for i in range(n)),
        nobody,
        tuple(900.0 if i % 2 else None for i in range(n)),
        nobody,
        nobody,
        (0.5,) * n,
        nobody,
        {"VDD_IN": tuple(powers), "VDD_SOC": nobody} if n else {},
    )


def batch_of(seq: int = 1, powers: list[float] | None = None, **more: Any) -> TelemetryBatch:
    return TelemetryBatch(1, "nano-1", "abc", seq, trace_from(T0, powers or [5.0, 6.5, 7.25]), PROGRESS, **more)


def as_json(**changes: Any) -> dict[str, Any]:
    return json.loads(encode_batch(batch_of())) | changes


@given(st.lists(st.floats(0, 500), min_size=0, max_size=20), st.floats(0.0, 2e9), st.integers(1, 2**53))
def test_every_number_travels_in_full(powers, start_s, seq):
    trace = trace_from(start_s, powers) if powers else EMPTY_TRACE
    sent = TelemetryBatch(1, "nano-1", "abc", seq, trace, PROGRESS, lost=3)
    assert decode_batch(encode_batch(sent)) == sent


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "version: got 2; 1 is right"),
        ({"version": True}, "version: got True"),
        ({"board": "../etc"}, "board: got '../etc'"),
        ({"board": "x" * 65}, "board"),
        ({"board": "nano-1\n"}, "board"),
        ({"stream": ""}, "stream"),
        ({"seq": 0}, "seq: got 0"),
        ({"seq": 1.0}, "seq: got 1.0"),
        ({"seq": 10**4000}, "a whole number of 4001 digits"),
        ({"lost": -1}, "lost"),
        ({"more": 1}, "got the field 'more'"),
        ({"trace": []}, "trace: got a list; an object is right"),
        ({"trace": {"start_s": [T0]}}, "span_s is missing"),
        (
            {"trace": {"start_s": [T0], "span_s": [1.0, 1.0], "power_w": [1.0]}},
            "trace: span_s has 2 values",
        ),
        ({"trace": {"start_s": [T0], "span_s": [0.0], "power_w": [1.0]}}, "span_s: got 0.0"),
        ({"trace": {"start_s": [T0], "span_s": [1.0], "power_w": [True]}}, "power_w: got True"),
        ({"trace": {"start_s": [T0], "span_s": [1.0], "power_w": [None]}}, "power_w: got None"),
        ({"trace": {"start_s": [T0], "span_s": [1.0], "power_w": [10**400]}}, "a whole number of 401 digits"),
        ({"trace": {"start_s": [T0], "span_s": [1.0], "power_w": [1e9]}}, "power_w"),
        ({"trace": {"start_s": [T0 * 1000], "span_s": [1.0], "power_w": [5.0]}}, "start_s"),
        ({"trace": {"start_s": [T0], "span_s": [1.0], "power_w": [5.0], "gpu_load": [1.5]}}, "gpu_load"),
        ({"trace": {"start_s": [T0, T0 + 0.5], "span_s": [1.0, 1.0], "power_w": [5.0, 5.0]}}, "begins before it ends"),
        ({"trace": {"start_s": [T0, T0 - 9], "span_s": [1.0, 1.0], "power_w": [5.0, 5.0]}}, "begins before it ends"),
        ({"trace": {"start_s": [T0] * (MOST_STRETCHES + 1)}}, "start_s: got a list; at most 600 items"),
        ({"trace": {"start_s": {"a": 1}}}, "start_s: got an object; a list is right"),
        ({"trace": {"rails_w": {f"r{i}": [] for i in range(99)}, "start_s": []}}, "rails_w"),
        ({"trace": {"start_s": [], "rails_w": {"a\nb": []}}}, "rail"),
        ({"progress": 5}, "progress: got 5"),
        ({"progress": {"board": "other", "at_s": T0, "state": "idle"}}, "progress: got that of 'other'"),
        ({"progress": {"board": "nano-1", "at_s": T0, "state": "flying"}}, "state: got 'flying'"),
        ({"progress": {"board": "nano-1", "at_s": T0, "state": "idle", "error": "x" * 2000}}, "error"),
        ({"progress": {"board": "nano-1", "at_s": T0, "state": "idle", "run": "a\u0000b"}}, "run"),
        ({"progress": {"board": "nano-1", "at_s": T0, "state": "idle", "mode": "\ud800"}}, "not UTF-8"),
    ],
)
def test_what_is_not_plausible_is_refused_and_named(changes, reason):
    with pytest.raises(MalformedJson) as refused:
        decode_batch(json.dumps(as_json(**changes)).encode())
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"version":' * 50_000,
        b'{"version":1,"version":1,"board":"a","stream":"a","seq":1}',
        b'{"version":1,"board":"a","stream":"a","seq":NaN}',
        b'{"version":1,"board":"a","stream":"a","seq":1,"trace":{"start_s":[1],"span_s":[1],"power_w":[Infinity]}}',
        b'{"version":1,"board":"a","stream":"a","seq":1,"trace":{"start_s":[1],"span_s":[1],"power_w":[1e999]}}',
        b"1" * 5000,
        encode_batch(batch_of())[:-1],
        encode_batch(batch_of()) + b"{}",
    ],
)
def test_what_is_no_message_is_refused(data):
    with pytest.raises(MalformedJson):
        decode_batch(data)


def test_a_message_that_is_too_large_is_not_even_parsed():
    with pytest.raises(OversizedMessage):
        decode_batch(b" " * (MAX_MESSAGE_BYTES + 1))


def test_the_longest_message_of_a_board_with_many_rails_fits():
    n = 120
    rails = {f"VDD_RAIL_{i}": tuple(math.pi + i + k for k in range(n)) for i in range(MOST_RAILS)}
    trace = trace_from(T0, [math.pi] * n)
    full = TelemetryBatch(
        1, "nano-1", "abc", 1, Trace(*[getattr(trace, name) for name in COLUMN_RANGES], rails_w=rails)
    )
    assert len(encode_batch(full)) < MAX_MESSAGE_BYTES
    assert decode_batch(encode_batch(full)) == full


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from(["version", "board", "stream", "seq", "trace", "progress", "lost"])
COLUMNS = st.sampled_from([*trace_operations.COLUMNS, "rails_w", "more"])


def _taken_or_refused(data: bytes) -> None:
    """Whatever comes is refused as ``MalformedJson``, or is a message without any surprise in it."""
    try:
        found = decode_batch(data)
    except MalformedJson:
        return
    check_trace(found.trace)
    assert decode_batch(encode_batch(found)) == found
    assert all(-100 <= power <= 5000 for power in found.trace.power_w)


@given(FIELDS, JSON)
def test_one_field_that_is_anything_is_refused_or_harmless(field, value):
    _taken_or_refused(json.dumps(as_json(**{field: value})).encode())


@given(COLUMNS, JSON, st.integers(0, 2))
def test_one_value_of_a_trace_that_is_anything_is_refused_or_harmless(column, value, place):
    shaped = as_json()
    values = shaped["trace"].get(column)
    if isinstance(values, list):
        values[place] = value
    else:
        shaped["trace"][column] = value
    _taken_or_refused(json.dumps(shaped).encode())


@settings(max_examples=300)
@given(st.data())
def test_a_message_that_was_cut_or_changed_on_the_way_is_refused_or_harmless(data):
    whole = bytearray(encode_batch(batch_of()))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    _taken_or_refused(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 10), min_size=1, max_size=8))
def test_whatever_a_sensor_says_can_be_sent(powers):
    n = len(powers)
    nobody = (None,) * n
    odd = tuple(powers)
    times = tuple(T0 + i for i in range(n))
    trace = Trace(times, (1.0,) * n, odd, odd, odd, nobody, nobody, odd, odd, nobody, {"x": odd, "a\nb": odd})
    kept = keep_plausible(trace)
    assert decode_batch(encode_batch(TelemetryBatch(1, "nano-1", "abc", 1, kept))).trace == kept
    assert not kept or set(kept.rails_w) == {"x"}
    good = [power for power in powers if -100 <= power <= 5000]
    assert list(kept.power_w) == good


def test_of_a_trace_without_a_plausible_power_nothing_is_left_and_a_load_above_one_is_a_full_one():
    assert keep_plausible(trace_from(T0, [math.nan, 1e9])) == EMPTY_TRACE
    rounded = dataclasses.replace(trace_from(T0, [5.0]), gpu_load=(1.001,))
    assert keep_plausible(rounded).gpu_load == (1.0,)
