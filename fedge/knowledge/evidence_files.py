"""Files as entries of a fleet's knowledge, the measurements in them, and the identity that a client must match."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import numpy as np

from fedge import __version__
from fedge.call_cache import cache_last_call
from fedge.costs.cost_profile import CostProfile, WorkloadKind, profile_file_name, read_profile
from fedge.costs.layered_work import build_workload
from fedge.devices import catalogue
from fedge.devices.board_kinds import TABLE_PREFIX, TABLE_SUFFIX
from fedge.devices.catalogue import aliases
from fedge.devices.tables.mode_table import list_batch_sizes, parse_workload_kind, read_mode_table
from fedge.errors import BadInput
from fedge.experiment import (
    DEFAULT_LOADED_MPIXEL,
    Experiment,
    FleetBoard,
    FleetEntry,
    LoaderSpec,
    ServingSpec,
    list_boards,
)
from fedge.json_reader import read_json
from fedge.knowledge.knowledge_folder import (
    CALIBRATION,
    COSTS,
    ENTRIES,
    KnowledgeEntry,
    format_date,
    hash_content,
    parse_date,
    read_measurements,
)
from fedge.knowledge.knowledge_folder import read_content as read_checked
from fedge.knowledge.model_file import load_model
from fedge.knowledge.recall import (
    MIN_REFERENCE_MODES,
    RECORDED,
    SETTINGS,
    BoardEvidence,
    ClientIdentity,
    limit_measurements,
)
from fedge.modes import stack_modes
from fedge.physics.model_fit import THROTTLED_SD, UNSURE_SE_LOG
from fedge.types import Label, Measurement, PowerMode, ProfileTable, ReferenceRows

TABLE, MODEL, PROFILE = TABLE_SUFFIX, ".safetensors", (".yaml", ".yml")
RIGHT = (
    "the path of a table (.csv), a model of `fedge predict fit` (.safetensors), or a cost profile of `fedge calibrate` "
    "(.yaml)"
)
NO_RECORD: Mapping[str, Any] = MappingProxyType({})
RECORD_SUFFIX = ".json"
"""Suffix of the record that `fedge profile` writes beside a table."""
BOARD_NAME = "inventory_name"
"""Key of a record with the name of a fleet's board; `fedge fleet profile` adds it."""
PEAK = "peak_mb"
"""Key of a record with the peak memory of the profiled training in MB, where the board reports it."""
PROFILED_STEPS = 100
"""Steps that a row of a table or model stands for; they were measured until settled, so their noise is small."""


def describe_file(path: Path, batch_size: int | None = None) -> KnowledgeEntry:
    """Describe a file as an entry whose file is ``path`` itself.

    Raises:
        BadInput: It is none of these, or invalid.
    """
    if not path.is_file():
        raise BadInput(str(path), "a folder" if path.is_dir() else "no such file", RIGHT)
    if path.suffix == TABLE:
        return _describe_table(path, batch_size)
    if path.suffix == MODEL:
        return _describe_model(path)
    if path.suffix in PROFILE:
        return describe_profile(path, read_profile(path))
    raise BadInput(str(path), f"a file of the type {path.suffix or 'none'}", RIGHT)


def move_entry(entry: KnowledgeEntry, path: Path) -> KnowledgeEntry:
    """Return the entry of ``path`` with its place in a knowledge folder."""
    if entry.form == "calibration":
        return dataclasses.replace(entry, file=f"{COSTS}/{entry.id.removeprefix(CALIBRATION)}.yaml")
    return dataclasses.replace(entry, file=f"{ENTRIES}/{entry.id}{path.suffix}")


