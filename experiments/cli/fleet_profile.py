"""``fedge fleet profile``: profiles every board of the fleet side by side, and lists what each has measured."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.cli.command_output import check_folder, print_line, warn
from experiments.cli.fleet_playbook import DONE, FAILED, follow_playbook
from experiments.fleet import remote_run, selected_fleet
from experiments.fleet.selected_fleet import FleetOptions, SelectedFleet
from experiments.fleet.server_connection import build_connection
from experiments.report.quantities import duration, energy
from experiments.report.tables import Table, text_cell, value_cell
from fedge.atomic_files import write_text
from fedge.errors import BadInput, FedgeError
from fedge.knowledge.evidence_files import BOARD_NAME, RECORD_SUFFIX, read_record
from fedge.workloads import TASK_FILE_SUFFIX
from fedge.yaml_files import NAME_PATTERN

PLAYBOOK = "profile.yml"
PER_START = ("budget-s", "wait")
CAMPAIGN_LENGTH = 12
"""Hexadecimal digits of the name of a campaign's folder, enough to tell the few of a board apart."""
SHOWN_REASON = 60
"""Characters of a failure's reason in the table; the playbook's summary has all of it."""
SHOWN = {"finished", "modes", "modes_wanted", "seconds", "joules"}
"""Keys of a board's record that the table shows."""
HEADINGS = ("board", "kind", "modes", "state", "board time", "energy", "table")


@dataclass(frozen=True, slots=True)
class FleetProfileRow:
    """The measurements of one board of the fleet so far.

    Attributes:
        record: The record beside its table; None if there is no table.
        failure: Why the board stopped; None if it did not fail.
    """

    board: str
    record: Mapping[str, Any] | None
    table: Path | None
    failure: str | None


def profile_fleet(options: FleetOptions, profile: Mapping[str, Any], out: Path) -> tuple[int, list[FleetProfileRow]]:
    """Profile the boards within their time, fetch the tables and import them into the knowledge of the fleet's runs;
    return the exit code and a row per board.

    Args:
        options: The fleet.
        profile: Options of ``fedge profile`` on every board, by name without dashes; None leaves one out, and
            True is a flag.
        out: Folder of the tables: ``BOARD/KIND/train/WORKLOAD.csv``.
    """
    check_folder("--folder", out)
    fleet = selected_fleet.read_fleet(options)
    task, name = Path(profile["workload"]), str(profile["workload"])
    given = {"profile_to": str(out.resolve())}
    if task.suffix == TASK_FILE_SUFFIX:
        if not task.is_file():
            raise BadInput("--workload", f"{task}, no such file", "a task file, or one of fedge's workloads")
        name, given["profile_task"] = task.stem, str(task.resolve())
    words = [
        word
        for option, value in {**profile, "workload": task.name}.items()
        if value is not None
        for word in ((f"--{option}",) if value is True else (f"--{option}", str(value)))
    ]
    given |= {
        "profile_name": name,
        "profile_options": json.dumps(words),
        "profile_campaign": name_campaign({**profile, "workload": task.name}, given.get("profile_task")),
    }
    call = replace(fleet.build_call(PLAYBOOK), variables=given)
    outcome = follow_playbook("profile", fleet, call)
    failures = {host: event.text for host, event in outcome.state.failures_by_host.items()}
    rows = [read_row(out, board, name, failures.get(board)) for board in fleet.boards]
    share_tables(fleet, rows)
    return FAILED if outcome.code != 0 or any(row.failure for row in rows) else DONE, rows


def name_campaign(profile: Mapping[str, Any], task_file: str | None = None) -> str:
    """Return the folder on the boards for profiles with these options; with others, a board begins anew.

    The options ``PER_START`` may differ between starts that continue each other.
    """
    kept = {option: str(value) for option, value in profile.items() if value is not None and option not in PER_START}
    content = b"" if task_file is None else Path(task_file).read_bytes()
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode() + content).hexdigest()[:CAMPAIGN_LENGTH]


def share_tables(fleet: SelectedFleet, rows: list[FleetProfileRow]) -> None:
    """Import the tables into the knowledge of the fleet's runs; without it, nothing that was measured is lost."""
    tables = {"/".join(row.table.parts[-4:]): row.table for row in rows if row.table is not None}
    if not tables:
        return
    try:
        server = build_connection(fleet.inventory.server)
        folder = remote_run.import_tables(server, tables)
    except FedgeError as error:
        warn(f"the tables are not in the knowledge of the fleet's runs: {error}; the same command tries again")
    else:
        print_line(f"imported {len(tables)} tables into {folder} on {server.name}, from which runs start")


def read_row(out: Path, board: str, workload: str, failure: str | None) -> FleetProfileRow:
    """Read what was fetched of a board, and move it to the path that names its kind, with its name in its record."""
    fetched = out / board / f"{workload}.csv"
    if not fetched.is_file():
        return FleetProfileRow(board, None, None, failure or "nothing measured")
    record = {**read_record(fetched), BOARD_NAME: board}
    in_path = all(re.fullmatch(NAME_PATTERN, str(record.get(name, ""))) for name in ("board", "kind"))
    if not in_path or not record.keys() >= SHOWN:
        return FleetProfileRow(board, None, None, failure or "a table without its record; give the same command again")
    table = out / board / str(record["board"]) / str(record["kind"]) / fetched.name
    table.parent.mkdir(parents=True, exist_ok=True)
    write_text(table.with_name(f"{table.name}{RECORD_SUFFIX}"), json.dumps(record, indent=1) + "\n")
    shutil.move(fetched, table)
    fetched.with_name(f"{fetched.name}{RECORD_SUFFIX}").unlink()
    return FleetProfileRow(board, record, table, failure)


def profile_table(rows: list[FleetProfileRow]) -> Table:
    """Build the table of the boards."""
    return Table("fleet-profile", HEADINGS, tuple(map(_row_cells, rows)), "Profiles of the fleet")


def _row_cells(row: FleetProfileRow) -> tuple[Any, ...]:
    if row.record is None:
        return (text_cell(row.board), *map(text_cell, ("-", "-", _describe_failure(row), "-", "-", "-")))
    record = row.record
    done = "finished" if record["finished"] else "unfinished; the same command goes on"
    return (
        text_cell(row.board),
        text_cell(record["board"]),
        text_cell(f"{len(record['modes'])} of {record['modes_wanted']}"),
        text_cell(_describe_failure(row) if row.failure else done),
        value_cell(record["seconds"], duration),
        value_cell(record["joules"], energy),
        text_cell(str(row.table)),
    )


def _describe_failure(row: FleetProfileRow) -> str:
    reason = row.failure or ""
    return f"failed: {reason if len(reason) <= SHOWN_REASON else reason[: SHOWN_REASON - 3] + '...'}"
