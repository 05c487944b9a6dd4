"""The fleet's knowledge around a run: what its clients recall at the start, and what goes back at the end."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from experiments.fleet.remote_run import EXPERIMENT, KNOWLEDGE
from fedge.client.memory_scaling import build_scaling_context
from fedge.devices import catalogue
from fedge.devices.board_kinds import build_kind, load_references
from fedge.devices.tables.mode_table import write_mode_table
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetBoard, FleetEntry, list_boards
from fedge.knowledge.evidence_files import (
    MODEL,
    REAL,
    RIGHT,
    TABLE,
    describe_file,
    describe_reference,
    identify_client,
    is_of_client,
    move_entry,
    read_evidence,
    to_reference_rows,
    to_table,
)
from fedge.knowledge.knowledge_folder import (
    ENTRIES,
    KnowledgeEntry,
    KnowledgeListing,
    add_entry,
    encode_measurements,
    forget_entry,
    format_date,
    hash_content,
    list_entries,
    read_content,
)
from fedge.knowledge.recall import FILE as RECALLED
from fedge.knowledge.recall import (
    MIN_REFERENCE_MODES,
    BoardEvidence,
    ClientIdentity,
    RunKnowledge,
    describe_origin,
    find_other_workloads,
    limit_measurements,
    mark_recorded,
    measurement_kind,
    read_run_knowledge,
    recall_measurements,
    write_run_knowledge,
)
from fedge.telemetry import run_folder
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import RECORDED, ClientRow, EventRow
from fedge.types import Label, MemoryObservation, ReferenceRows
from fedge.user_catalogue import FOLDER_VARIABLE
from server.state import checkpoint

logger = logging.getLogger(__name__)
NONE, AUTO = "none", "auto"
SERVER_RUNS = Path("/var/lib/fedge-link/runs")
"""Folder of runs on a provisioned fleet's server."""
WRITTEN_BEFORE_RUN = frozenset({KNOWLEDGE, RECALLED})
"""Names in the run folder that ``recall_for_run`` writes, before the run has its ``run.yaml``."""
MAX_KEPT_MODES = 1000
"""Modes per board that a run gives back: more than any run measures."""


def find_folder(experiment: Experiment, run: Path) -> Path | None:
    """Return the knowledge folder of a run; None if it takes part in none."""
    chosen = experiment.knowledge or (AUTO if experiment.backend == REAL else NONE)
    if chosen == NONE:
        return None
    if chosen != AUTO:
        return Path(chosen)
    job = run.parent  # `fedge fleet run` has a folder for every job, with the experiment and the run in it
    return find_default_folder(job.parent if (job / EXPERIMENT).is_file() else job)


def find_default_folder(runs: Path) -> Path:
    """Return the folder of ``auto``: ``$FEDGE_KNOWLEDGE``, or the one among the run folders."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser().resolve() if named else (runs / KNOWLEDGE).resolve()


def find_commands_folder() -> Path:
    """Return the folder of ``fedge knowledge``: that of ``auto`` for runs of this machine, a fleet's server or not."""
    on_server = not os.environ.get(FOLDER_VARIABLE) and (SERVER_RUNS / KNOWLEDGE).is_dir()
    return find_default_folder(SERVER_RUNS if on_server else run_folder.RUNS)


@dataclass(frozen=True, slots=True)
class _ReferenceFile:
    """A file under ``references``, and whether it is of the trained workload."""

    entry: KnowledgeEntry
    same: bool