def _describe_table(path: Path, batch_size: int | None) -> KnowledgeEntry:
    sizes = list_batch_sizes(path)
    table = read_mode_table(path, batch_size=batch_size if len(sizes) > 1 else None)
    record = read_record(path)
    device = aliases().get(table.device, table.device)
    recorded = record.get(RECORDED) is True
    emulated = is_emulated(table.label, record) and not recorded
    software, peak_mb = record.get("software"), record.get(PEAK)
    return KnowledgeEntry(
        id=f"table-{_sha256(path)[:12]}" + (f"-b{table.batch_size}" if len(sizes) > 1 else ""),
        form="table",
        device=aliases().get(str(record.get("board")), str(record["board"])) if "board" in record else device,
        workload=str(record.get("workload", table.workload)),
        batch_size=table.batch_size,
        label=table.label,
        source=str(record.get("source") or path.name)[:1000],
        file=str(path),
        sha256=_sha256(path),
        date=_find_date(path, record),
        rows=len(table.modes),
        kind=read_table_kind(path),
        boards=_list_measured_boards(record, emulated=emulated),
        errors=_list_errors(record, table),
        peak_mb=peak_mb if isinstance(peak_mb, float) and 0.0 < peak_mb < math.inf else None,
        conditions={
            **({"truth": RECORDED} if recorded else {"truth": "model"} if emulated else {}),
            **(
                {str(k): str(v) for k, v in software.items() if emulated or k != "fedge"}
                if isinstance(software, dict)
                else {}
            ),
        },
    )


def _list_errors(record: Mapping[str, Any], table: ProfileTable) -> tuple[tuple[float, float], ...]:
    """Return the recorded standard errors of a table's rows; empty unless the record has every row.

    Those of a mode that did not settle, and of one that throttled, are at least as large as such rows may be off.
    """
    try:
        names = [one.name for one in dataclasses.fields(PowerMode)]
        errors = {_round_mode(*(one[name] for name in names)): _find_errors(one) for one in record["modes"]}
        return tuple(errors[_round_mode(*knobs)] for knobs in table.modes.knobs.tolist())
    except (KeyError, TypeError, ValueError, OverflowError):
        return ()


def _round_mode(*knobs: float) -> tuple[float, ...]:
    return tuple(round(float(value), 3) for value in knobs)


def _find_errors(row: Mapping[str, Any]) -> tuple[float, float]:
    least = THROTTLED_SD if row["throttled"] else 0.0 if row["settled"] else UNSURE_SE_LOG
    given = (row[name] for name in ("time_se_log", "power_se_log"))
    time, power = (max(least, UNSURE_SE_LOG if one is None else float(one)) for one in given)
    return time, power


def _list_measured_boards(record: Mapping[str, Any], *, emulated: bool) -> tuple[str, ...]:
    """Return the name of the board that a table was measured on, across runs; none if it is unknown."""
    if emulated:
        return (emulated_board(f"{record['board']}-1", record.get("seed")),) if "board" in record else ()
    name = record.get(BOARD_NAME)
    return (name,) if isinstance(name, str) and name else ()


def _find_date(path: Path, record: Mapping[str, Any]) -> str:
    """Return the recorded date of measurement; a table without one is as old as its file."""
    try:
        return format_date(parse_date(str(record.get("date"))).timestamp())
    except ValueError:
        return format_date(path.stat().st_mtime)


def is_emulated(label: Label, record: Mapping[str, Any] = NO_RECORD) -> bool:
    """Return whether figures are those of an emulated board; without a record the label decides."""
    return bool(record.get("emulated")) or label in ("calibrated", "estimated")


def emulated_board(name: str, seed: object) -> str:
    """Return the name of an emulated board across runs: with another seed it is another board of its kind."""
    return f"{name}@seed-{seed}"


def _describe_model(path: Path) -> KnowledgeEntry:
    model = load_model(path)
    about = model.about
    return KnowledgeEntry(
        id=f"model-{_sha256(path)[:12]}",
        form="model",
        device=aliases().get(about.device, about.device),
        workload=about.workload,
        batch_size=about.batch_size,
        label=about.origin.label,
        source=about.origin.source,
        file=str(path),
        sha256=_sha256(path),
        date=format_date(path.stat().st_mtime),
        rows=len(model.measurements),
        conditions={"truth": "model"} if is_emulated(about.origin.label) else {},
    )


