"""A board's row of a round beside a standing service: requests, percentiles, what was left; what older runs lack."""

import dataclasses

import pytest
from contracts.reports import LOW, report
from contracts.store_rows import client_row as stored

from fedge.telemetry import store_schema
from fedge.telemetry.client_rows import ClientPart, RoundStart, client_row
from fedge.telemetry.round_columns import compute_completed_work
from fedge.telemetry.store_records import ClientRow, Status
from fedge.types import Measurement, RoundReport, ServiceUse
from fedge.worker.latency_histogram import bin_index
from server.dashboard.views import board_round

OPENING = RoundStart(1, 0.0, None, {})
COLUMNS = (
    "requests", "late_requests", "dropped_requests", "latency_budget_s", "latency_p50_s", "latency_p95_s",
    "latency_p99_s", "latency_worst_s", "service_batch", "service_share", "service_played", "train_steps_per_s",
)  # fmt: skip
FAST, SLOW = bin_index(0.1), bin_index(0.7)


def use(requests: int, late: int, batch_size: int = 16) -> ServiceUse:
    """Most answers after 0.1 s, the last one after 0.7 s."""
    bins = ((FAST, requests - 1), (SLOW, 1))
    return ServiceUse(batch_size, 10.0, 2.5, requests, late, 1, 7, 0.7, bins, 1.0, 0.5)


def serving_report():
    plain = report("nano-1", 10.0)
    probe = Measurement(LOW, 2, 2.0, 5.0, service=use(100, 1, 4))
    return dataclasses.replace(
        plain, probes=(probe,), measured=dataclasses.replace(plain.measured, service=use(100, 2))
    )


def row_until(until_s: float, said: RoundReport, status: Status = "done") -> ClientRow:
    """The row of a board that is booked for so many seconds."""
    spent = compute_completed_work(said, until_s)
    part = ClientPart(status, None, until_s, until_s, whole=status == "done", energy_j=100.0, spent=spent)
    return client_row(OPENING, part, None, said)


def test_a_row_tells_of_the_whole_round():
    row = row_until(16.0, serving_report())

    assert (row.requests, row.late_requests, row.dropped_requests) == (200, 3, 2)
    assert (row.latency_budget_s, row.service_batch, row.service_share) == (0.5, 16, 0.25)
    assert row.latency_p50_s == row.latency_p95_s == pytest.approx(0.1, rel=0.05)
    assert row.latency_p99_s == pytest.approx(0.1, rel=0.05)
    assert row.latency_worst_s == 0.7
    assert row.train_steps_per_s == pytest.approx(12 / 14.0)


def test_of_a_board_that_was_stopped_only_the_parts_that_were_begun_count():
    row = row_until(2.5, serving_report(), "late")

    assert row.requests == 100
    assert row.service_batch == 16


def test_runs_that_were_written_before_are_read():
    pytest.importorskip("pyarrow", reason="a run's tables are Parquet")
    import pyarrow as pa

    written = pa.Table.from_batches([store_schema.rows_to_batch(store_schema.CLIENTS, [stored(1), stored(2)])])
    older = written.drop_columns(list(COLUMNS))

    rows = store_schema.table_to_records(
        store_schema.fit_to_schema(store_schema.CLIENTS, older), store_schema.ClientRow
    )

    assert rows == [stored(1), stored(2)]


def test_the_board_page_has_its_last_rounds_figures():
    found = board_round(row_until(16.0, serving_report()))

    assert (found.requests, found.late_requests, found.latency_budget_s) == (200, 5, 0.5)
    assert board_round(row_until(16.0, report("nano-1", 10.0))).late_requests is None