def recall_for_run(experiment: Experiment, run: Path, *, name: str, now: datetime) -> Experiment:
    """Choose what the clients recall, keep it in the run folder, and return the experiment with its references.

    References of the clients' own workload become measurements of such boards, and model files become tables.

    Args:
        name: Name of the run in the knowledge, unlike that of any other run.

    Raises:
        BadInput: A reference or the knowledge folder is invalid, or a file cannot be written.
    """
    folder, boards = find_folder(experiment, run), list_boards(experiment)
    (run / RECALLED).unlink(missing_ok=True)  # of a start that was killed, which may have had other knowledge
    if folder is None or folder.resolve() != (run / KNOWLEDGE).resolve():
        shutil.rmtree(run / KNOWLEDGE, ignore_errors=True)
    clients: Sequence[ClientIdentity] = [identify_client(experiment, board) for board in boards]
    real = experiment.backend == REAL
    files = _list_reference_files(boards, clients, real=real)
    if folder is None and not files:
        return experiment
    if folder is not None and (folder / run_folder.RUN_YAML).is_file():
        single, folder = folder, run / KNOWLEDGE  # one finished run, which stays as it is
        import_path(single, folder)
    listing = KnowledgeListing(()) if folder is None else list_entries(folder)
    if real:
        clients = mark_recorded(clients, listing.entries)
    given = [file.entry for file in files.values()]

    def read(entry: KnowledgeEntry) -> Sequence[BoardEvidence]:
        return read_evidence(Path("/") if any(entry is one for one in given) else folder or run, entry)

    found = recall_measurements(clients, [*given, *listing.entries], read, now)
    others = {} if folder is None else _write_other_workloads(clients, found, listing.entries, folder, run)
    origins = {
        client.name: (
            *found.origins.get(client.name, ()),
            *(describe_origin(one, one.id, "other workload", one.rows) for one, _ in others.get(client.kind, ())),
        )
        for client in clients
    }
    kinds = {board.entry: client.kind for board, client in zip(boards, clients, strict=True)}
    fleet = [_convert_references(entry, files, run, real=real) for entry in experiment.fleet]
    added = [[str(path) for _, path in others.get(kinds[entry], ())] for entry in experiment.fleet]
    fleet = [
        entry.model_copy(update={"references": (*entry.references, *more)})
        for entry, more in zip(fleet, added, strict=True)
    ]
    recalled = experiment.model_copy(update={"fleet": tuple(fleet)})
    found = dataclasses.replace(
        found,
        folder=str(folder or ""),
        run=name,
        origins=origins,
        notes=(*listing.damaged, *found.notes),
        references=_read_references(recalled) if real else {},
        memory={**_recall_profiled_memory(experiment, found, [*given, *listing.entries]), **found.memory},
    )
    write_run_knowledge(run, found)
    return recalled


def _recall_profiled_memory(
    experiment: Experiment, found: RunKnowledge, entries: Iterable[KnowledgeEntry]
) -> dict[str, tuple[MemoryObservation, ...]]:
    """Return what the newest profile of each client's own board says of the memory of a step as requested."""
    peaks_mb = {entry.id: entry.peak_mb for entry in entries if entry.peak_mb is not None}
    memory: dict[str, tuple[MemoryObservation, ...]] = {}
    for board in list_boards(experiment):
        own = (one.entry for one in found.origins.get(board.name, ()) if one.relation == "same board")
        peak_mb = next((peaks_mb[entry] for entry in own if entry in peaks_mb), None)
        scaling = None
        if peak_mb is not None:
            device = catalogue.find(board.entry.device, where="fleet.device")
            scaling = build_scaling_context(experiment, board.entry, device, lambda: False)
        if scaling is not None:
            predicted_mb = scaling.estimate_need(scaling.requested).memory_mb
            memory[board.name] = (MemoryObservation(predicted_mb, scaling.limit_mb, peak_mb),)
    return memory


def make_relative(fleet: Sequence[FleetEntry], run: Path) -> tuple[FleetEntry, ...]:
    """Return the entries with references in the run folder relative to it, so that the folder can be fetched."""

    def relative(text: str) -> str:
        path = Path(text)
        return str(path.relative_to(run)) if path.is_relative_to(run) else text

    return tuple(entry.model_copy(update={"references": tuple(map(relative, entry.references))}) for entry in fleet)


def _read_references(experiment: Experiment) -> dict[str, tuple[ReferenceRows, ...]]:
    """Return the rows of each real board's reference tables, which are sent to it."""
    rows = {
        board.name: tuple(to_reference_rows(table) for table in load_references(board, experiment.workload))
        for board in list_boards(experiment)
    }
    return {board: tables for board, tables in rows.items() if tables}


