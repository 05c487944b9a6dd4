"""The tables that a run writes: first the store, then every exporter; a failing exporter is ended with an event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from fedge.telemetry.store import Row
from fedge.telemetry.store_records import EventRow, RoundRow
from server.exporters import Exporter
from server.rounds.run_start import RowSink

EXPORTER_EVENT = "exporter"
"""Kind of the event for an exporter that was ended."""
LIVE_ONLY = ("ray",)
"""Exporters that only show the present, so that ``fedge export`` cannot repeat them after the run."""
MAX_REASON_LENGTH = 200
"""Characters of an exporter's error message that are kept; a default that fits two terminal lines."""
logger = logging.getLogger(__name__)


class ExportingTables:
    """Stores rows and passes them on to the exporters, which are constructed with the first rows.

    Use it as a context manager, or close it when the run is over. ``makers`` has the function that constructs each
    exporter, by its name in events.
    """

    def __init__(self, tables: RowSink, makers: Mapping[str, Callable[[], Exporter]]) -> None:
        self._tables, self._makers = tables, dict(makers)
        self._exporters: dict[str, Exporter] = {}
        self._round, self._at_s = 0, 0.0

    def append(self, rows: Iterable[Row]) -> None:
        """Store rows, then export them; only an error of the store is raised."""
        rows = tuple(rows)
        self._tables.append(rows)
        if not rows or not (self._makers or self._exporters):
            return
        self._round = max(self._round, *(row.round for row in rows))
        self._at_s = max([self._at_s, *(row.end_s for row in rows if isinstance(row, RoundRow))])
        for name in tuple(self._makers):
            self._run_guarded(name, partial(self._make, name))
        for name, exporter in tuple(self._exporters.items()):
            self._run_guarded(name, partial(exporter.append, rows))

    def close(self) -> None:
        """Close every exporter that has not failed."""
        for name, exporter in tuple(self._exporters.items()):
            self._run_guarded(name, exporter.close)
        self._exporters.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self, name: str) -> None:
        self._exporters[name] = self._makers.pop(name)()

    def _run_guarded(self, name: str, act: Callable[[], None]) -> None:
        """Call ``act``; if it fails, end this exporter and store an event."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 -- third-party code and servers
            self._makers.pop(name, None)
            self._exporters.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON_LENGTH]
            logger.warning("exporter %s: %s", name, reason)
            rest = "" if name in LIVE_ONLY else "; `fedge export` tells the rest afterwards"
            message = f"{name} was ended, the run goes on: {reason}{rest}"
            event = EventRow(self._at_s, round=self._round, board=None, kind=EXPORTER_EVENT, message=message)
            self._tables.append([event])
