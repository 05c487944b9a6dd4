"""Recall of a fleet's knowledge by a run's clients: the best fitting measurements, chosen once at the run's start.

For every client, in this order:

1. Measurements of the same board and workload count as its own, unless the conditions differ or they are old.
2. Those of other boards of the kind, and the ones just excluded, count as measurements of peers: a predictor expects
   boards to differ by an offset, and a client drops what contradicts its own measurements.
3. Where nothing of the workload is known, tables and models of other workloads on the kind become reference tables.

A run keeps its choice in ``knowledge.json``, so that it is resumed and repeated with the same measurements. Pure
functions, apart from reading and writing that file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np

from fedge.atomic_files import write_text
from fedge.errors import BadInput
from fedge.groups import group_by
from fedge.knowledge.knowledge_folder import EntryForm, KnowledgeEntry, parse_date
from fedge.modes import stack_modes
from fedge.pareto import front_mask
from fedge.types import Label, Measurement, MemoryObservation, ReferenceRows
from fedge.wire import InvalidMessage, from_json, to_json

FILE = "knowledge.json"
"""File of a run folder with the run's ``RunKnowledge``."""
SETTINGS = ("truth", "serving", "loader", "network")
"""Conditions in which measurements must agree to be used as rows at all: what the board does beside training."""
RECORDED = "recorded"
"""``truth`` of a real board that is a recorded folder, and key of such a board in the record of its table: its figures
are no measurements, and only such boards use them."""
MAX_MODES = 60
"""Recalled modes per board, and measurements that peers share with one board. The time of a fit grows with the cube of
their number: 60 take 1.5 times as long as none, 240 six times, and errors hardly fall beyond 60
(benchmarks/warm_start.py)."""
MAX_REPEATS = 3
"""Recalled measurements per mode: their median is robust, and more hardly narrow it. Default."""
MAX_DONORS = 12
"""Other boards that are recalled per kind, and boards that share with one board. Boards differ by an offset, so five
modes of one board say more about how modes differ than one mode each of five boards."""
FIRST_ROUNDS, RENEWAL_ROUNDS = 4, 4
"""First rounds in each of which boards are told anew what their peers measured, and the rounds between two renewals
later, when most of what peers measure is a repeat. Between renewals a board's round begins with the predictions of its
last offer, and the fit to what its peers measured is kept. Asynchronous runs renew with every request.
"""
MAX_REFERENCES = 2
"""Tables of other workloads per kind. Default; each adds candidates to every fit."""
MIN_REFERENCE_MODES = 20
"""Fewest modes of a reference table: about the number of coefficients of the physical model."""
MAX_AGE_DAYS = 365
"""Older measurements of the board itself count as those of another board of its kind. Default: paste dries and fans
clog over years."""

Relation = Literal["same board", "same kind", "other workload"]


def renews_peers(number: int) -> bool:
    """Return whether round ``number`` tells boards anew what their peers measured."""
    return number <= FIRST_ROUNDS or number % RENEWAL_ROUNDS == 0


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client of a run as the knowledge knows it.

    Attributes:
        name: Name in the run.
        board: Name across runs: that of a real board; an emulated board is another one with another seed.
        conditions: ``SETTINGS``, and versions that are known.
    """

    name: str
    board: str
    device: str
    workload: str
    batch_size: int
    conditions: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what boards that share measurements have in common."""
        return measurement_kind(self)

    @property
    def is_recorded(self) -> bool:
        """Return whether the board is a recorded folder of a real fleet."""
        return self.conditions.get("truth") == RECORDED

    def as_recorded(self) -> ClientIdentity:
        """Return the client as a recorded folder."""
        return replace(self, conditions={**self.conditions, "truth": RECORDED})


def measurement_kind(measured: ClientIdentity | KnowledgeEntry) -> tuple[object, ...]:
    """Return what boards have in common whose measurements are used together, in a run or from an entry.

    Such boards differ by a few percent, mostly by the same factor in every mode, which a predictor models as an offset.
    """
    settings = (measured.conditions.get(name, "") for name in SETTINGS)
    return (measured.device, measured.workload, measured.batch_size, *settings)