def _write_other_workloads(
    clients: Sequence[ClientIdentity],
    found: RunKnowledge,
    entries: Sequence[KnowledgeEntry],
    folder: Path,
    run: Path,
) -> dict[tuple[object, ...], list[tuple[KnowledgeEntry, Path]]]:
    """Write reference tables of other workloads for kinds of which nothing is known; return them by kind."""
    known = {client.name for client in clients if found.origins.get(client.name)}
    tables: dict[tuple[object, ...], list[tuple[KnowledgeEntry, Path]]] = {}
    for client in clients:
        if client.kind not in tables and client.name not in known:
            tables[client.kind] = []
            for entry in find_other_workloads(client, entries):
                try:
                    tables[client.kind].append((entry, _write_reference(folder, entry, run)))
                except BadInput as error:
                    logger.warning("%s; skipped", error)
    return tables


def _list_reference_files(
    boards: Sequence[FleetBoard], clients: Sequence[ClientIdentity], *, real: bool
) -> dict[tuple[str, FleetEntry], _ReferenceFile]:
    """Return the references that are models or of the trained workload, of real boards all, by path and fleet entry."""
    files: dict[tuple[str, FleetEntry], _ReferenceFile] = {}
    for board, client in zip(boards, clients, strict=True):
        for path in board.entry.references:
            if (path, board.entry) not in files:
                entry = describe_reference(Path(path), board, client)
                same = is_of_client(entry, client)
                if real or same or path.endswith(MODEL):
                    files[path, board.entry] = _ReferenceFile(entry, same)
    return files


def _convert_references(
    entry: FleetEntry, files: Mapping[tuple[str, FleetEntry], _ReferenceFile], run: Path, *, real: bool
) -> FleetEntry:
    """Return the entry with tables in place of model files.

    A real board gets what is of the trained workload as measurements only, and the rows of other tables from the run
    folder, so that a run can be resumed without the files.
    """
    paths = list[str]()
    for path in entry.references:
        file = files.get((path, entry))
        if file is None or (file.same and path.endswith(TABLE) and not real):
            paths.append(path)
        elif not (file.same and real) and (path.endswith(TABLE) or file.entry.rows >= MIN_REFERENCE_MODES):
            paths.append(str(_write_reference(Path("/"), file.entry, run)))
    return entry.model_copy(update={"references": tuple(paths)})


def _write_reference(folder: Path, entry: KnowledgeEntry, run: Path) -> Path:
    """Write the measurements of an entry of ``folder`` as a table into the run folder."""
    rows = [row for one in read_evidence(folder, entry) for row in one.measurements]
    table = to_table(ReferenceRows(entry.device, entry.workload, entry.batch_size, label=entry.label, rows=tuple(rows)))
    name = entry.workload.replace("/", "-")  # of a model file or a record, which may name any path
    path = run / KNOWLEDGE / entry.id / "train" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_mode_table(path, table)
    return path


# The end of a run -----------------------------------------------------------------------------------------------------


def give_back(experiment: Experiment, run: Path) -> None:
    """Write what the run measured into its knowledge folder, if it has one; the run does not depend on it."""
    try:
        known = read_run_knowledge(run)
        if known.folder:
            add_run(experiment, run, Path(known.folder), known.run)
    except BadInput as error:
        logger.warning("what the run measured is not in its knowledge: %s; `fedge knowledge import %s`", error, run)


def add_run(experiment: Experiment, run: Path, folder: Path, name: str) -> list[KnowledgeEntry]:
    """Write what a run measured, one entry per kind of board; entries of the same name are replaced.

    Raises:
        BadInput: The knowledge folder cannot be written.
    """
    state = checkpoint.load_latest(run / run_folder.CHECKPOINTS)
    if state is None:
        return []
    recorded = {row.board for row in read_rows(run, EventRow) if row.kind == RECORDED}
    probes = dict[str, int]()
    for row in read_rows(run, ClientRow):
        probes[row.board] = probes.get(row.board, 0) + row.probes
    kinds: dict[tuple[object, ...], list[tuple[FleetBoard, ClientIdentity]]] = {}
    for board in list_boards(experiment):
        if board.name in state.fleet.states:
            client = identify_client(experiment, board)
            client = client.as_recorded() if board.name in recorded else client
            kinds.setdefault(client.kind, []).append((board, client))
    entries = list[KnowledgeEntry]()
    for kind, members in kinds.items():
        measured = {
            client.board: rows
            for _, client in members
            if (rows := limit_measurements(state.fleet.states[client.name].measurements, MAX_KEPT_MODES))
        }
        if measured:
            content = encode_measurements(
                measured, {client.board: state.fleet.states[client.name].memory for _, client in members}
            )
            ident = f"run-{name}-{hashlib.sha256(repr(kind).encode()).hexdigest()[:8]}"
            entry = dataclasses.replace(
                _describe_run(experiment, run, *members[0], ident=ident, content=content),
                rows=sum(map(len, measured.values())),
                probes=sum(probes.get(client.name, 0) for _, client in members),
                boards=tuple(sorted(measured)),
            )
            add_entry(folder, entry, content)
            entries.append(entry)
    return entries


