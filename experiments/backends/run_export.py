"""Export of a stored run: its experiment and the exporter's options are read, then every round is exported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.backends import launcher
from experiments.spec.user_plugins import import_plugins
from fedge.errors import BadInput, FedgeError, RunFailed, describe_error
from fedge.experiment import Experiment, ExporterSpec
from fedge.groups import group_by
from fedge.telemetry.store import Row
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow
from fedge.yaml_files import parse_yaml
from server.exporters import exporting_tables

OptionValue = bool | int | float | str


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


def _group_by_round(folder: Path) -> Iterator[Sequence[Row]]:
    """Yield the rows of each round, its ``RoundRow`` last; events without a round come at the end."""
    clients = group_by(read_rows(folder, ClientRow), lambda client: client.round)
    events = group_by(read_rows(folder, EventRow), lambda event: event.round)
    yield from ([*rows] for rows in [events.pop(0, [])] if rows)
    for row in sorted(read_rows(folder, RoundRow), key=lambda row: row.round):
        yield [*events.pop(row.round, []), *clients.get(row.round, []), row]
    left = [row for rows in events.values() for row in rows]
    if left:
        yield left


def export_run(run: Path, exporter: str, options: Sequence[str], out: Path | None = None) -> int:
    """Export every round of a run and return their number.

    Args:
        options: Its options as ``key=value``, with values as in YAML.
        out: Folder to write into; None for the exporter's default.

    Raises:
        BadInput: If the folder is not a run folder, or the exporter cannot be created.
        RunFailed: If the exporter fails.
    """
    experiment = launcher.load_saved_experiment(run)
    import_plugins(experiment)
    values = dict(_parse_option(option) for option in options)
    if out is not None:
        values["out"] = str(out.resolve())
    try:
        return export_rounds(experiment, run.resolve(), ExporterSpec(name=exporter, options=values))
    except FedgeError:
        raise
    except Exception as error:  # others' code, and others' servers
        reason = describe_error(error)
        raise RunFailed(f"{exporter} did not take {run}: {reason}") from error


def _parse_option(text: str) -> tuple[str, OptionValue]:
    """Parse ``key=value``, with the value as YAML."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise BadInput("--option", repr(text), "key=value, for example --option tracking_uri=http://127.0.0.1:5000")
    parsed = parse_yaml(value, f"--option {key}")
    if not isinstance(parsed, OptionValue):
        raise BadInput(f"--option {key}", repr(value), "a number, text, true or false")
    return key.strip(), parsed
