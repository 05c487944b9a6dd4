"""Exporters on the launcher's side: check them before a run, export a finished run, hand over its files."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fedge.experiment import Experiment, ExporterSpec
from fedge.telemetry.run_folder import REPORT, SUMMARY
from fedge.telemetry.store import Row
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow
from server.exporters import exporting_tables
from server.exporters.exporting_tables import MAX_REASON_LENGTH

logger = logging.getLogger(__name__)


def check_exporters(experiment: Experiment) -> None:
    """Raise ``BadInput`` for an exporter that cannot be created."""
    exporting_tables.check_exporters(experiment.exporters)


def export_rounds(experiment: Experiment, folder: Path, spec: ExporterSpec) -> int:
    """Export every round stored in a run folder, in the order in which a live run would; return their number.

    Raises:
        BadInput: If the exporter cannot be created. Errors of the exporter itself are passed on.
    """
    exporting_tables.check_exporter(spec, "--to")
    exporter = exporting_tables.build_exporter(spec, experiment, folder)
    count = 0
    try:
        for rows in _group_by_round(folder):
            exporter.append(rows)
            count += isinstance(rows[-1], RoundRow)
    finally:
        exporter.close()
    return count


def _group_by_round(folder: Path) -> Iterator[list[Row]]:
    """Yield the rows of each round, its ``RoundRow`` last; events without a round come at the end."""
    clients: dict[int, list[Row]] = defaultdict(list)
    events: dict[int, list[Row]] = defaultdict(list)
    for client in read_rows(folder, ClientRow):
        clients[client.round].append(client)
    for event in read_rows(folder, EventRow):
        events[event.round].append(event)
    yield from ([*rows] for rows in [events.pop(0, [])] if rows)
    for row in sorted(read_rows(folder, RoundRow), key=lambda row: row.round):
        yield [*events.pop(row.round, []), *clients[row.round], row]
    left = [row for rows in events.values() for row in rows]
    if left:
        yield left


def hand_over(experiment: Experiment, folder: Path) -> None:
    """Give report and summary to the exporters that keep files; an exporter's error is logged, the run goes on."""
    for name, make in exporting_tables.build_factories(experiment, folder).items():
        try:
            exporter = make()
            keep = getattr(exporter, "keep", None)
            if keep is not None:
                keep([folder / REPORT, folder / SUMMARY])
        except Exception as error:  # noqa: BLE001 -- others' code, and others' servers
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON_LENGTH]
            logger.warning("exporter %s did not take the report: %s", name, reason)