def describe_profile(path: Path, profile: CostProfile) -> KnowledgeEntry:
    """Describe a cost profile's file as an entry."""
    evidence = profile.evidence
    return KnowledgeEntry(
        id=f"{CALIBRATION}{Path(profile_file_name(profile)).stem}",
        form="calibration",
        device=profile.device,
        workload=profile.workload,
        batch_size=profile.batch_size,
        label=profile.label,
        source=profile.source,
        file=str(path),
        sha256=_sha256(path),
        date=format_date(path.stat().st_mtime),
        rows=1 if evidence is None else evidence.rows,
        kind=profile.kind,
    )


def read_evidence(folder: Path, entry: KnowledgeEntry) -> Sequence[BoardEvidence]:
    """Return the measurements of an entry, by board.

    Raises:
        BadInput: Its file is missing, damaged or changed.
    """
    if entry.form == "run":
        run = read_measurements(folder, entry)
        return [
            BoardEvidence(entry, board, rows, run.memory.get(board, ())) for board, rows in run.boards.items() if rows
        ]
    read_checked(folder, entry)
    table = None
    if entry.form == "table":
        table = read_mode_table(folder / entry.file, entry.device, entry.workload, entry.batch_size)
    rows = load_model(folder / entry.file).measurements if table is None else table_measurements(table, entry.errors)
    return [BoardEvidence(entry, entry.boards[0] if entry.boards else entry.id, rows)]


def table_measurements(table: ProfileTable, errors: Sequence[tuple[float, float]] = ()) -> tuple[Measurement, ...]:
    """Return the rows of a table as measurements, with their standard errors if these are known of every row."""
    known = errors if len(errors) == len(table.modes) else [(0.0, 0.0)] * len(table.modes)
    columns = zip(table.modes, table.step_s.tolist(), table.power_w.tolist(), known, strict=True)
    return tuple(
        Measurement(mode, PROFILED_STEPS, step_s, power_w, time_se_log=time, power_se_log=power)
        for mode, step_s, power_w, (time, power) in columns
    )


def to_reference_rows(table: ProfileTable) -> ReferenceRows:
    """Return a table as rows that can be sent: at most as many modes as are recalled of a board."""
    rows = limit_measurements(table_measurements(table))
    return ReferenceRows(table.device, table.workload, table.batch_size, label=table.label, rows=rows)


def to_table(reference: ReferenceRows) -> ProfileTable:
    """Return rows as a table without a file."""
    return ProfileTable(
        reference.device,
        workload=reference.workload,
        batch_size=reference.batch_size,
        modes=stack_modes(row.mode for row in reference.rows),
        step_s=np.array([row.step_s for row in reference.rows]),
        power_w=np.array([row.power_w for row in reference.rows]),
        sha256="",
        path="",
        label=reference.label,
    )


def read_record(path: Path) -> Mapping[str, Any]:
    """Return the record that `fedge profile` wrote beside a table; empty without a valid one."""
    try:
        record = read_json(path.with_name(path.name + RECORD_SUFFIX), "a record of `fedge profile`", finite=False)
    except BadInput:
        return NO_RECORD
    return record if isinstance(record, dict) else NO_RECORD


def read_table_kind(path: Path) -> WorkloadKind:
    """Return the kind of a table's steps: that of its record, else ``infer`` in a folder of this name."""
    recorded = read_record(path).get("kind")
    return next((kind for kind in get_args(WorkloadKind) if kind == recorded), parse_workload_kind(path))


def _sha256(path: Path) -> str:
    return hash_content(path.read_bytes())


REAL = "fleet"
"""Backend of real boards."""


