"""The identity that the knowledge of a run's client must match, and the user's own files as knowledge of it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

from fedge import __version__
from fedge.call_cache import cache_last_call
from fedge.costs.layered_work import build_workload
from fedge.devices import catalogue
from fedge.devices.board_kinds import TABLE_PREFIX
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
from fedge.knowledge.evidence_files import MODEL, describe_file, emulated_board
from fedge.knowledge.knowledge_folder import KnowledgeEntry
from fedge.knowledge.recall import MIN_REFERENCE_MODES, SETTINGS, ClientIdentity

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
        BadInput: It is no table or model, or a model has too few modes to stand for another workload.
    """
    entry = describe_file(path, client.batch_size)
    if entry.form == "calibration":
        raise BadInput(str(path), "a cost profile", "a table or a model file of such a board")
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
