"""A fleet's knowledge as a folder: what was measured, fitted or calibrated, each with its origin and a checksum.

Every entry is a description in ``entries/`` and the file that it describes. An entry's file is written first, so an
entry exists as a whole or not at all; names follow from the content, so writers need no lock. ``index.json`` only
spares reading unchanged descriptions and is made again when it is missing or out of date (docs/how-to/knowledge.md).

=====================  ==========================================================================
``entries/ID.json``    description of an entry (``KnowledgeEntry``)
``entries/ID.*``       its file: a table (CSV), a model (safetensors), or a run's measurements (JSON)
``costs/*.yaml``       cost profiles of `fedge calibrate`; runs find those of ``$FEDGE_KNOWLEDGE``
``boards/*.yaml``      boards of the user; runs find those of ``$FEDGE_KNOWLEDGE``
``index.json``         all descriptions
=====================  ==========================================================================
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from fedge.atomic_files import replace_file, write_text
from fedge.errors import BadInput, FedgeError, one_line, refuse_unwritable
from fedge.json_reader import parse_json, read_json
from fedge.types import Label, Measurement, MemoryObservation
from fedge.wire import InvalidMessage, from_json, to_json

EntryForm = Literal["table", "model", "calibration", "run"]
ENTRIES, COSTS, BOARDS, INDEX = "entries", "costs", "boards", "index.json"
DESCRIPTION = ".json"
CALIBRATION = "calibration-"
"""Before the name of a cost profile, in the name of its entry; the file is named as `fedge calibrate` names it."""
DATE_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_Error = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Text = Annotated[str, Field(min_length=1, max_length=1000)]


@dataclass(frozen=True, slots=True)
class KnowledgeEntry:
    """The description of one table, model, calibration or run.

    Attributes:
        boards: Names or serials of the boards that were measured; empty if unknown.
        conditions: What the figures depend on besides mode and workload, such as ``torch``, ``l4t``, ``serving``.
        date: Day and time of the measurement (ISO 8601, UTC).
        probes: Number of probes that a run made for these measurements.
        peak_mb: Peak memory of the training that a table was measured with, in MB; None if unknown.
        errors: Standard errors of time and power of a table's rows, in their order (log units); empty if unknown.
    """

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=120)]
    form: EntryForm
    device: _Text
    workload: _Text
    batch_size: Annotated[int, Field(ge=1)]
    label: Label
    source: _Text
    file: _Text
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    rows: Annotated[int, Field(ge=1)]
    kind: Literal["train", "infer"] = "train"
    boards: tuple[str, ...] = ()
    conditions: Mapping[str, str] = field(default_factory=dict)
    probes: Annotated[int, Field(ge=0)] = 0
    peak_mb: Annotated[float, Field(gt=0)] | None = None
    errors: tuple[tuple[_Error, _Error], ...] = ()


@dataclass(frozen=True, slots=True)
class RunMeasurements:
    """The file of a run's entry: the measurements of every board of one kind, and how their memory sufficed."""

    boards: Mapping[str, tuple[Measurement, ...]]
    memory: Mapping[str, tuple[MemoryObservation, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnowledgeListing:
    """The entries of a folder, oldest first, and one line for each that is damaged."""

    entries: tuple[KnowledgeEntry, ...]
    damaged: tuple[str, ...] = ()


def format_date(seconds: float) -> str:
    """Return Unix time as the date of an entry."""
    return datetime.fromtimestamp(seconds, UTC).strftime(DATE_FORMAT)


def parse_date(date: str) -> datetime:
    """Return the date of an entry; raises ``ValueError`` for any other text."""
    return datetime.strptime(date, DATE_FORMAT).replace(tzinfo=UTC)


def hash_content(content: bytes) -> str:
    """Return the checksum of an entry's file."""
    return hashlib.sha256(content).hexdigest()


def add_entry(folder: Path, entry: KnowledgeEntry, content: bytes) -> None:
    """Write an entry and its file, or replace one of the same name.

    Raises:
        BadInput: The folder cannot be written, or the entry is none that would be listed.
    """
    try:
        _parse_entry(parse_json(to_json(entry)))
    except ValueError as error:
        raise BadInput(f"{folder}: {entry.id}", _first_line(error), "file and workload as fedge names them") from error
    with refuse_unwritable(folder, "a writable folder", "folder"):
        for path, data in (
            (_find_file(folder, entry), content),
            (folder / ENTRIES / f"{entry.id}{DESCRIPTION}", f"{to_json(entry)}\n".encode()),
        ):
            with replace_file(path) as part:
                part.write_bytes(data)


def list_entries(folder: Path) -> KnowledgeListing:
    """List the entries of a folder; damaged descriptions are skipped. The index is renewed if it can be written.

    Raises:
        BadInput: The path is no folder.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(str(folder), "a file", "a folder of knowledge (`fedge knowledge list`)")
    index, current = _read_index(folder), dict[str, Any]()
    found, damaged = list[KnowledgeEntry](), list[str]()
    for path in sorted((folder / ENTRIES).glob(f"*{DESCRIPTION}")):
        try:
            status = path.stat()
            stamp = [status.st_mtime_ns, status.st_size]
            known = index.get(path.name)
            raw = known["entry"] if known and known.get("stamp") == stamp else read_json(path, "a description")
            found.append(_parse_entry(raw))
            current[path.name] = {"stamp": stamp, "entry": raw}
        except (FedgeError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            damaged.append(f"{path}: a damaged description ({_first_line(error)}); skipped")
    if current != index and (folder / ENTRIES).is_dir():
        _write_index(folder, current)
    return KnowledgeListing(tuple(sorted(found, key=lambda entry: (entry.date, entry.id))), tuple(damaged))


def read_content(folder: Path, entry: KnowledgeEntry) -> bytes:
    """Return an entry's file.

    Raises:
        BadInput: It is missing, or not what was written.
    """
    path = _find_file(folder, entry)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(
            str(path), f"a file that cannot be read ({error.strerror})", f"the file of {entry.id}"
        ) from error
    if hash_content(content) != entry.sha256:
        raise BadInput(str(path), "a file with another checksum than its entry", f"the file of {entry.id}, unchanged")
    return content


def _find_file(folder: Path, entry: KnowledgeEntry) -> Path:
    """Return the path of an entry's file; a description of another fleet may name any path."""
    path = folder / entry.file
    try:
        is_inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):  # no path at all
        is_inside = False
    if not is_inside:
        raise BadInput(str(path), "a file outside of the knowledge folder", "a file within it")
    return path


def read_measurements(folder: Path, entry: KnowledgeEntry) -> RunMeasurements:
    """Return the measurements of a run's entry.

    Raises:
        BadInput: They are missing or damaged.
    """
    try:
        return from_json(RunMeasurements, read_content(folder, entry).decode())
    except (InvalidMessage, UnicodeDecodeError) as error:
        right = "measurements that fedge wrote"
        raise BadInput(str(folder / entry.file), f"a damaged file ({_first_line(error)})", right) from error


def find_entry(folder: Path, name: str) -> KnowledgeEntry:
    """Return the entry with this name, or whose name begins with it.

    Raises:
        BadInput: There is none, or more than one.
    """
    entries = list_entries(folder).entries
    matching = [entry for entry in entries if entry.id == name] or [e for e in entries if e.id.startswith(name)]
    if len(matching) != 1:
        got = "no such entry" if not matching else f"the beginning of {len(matching)} entries"
        raise BadInput("ENTRY", f"{name}, {got}", f"an entry of `fedge knowledge list --knowledge {folder}`")
    return matching[0]


def forget_entry(folder: Path, entry: KnowledgeEntry) -> None:
    """Remove an entry and its file; an entry that is gone is no error.

    Raises:
        BadInput: It cannot be removed.
    """
    with refuse_unwritable(folder, "a writable folder", "folder"):
        (folder / ENTRIES / f"{entry.id}{DESCRIPTION}").unlink(missing_ok=True)
        with suppress(BadInput):
            _find_file(folder, entry).unlink(missing_ok=True)


def encode_measurements(
    boards: Mapping[str, Sequence[Measurement]], memory: Mapping[str, tuple[MemoryObservation, ...]] | None = None
) -> bytes:
    """Return the file of a run's entry."""
    rows = {name: tuple(measured) for name, measured in sorted(boards.items())}
    return to_json(RunMeasurements(rows, dict(sorted((memory or {}).items())))).encode()


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = read_json(folder / INDEX, "an index")
    except BadInput:
        return {}
    return index if isinstance(index, dict) and all(isinstance(one, dict) for one in index.values()) else {}


def _write_index(folder: Path, index: Mapping[str, Any]) -> None:
    """Replace the index; a folder that cannot be written is read all the same."""
    try:
        write_text(folder / INDEX, json.dumps(index, separators=(",", ":")))
    except OSError:
        return


def _parse_entry(raw: Any) -> KnowledgeEntry:
    """Return a description as an entry.

    One of another fleet may name any path: its file must be its own, as it would replace that of another entry, and
    its workload, which names files of a run, must lead nowhere.

    Raises:
        ValueError: It is none.
    """
    entry = _adapter().validate_python(raw)
    place = Path(entry.file)
    name = f"{COSTS}/{entry.id.removeprefix(CALIBRATION)}" if entry.form == "calibration" else f"{ENTRIES}/{entry.id}"
    if str(place.with_suffix("")) != name or place.suffix in ("", DESCRIPTION):
        raise ValueError(f"file: {entry.file}, which is not that of {entry.id}")
    if ".." in Path(entry.workload).parts or entry.workload.startswith("/"):
        raise ValueError(f"workload: {entry.workload}, a path")
    return entry


@cache
def _adapter() -> TypeAdapter[KnowledgeEntry]:
    return TypeAdapter(KnowledgeEntry)


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first: Any = error.errors(include_url=False)[0]
        return one_line(f"{'.'.join(map(str, first['loc'])) or 'the whole file'}: {first['msg']}")
    return one_line(error)