def _describe_run(
    experiment: Experiment, run: Path, board: FleetBoard, client: ClientIdentity, *, ident: str, content: bytes
) -> KnowledgeEntry:
    named = run.parent if (run.parent / EXPERIMENT).is_file() else run  # by `fedge fleet run`, a job's folder
    real, where = experiment.backend == REAL, f"run {named.name}"
    label: Label
    if client.is_recorded:
        label, where = "estimated", f"{where}, on recorded folders"
    elif real:
        label = "measured"
    else:
        label = build_kind(board, experiment.workload).truth_label
    return KnowledgeEntry(
        id=ident,
        form="run",
        device=client.device,
        workload=client.workload,
        batch_size=client.batch_size,
        label=label,
        source=where,
        file=f"{ENTRIES}/{ident}.rows",
        sha256=hash_content(content),
        date=format_date(max(one.stat().st_mtime for one in (run / run_folder.CHECKPOINTS).iterdir())),
        rows=1,
        conditions=client.conditions,
    )


def import_path(
    path: Path, folder: Path, *, board: str | None = None, batch_size: int | None = None
) -> list[KnowledgeEntry]:
    """Copy a file, a finished run or another knowledge folder into the knowledge; return the entries.

    Args:
        path: A table, model file, cost profile, run folder or knowledge folder.
        board: Name of the board that a table or model was measured on; None as the file says.
        batch_size: Batch size, if a table holds several.

    Raises:
        BadInput: It is none of these, or damaged.
    """
    if (path / ENTRIES).is_dir():
        listing = list_entries(path)
        for line in listing.damaged:
            logger.warning("%s", line)
        return [_copy_entry(path, one, folder) for one in listing.entries]
    if (path / run_folder.RUN_YAML).is_file():
        return _import_run(path, folder)
    if not path.is_file():
        got = "no such file" if path.suffix else run_folder.describe_absence(path)
        raise BadInput(str(path), got, f"the folder of a run or of knowledge, or {RIGHT}")
    entry = describe_file(path.resolve(), batch_size)
    content = path.read_bytes()
    if entry.form in ("model", "table"):
        entry = dataclasses.replace(entry, boards=(board,) if board else entry.boards)
    placed = move_entry(entry, path)
    add_entry(folder, placed, content)
    _forget_earlier_states(folder, placed)
    return [placed]


def _forget_earlier_states(folder: Path, table: KnowledgeEntry) -> None:
    """Remove tables of the same board and workload all of whose rows are in ``table``: its profile has gone on."""
    if table.form != "table" or not table.boards:
        return
    rows = set(read_evidence(folder, table)[0].measurements)
    for entry in list_entries(folder).entries:
        alike = (entry.form, entry.kind, entry.boards) == (table.form, table.kind, table.boards)
        if entry.id == table.id or not alike or measurement_kind(entry) != measurement_kind(table):
            continue
        try:
            if rows.issuperset(read_evidence(folder, entry)[0].measurements):
                forget_entry(folder, entry)
        except BadInput as error:
            logger.warning("%s; it stays", error)


def _copy_entry(source: Path, entry: KnowledgeEntry, folder: Path) -> KnowledgeEntry:
    add_entry(folder, entry, read_content(source, entry))
    return entry


def _import_run(run: Path, folder: Path) -> list[KnowledgeEntry]:
    from experiments.spec.experiment_loader import load_experiment

    experiment, known = load_experiment(run / run_folder.RUN_YAML), read_run_knowledge(run)
    name = known.run or hashlib.sha256((run / run_folder.RUN_YAML).read_bytes()).hexdigest()[:12]
    entries = add_run(experiment, run, folder, name)
    if not entries:
        raise BadInput(str(run), "a run without measurements", "a run with at least one finished round")
    return entries
