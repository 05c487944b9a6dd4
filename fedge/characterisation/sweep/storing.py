"""A point's arrays on the disk, as Parquet: complete under their own names, or not there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedge.characterisation.result import Arrays
from fedge.characterisation.seen import Minibatches, Seen, Strip
from fedge.errors import BadInput
from fedge.journal import AGAIN, sync_folder

MINIBATCHES, STRIPS = "minibatches", "strips"
RECORDS: dict[str, type[Minibatches | Strip]] = {MINIBATCHES: Minibatches, STRIPS: Strip}
UNFINISHED = ".unfinished"
"""The end of a file's name until all of it is on the disk."""


def write_arrays(folder: Path, seen: Seen) -> None:
    """Put a point's arrays on the disk; raises ``BadInput`` where that cannot be done."""
    about = {
        "point": json.dumps(seen.point.as_data()),
        "label": seen.label,
        "power_label": seen.power_label or "",
        "source": seen.source,
    }
    for part, records in ((MINIBATCHES, seen.minibatches), (STRIPS, seen.strip)):
        columns = {one.name: getattr(records, one.name) for one in fields(records)}
        write_file(_path(folder, part, seen.point.key), partial(_write, columns=columns, about=about))


def arrays_of(folder: Path, key: str) -> Arrays:
    """How to read the arrays of the point that is called ``key``."""
    return Arrays(
        lambda: Minibatches(**_read(_path(folder, MINIBATCHES, key), Minibatches)),
        lambda: Strip(**_read(_path(folder, STRIPS, key), Strip)),
    )


def whole(folder: Path, key: str) -> bool:
    """Whether a point's files are there and end as they should; what lies within is seen when it is read."""
    return all(_ends(_path(folder, part, key), record) for part, record in RECORDS.items())


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace the file at ``path``, or leave it as it was; raises ``BadInput`` where it cannot be written."""
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        path.parent.mkdir(exist_ok=True)
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> BadInput:
    """What to do about a file that cannot be written: make room, or give another place."""
    right = AGAIN if error.errno in {errno.ENOSPC, errno.EDQUOT} else "a folder that you may write to"
    return BadInput(str(path), f"a file that cannot be written ({error.strerror or error})", right)


def tidy(folder: Path) -> None:
    """Remove what a killed writer left unfinished; nobody else may be writing."""
    for place in (folder, folder / MINIBATCHES, folder / STRIPS):
        for path in place.glob(f"*{UNFINISHED}"):
            path.unlink(missing_ok=True)


def _path(folder: Path, part: str, key: str) -> Path:
    return folder / part / f"{key}.parquet"


def _write(file: IO[bytes], columns: dict[str, Any], about: dict[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: pa.array(np.ascontiguousarray(values)) for name, values in columns.items()})
    pq.write_table(table.replace_schema_metadata(about), file)


def _ends(path: Path, record: type[Minibatches | Strip]) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            found = set(pq.read_metadata(file).schema.names)
    except (OSError, pa.ArrowException):
        return False
    return found >= {one.name for one in fields(record)}


def _read(path: Path, record: type[Minibatches | Strip]) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [one.name for one in fields(record)]
    try:
        with path.open("rb") as file:
            table = pq.read_table(file, columns=names)
        return {name: table.column(name).to_numpy() for name in names}
    except (OSError, KeyError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        right = "remove it, and the sweep's `fedge characterise` measures this point again"
        raise BadInput(str(path), f"a file that cannot be read ({reason})", right) from error