def identify_client(experiment: Experiment, board: FleetBoard) -> ClientIdentity:
    """Return what a client's knowledge must match.

    A real board trains the task itself; on an emulated one the priced workload determines time and power.
    """
    entry, work = board.entry, build_workload(board.entry, experiment.workload)
    conditions = {
        "serving": "" if entry.serving is None else _describe_service(entry.serving),
        "loader": "" if entry.loader is None else _describe_loader(entry.loader),
    }
    task, network = experiment.workload.task, experiment.workload.network
    if experiment.backend == REAL:
        workload, batch_size, across = Path(task).stem, experiment.workload.batch_size, board.name
        trained = Path(task).read_bytes() if task.endswith(".py") else b""
        trained += b"" if network is None or network.channels is None else network.channels.encode()
        trained += b"mixed" if experiment.workload.mixed_precision else b""  # older entries are of single precision
        conditions["network"] = hashlib.sha256(trained).hexdigest() if trained else ""
    else:
        workload, batch_size, across = work.name, work.batch_size, emulated_board(board.name, experiment.seed)
        conditions |= {"truth": entry.truth, "fedge": __version__}
        if network is not None and work.layers is not None:
            conditions["network"] = hashlib.sha256(repr(work.layers).encode()).hexdigest()
    return ClientIdentity(
        board.name,
        board=across,
        device=catalogue.canonical_name(entry.device),
        workload=workload,
        batch_size=batch_size,
        conditions={name: value for name, value in conditions.items() if value},
    )


def _describe_service(spec: ServingSpec) -> str:
    """Return a service as text, without fields that are not set and that older entries did not have."""
    newer = ("placement", "placed")
    return spec.model_dump_json(exclude={name for name in newer if getattr(spec, name) is None})


def _describe_loader(spec: LoaderSpec) -> str:
    """Return a loader as text, as in older entries, or with a fitted one by its content, wherever its file is."""
    model = spec.model if spec.sha256 is None else spec.sha256
    given = spec.model_copy(update={"model": model, "image_mpixel": spec.image_mpixel or DEFAULT_LOADED_MPIXEL})
    return given.model_dump_json(exclude={"sha256"} if given.model else {"sha256", "model"})


@cache_last_call
def find_kinds(experiment: Experiment) -> Mapping[str, tuple[object, ...]]:
    """Return for every board of a run what boards that share measurements have in common."""
    kinds: dict[FleetEntry, tuple[object, ...]] = {}
    for board in list_boards(experiment):
        if board.entry not in kinds:
            kinds[board.entry] = identify_client(experiment, board).kind
    return {board.name: kinds[board.entry] for board in list_boards(experiment)}


def describe_reference(path: Path, board: FleetBoard, client: ClientIdentity) -> KnowledgeEntry:
    """Describe a file under a fleet entry's ``references``, which the user says to be of such a board.

    A file of the trained workload that names no board is the board's own if there is only one that it can be of.

    Raises:
        BadInput: It is no table or model of training steps, or a model has too few modes to stand for another workload.
    """
    entry = describe_file(path, client.batch_size)
    if entry.form == "calibration":
        raise BadInput(str(path), "a cost profile", "a table or a model file of such a board")
    if entry.kind == "infer":
        raise BadInput(str(path), "a table of inference steps, as its folder or record says", "one of training steps")
    if path.suffix == MODEL and not is_of_client(entry, client) and entry.rows < MIN_REFERENCE_MODES:
        right = f"at least {MIN_REFERENCE_MODES}, or a model of {client.workload} at batch size {client.batch_size}"
        raise BadInput(str(path), f"{entry.rows} modes of another workload, {entry.workload}", right)
    replayed = board.truth == f"{TABLE_PREFIX}{path}"
    alone = board.entry.count == 1 and entry.label in ("measured", "unknown")
    return dataclasses.replace(
        entry,
        device=client.device,
        boards=entry.boards or ((client.board,) if alone or replayed else ()),
        conditions={
            **{name: value for name, value in entry.conditions.items() if name not in SETTINGS},
            **{name: value for name, value in client.conditions.items() if name in SETTINGS},
        },
        file=str(path.resolve()),
    )


def is_of_client(entry: KnowledgeEntry, client: ClientIdentity) -> bool:
    """Return whether an entry is of the workload that a client trains, at its batch size."""
    return (entry.workload, entry.batch_size) == (client.workload, client.batch_size)