@dataclass(frozen=True, slots=True)
class RecalledOrigin:
    """Where measurements of a client come from."""

    entry: str
    form: EntryForm
    relation: Relation
    board: str
    rows: int
    label: Label
    date: str


@dataclass(frozen=True, slots=True)
class RecalledPeer:
    """Measurements that no client recalls as its own, of the same kind as the client ``like``.

    Attributes:
        name: Unique among peers and clients: a client's own board is a peer of it when its measurements are old, and
            one board may be measured beside several services.
    """

    name: str
    like: str
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class RunKnowledge:
    """The measurements that a run recalls.

    Attributes:
        folder: The knowledge folder; empty if there is none.
        run: Name of this run in the knowledge, kept when it is resumed.
        own: Measurements of each client's board, by client.
        peers: Measurements of other boards.
        origins: Origins of both, by client.
        notes: One line for everything that was left out.
        recorded: Clients of a real fleet that recall figures of recorded folders, because they are such folders.
        references: Tables of other workloads for each real client, which does not have the files.
        memory: Memory outcomes of each client's board in its last run, which had those of the runs before, by client.
    """

    folder: str = ""
    run: str = ""
    own: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    peers: tuple[RecalledPeer, ...] = ()
    origins: Mapping[str, tuple[RecalledOrigin, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    references: Mapping[str, tuple[ReferenceRows, ...]] = field(default_factory=dict)
    memory: Mapping[str, tuple[MemoryObservation, ...]] = field(default_factory=dict)


NO_KNOWLEDGE = RunKnowledge()


def read_run_knowledge(run: Path) -> RunKnowledge:
    """Return what the run in a folder recalls; nothing without the file.

    Raises:
        BadInput: The file is damaged.
    """
    path = run / FILE
    if not path.is_file():
        return NO_KNOWLEDGE
    try:
        return from_json(RunKnowledge, path.read_text(encoding="utf-8"))
    except (InvalidMessage, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise BadInput(str(path), f"a file that cannot be read ({reason})", "the file of the run's start") from error


def write_run_knowledge(run: Path, knowledge: RunKnowledge) -> None:
    """Write what a run recalls into its folder."""
    write_text(run / FILE, to_json(knowledge) + "\n")


# Choosing -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BoardEvidence:
    """The measurements of one board in one entry, and the memory outcomes of its attempts to train."""

    entry: KnowledgeEntry
    board: str
    measurements: tuple[Measurement, ...]
    memory: tuple[MemoryObservation, ...] = ()


EvidenceReader = Callable[[KnowledgeEntry], Sequence[BoardEvidence]]
"""Reads the measurements of an entry; raises ``BadInput`` if it is damaged."""


def recall_measurements(
    clients: Sequence[ClientIdentity], entries: Iterable[KnowledgeEntry], read: EvidenceReader, now: datetime
) -> RunKnowledge:
    """Choose the measurements that each client recalls; entries that cannot be read become notes."""
    own: dict[str, list[BoardEvidence]] = {}
    others: dict[str, list[BoardEvidence]] = {}
    first = {client.kind: client.name for client in reversed(clients)}
    by_board = {(client.kind, client.board): client for client in clients}
    entries = tuple(entries)
    found, notes = _read_evidence(first.keys(), entries, read)
    notes += _note_other_devices(clients, entries)
    for evidence in found:
        kind = measurement_kind(evidence.entry)
        client = by_board.get((kind, evidence.board))
        if client is not None and _is_current(evidence.entry, client, now):
            own.setdefault(client.name, []).append(evidence)
        else:
            others.setdefault(first[kind], []).append(evidence)
    peers = {like: _merge_boards(found)[:MAX_DONORS] for like, found in others.items()}
    return RunKnowledge(
        own={name: limit_measurements(_join(found)) for name, found in own.items()},
        peers=tuple(
            RecalledPeer(f"{board} (recalled for {like})", like, limit_measurements(_join(found)))
            for like, donors in peers.items()
            for board, found in donors
        ),
        origins={
            client.name: (
                *_list_origins(own.get(client.name, ()), "same board"),
                *_list_origins([e for _, found in peers.get(first[client.kind], ()) for e in found], "same kind"),
            )
            for client in clients
        },
        notes=tuple(notes),
        recorded=tuple(client.name for client in clients if client.is_recorded),
        memory={
            name: newest
            for name, found in own.items()
            if (newest := next((evidence.memory for evidence in found if evidence.memory), ()))
        },
    )


def _note_other_devices(clients: Sequence[ClientIdentity], entries: Iterable[KnowledgeEntry]) -> list[str]:
    """Note each client whose board was measured under the same work as another kind than the experiment names."""
    names = {client.board: client for client in clients}
    found = {
        (board, entry.device): names[board]
        for entry in entries
        for board in entry.boards
        if board in names
        and entry.device != names[board].device
        and (entry.workload, entry.batch_size, entry.kind) == (names[board].workload, names[board].batch_size, "train")
    }
    return [
        f"{client.name} was measured as {device}, the experiment says {client.device}: that is not recalled"
        for (_, device), client in found.items()
    ]


def mark_recorded(clients: Sequence[ClientIdentity], entries: Sequence[KnowledgeEntry]) -> tuple[ClientIdentity, ...]:
    """Return real clients with those marked as recorded folders of which the newest entry says so.

    Entries are oldest first. Whether it is right shows when a board answers: one that is no such folder drops what it
    was sent.
    """
    truth = {board: one.conditions.get("truth", "") for one in entries for board in one.boards}
    return tuple(one.as_recorded() if truth.get(one.board) == RECORDED else one for one in clients)


def _read_evidence(
    kinds: Container[tuple[object, ...]], entries: Iterable[KnowledgeEntry], read: EvidenceReader
) -> tuple[list[BoardEvidence], list[str]]:
    """Read the measurements of training on boards of ``kinds``, the newest entry first, and note what was left out."""
    notes, evidence = list[str](), list[BoardEvidence]()
    for entry in sorted(entries, key=lambda one: (one.date, one.id), reverse=True):
        if measurement_kind(entry) not in kinds or entry.kind != "train" or entry.form == "calibration":
            continue
        try:
            evidence += read(entry)
        except BadInput as error:
            notes.append(f"{error}; skipped")
    return _drop_repeated(evidence, notes), notes


def _drop_repeated(evidence: Sequence[BoardEvidence], notes: list[str]) -> list[BoardEvidence]:
    """Leave out measurements that another entry holds too, such as a table and the model that was fitted to it.

    The very same figures to the last digit are one measurement of a kind if at least half of either entry's are the
    other's too; fewer may coincide by chance. It stays with the entry that names its board, and of several with the
    newest, which comes first.
    """
    holders: dict[tuple[object, ...], str] = {}
    for one in sorted(evidence, key=lambda one: not one.entry.boards):
        for row in one.measurements:
            holders.setdefault(_identify_row(one, row), one.entry.id)
    rows, shared = Counter[str](), dict[str, Counter[str]]()
    for one in evidence:
        found = (holders[_identify_row(one, row)] for row in one.measurements)
        rows[one.entry.id] += len(one.measurements)
        shared.setdefault(one.entry.id, Counter()).update(holder for holder in found if holder != one.entry.id)
    copied = dict[str, set[str]]()
    for name, of in shared.items():
        copied[name] = {each for each in of if of.total() >= rows[name] / 2 or of[each] >= rows[each] / 2}
        if copied[name]:
            count, whose = sum(of[each] for each in copied[name]), ", ".join(sorted(copied[name]))
            notes.append(f"{name}: {count} of {rows[name]} measurements are those of {whose}, which count once")

    def select_own(one: BoardEvidence) -> tuple[Measurement, ...]:
        return tuple(row for row in one.measurements if holders[_identify_row(one, row)] not in copied[one.entry.id])

    kept = (replace(one, measurements=select_own(one)) for one in evidence)
    return [one for one in kept if one.measurements]


def _identify_row(one: BoardEvidence, row: Measurement) -> tuple[object, ...]:
    return (measurement_kind(one.entry), row.mode, row.step_s, row.power_w)


def find_other_workloads(client: ClientIdentity, entries: Iterable[KnowledgeEntry]) -> tuple[KnowledgeEntry, ...]:
    """Return the newest tables and models of other workloads on a client's kind of board, of entries oldest first."""
    alike = [
        entry
        for entry in entries
        if entry.form in ("table", "model")
        and (entry.device, entry.kind) == (client.device, "train")
        and entry.workload != client.workload
        and entry.rows >= MIN_REFERENCE_MODES
        and all(entry.conditions.get(name, "") == client.conditions.get(name, "") for name in SETTINGS[:3])
    ]
    return tuple(reversed(alike[-MAX_REFERENCES:]))


def describe_origin(entry: KnowledgeEntry, board: str, relation: Relation, rows: int) -> RecalledOrigin:
    """Return the origin of measurements of an entry."""
    return RecalledOrigin(
        entry.id, form=entry.form, relation=relation, board=board, rows=rows, label=entry.label, date=entry.date
    )


def limit_measurements(measurements: Sequence[Measurement], limit: int = MAX_MODES) -> tuple[Measurement, ...]:
    """Return at most ``limit`` modes, each with its newest measurements: the fastest, then the front, then the others.

    Args:
        measurements: Newest last.
        limit: Number of modes.
    """
    repeats = group_by(filter(_is_usable, measurements), lambda one: one.mode)
    modes = list(repeats)
    if len(modes) > limit:
        modes = [modes[row] for row in _spread_rows([repeats[mode][-1] for mode in modes], limit)]
    return tuple(one for mode in modes for one in repeats[mode][-MAX_REPEATS:])


def _spread_rows(rows: Sequence[Measurement], limit: int) -> list[int]:
    """Return rows of the front of time and energy, at most half of ``limit``, and others far from those chosen."""
    step_s = np.array([row.step_s for row in rows])
    step_j = step_s * np.array([row.power_w for row in rows])
    front = np.flatnonzero(front_mask(step_s, step_j))
    front = front[np.argsort(step_s[front], kind="stable")]
    some = np.unique(np.linspace(0, len(front) - 1, min(len(front), limit // 2)).round().astype(np.intp))
    chosen = front[some].tolist()
    logs = np.log(stack_modes(row.mode for row in rows).knobs)
    apart = np.min([np.square(logs - logs[row]).sum(axis=1) for row in chosen], axis=0)
    while len(chosen) < limit:
        chosen.append(int(np.argmax(apart)))
        apart = np.minimum(apart, np.square(logs - logs[chosen[-1]]).sum(axis=1))
    return sorted(chosen)


def _is_current(entry: KnowledgeEntry, client: ClientIdentity, now: datetime) -> bool:
    """Return whether measurements of the client's board still hold for it: as new, and under the same versions."""
    known = entry.conditions.keys() & client.conditions.keys()
    return age_days(entry, now) <= MAX_AGE_DAYS and all(
        entry.conditions[name] == client.conditions[name] for name in known
    )


def _is_usable(one: Measurement) -> bool:
    return not one.throttled and all(math.isfinite(v) and v > 0 for v in (one.step_s, one.power_w))


def age_days(entry: KnowledgeEntry, now: datetime) -> float:
    """Return the age of an entry in days."""
    return (now - parse_date(entry.date)).total_seconds() / 86400


def _merge_boards(found: Sequence[BoardEvidence]) -> list[tuple[str, list[BoardEvidence]]]:
    """Return the evidence by board, the board of the newest entry first."""
    return list(group_by(found, lambda evidence: evidence.board).items())


def _join(found: Sequence[BoardEvidence]) -> list[Measurement]:
    """Return all measurements, those of the newest entry last."""
    return [measurement for evidence in reversed(found) for measurement in evidence.measurements]


def _list_origins(found: Iterable[BoardEvidence], relation: Relation) -> Iterable[RecalledOrigin]:
    for evidence in found:
        yield describe_origin(evidence.entry, evidence.board, relation, len(evidence.measurements))
