"""The store comes first; an exporter that fails is ended and told of, and takes nothing with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from contracts.exporter import round_of, rows_of

from fedge.telemetry.store import MemoryTables, Row
from fedge.telemetry.store_records import EventRow
from server.exporters.exporting_tables import ExportingTables


@dataclass
class Noted:
    """Remembers what it hears; fails at row number ``fails_at``, or at the end."""

    fails_at: int | None = None
    fails_to_close: bool = False
    heard: list[Row] = field(default_factory=list)
    closed: int = 0

    def append(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if len(self.heard) == self.fails_at:
                raise ConnectionError("nobody\nthere")
            self.heard.append(row)

    def close(self) -> None:
        self.closed += 1
        if self.fails_to_close:
            raise OSError("disk full")


def _refusing() -> Noted:
    raise RuntimeError("no such server")


def played(**makers: Callable[[], Noted]) -> list[Row]:
    """The rows that the store has after a run of three rounds."""
    store = MemoryTables()
    with ExportingTables(store, makers) as telling:
        for number in (1, 2, 3):
            telling.append(round_of(number))
    return store.rows


def test_every_exporter_hears_every_row_once_and_is_closed() -> None:
    first, second = Noted(), Noted()

    assert played(first=lambda: first, second=lambda: second) == rows_of()
    assert first.heard == second.heard == rows_of()
    assert (first.closed, second.closed) == (1, 1)


@pytest.mark.parametrize(
    ("failing", "number", "reason"),
    [
        (lambda: Noted(fails_at=4), 2, "ConnectionError: nobody there"),
        (lambda: Noted(fails_to_close=True), 3, "OSError: disk full"),
        (_refusing, 1, "RuntimeError: no such server"),
    ],
    ids=["while it hears", "at the end", "before the first row"],
)
def test_one_that_fails_is_an_event_and_the_run_and_the_others_go_on(
    failing: Callable[[], Noted], number: int, reason: str
) -> None:
    other = Noted()

    rows = played(broken=failing, other=lambda: other)

    [event] = [row for row in rows if row not in rows_of()]
    assert isinstance(event, EventRow)
    assert (event.kind, event.round) == ("exporter", number)
    assert event.message.startswith(f"broken was ended, the run goes on: {reason};")
    assert [row for row in rows if row != event] == rows_of() == other.heard


def test_a_run_that_fails_closes_its_exporters_and_fails_as_it_would_without_them() -> None:
    noted = Noted()

    def fail() -> None:
        with ExportingTables(MemoryTables(), {"noted": lambda: noted}) as telling:
            telling.append(round_of(1))
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert noted.closed == 1


def test_what_the_store_cannot_keep_no_exporter_hears() -> None:
    class Full(MemoryTables):
        def append(self, rows: Iterable[Row]) -> None:
            raise OSError("disk full")

    noted = Noted()
    with pytest.raises(OSError, match="disk full"), ExportingTables(Full(), {"noted": lambda: noted}) as telling:
        telling.append(round_of(1))

    assert noted.heard == []
