"""Random emulated boards' answers with their traces, and what tests ask of traces: the joules of every client row."""

import dataclasses
from collections import Counter
from collections.abc import Iterable

import pytest
from contracts.reports import LINK, LOW, MAXN, answer
from hypothesis import strategies as st

from fedge.client.round_trace import build_emulated_trace
from fedge.devices.thermal_model import ThermalModel
from fedge.telemetry.store_records import ClientRow, RoundTrace
from fedge.telemetry.trace_operations import check_trace
from fedge.types import Measurement
from fedge.wire import ReplyMessage

SAME = 1e-9
THERMAL = ThermalModel(4.5, 25.0)

parts = st.builds(
    Measurement,
    st.sampled_from([MAXN, LOW]),
    st.integers(1, 20),
    st.floats(0.01, 5.0),
    st.floats(0.5, 60.0),
    throttled=st.booleans(),
    warm_up_s=st.sampled_from([0.0, 0.7, 3.0]),
    switch_s=st.sampled_from([None, 0.05]),
)
works = st.tuples(st.lists(parts, max_size=3), st.none() | parts, parts)
"""Probes, a part in a second mode, the part in the mode decided on."""


def traced_answer(board: str, work: tuple[list[Measurement], Measurement | None, Measurement]) -> ReplyMessage:
    """The answer of an emulated board that did ``work``."""
    probes, mixed, measured = work
    said = answer(board, 1.0)
    assert said.report is not None
    steps = sum(part.steps for part in (*probes, *(() if mixed is None else (mixed,)), measured))
    report = dataclasses.replace(
        said.report, probes=tuple(probes), mixed=mixed, measured=measured, link=LINK, asked_steps=steps
    )
    return dataclasses.replace(said, report=report, trace=build_emulated_trace(report, LOW, THERMAL, 30.0))


def hold_the_rows_joules(clients: Iterable[ClientRow], traces: Iterable[RoundTrace], same: float = SAME) -> None:
    """Assert that every row that booked joules has one trace with as many, within the row's time."""
    rows, found = list(clients), list(traces)
    by_row = {(each.round, each.board, i): check_trace(each.trace) for each, i in _numbered(found)}
    for row, i in _numbered(rows):
        trace = by_row.pop((row.round, row.board, i), None)
        assert (trace.energy_j if trace else 0.0) == pytest.approx(row.energy_j, rel=same, abs=1e-9)
        assert sum(trace.span_s if trace else ()) <= row.end_s - row.start_s + row.wait_s + 1e-6
    assert not by_row


def _numbered(each: list) -> list[tuple]:
    """With how many of the same round and board came before: of an asynchronous run a model may have several."""
    seen: Counter[tuple[int, str]] = Counter()
    numbered = []
    for one in each:
        numbered.append((one, seen[one.round, one.board]))
        seen[one.round, one.board] += 1
    return numbered
