"""Measurements of placements as a table (CSV): one row per run of several instances together.

    instances,batch_sizes,precisions,images_per_s,watts
    cuda-cores,64,fp32,415.2,55.1
    cuda-cores+dla-0,8+8,fp32+fp16,346.0,

Cells of several instances are joined by ``+``; one batch size or precision stands for all. ``watts`` may be empty or
absent; further columns are ignored.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.analysis.placement.accelerators import Instance, Placement
from fedge.errors import BadInput

MEASUREMENT_COLUMNS = ("instances", "batch_sizes", "precisions", "images_per_s", "watts")
REQUIRED_COLUMNS = MEASUREMENT_COLUMNS[:4]
MOST_ROWS, MOST_INSTANCES, LARGEST_BATCH = 1000, 64, 4096
"""Upper limits of a table and of a row: a thousand rows already take minutes to fit."""
LEAST, MOST = 1e-3, 1e9
"""Plausible range of images per second and of watts, to catch wrong units."""


@dataclass(frozen=True, slots=True)
class PlacementMeasurement:
    """One run: images per second of all instances together, and the board's power in watts if measured."""

    placement: Placement
    images_per_s: float
    watts: float | None = None


def read_measurements(path: Path) -> tuple[PlacementMeasurement, ...]:
    """Read the rows of a file.

    Raises:
        BadInput: For an unreadable file, or the first error in it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        got = error.strerror if isinstance(error, OSError) else "something that is not text"
        raise BadInput(str(path), str(got), "a readable table of measurements (CSV)") from error
    return parse_measurements(text, str(path))


def parse_measurements(text: str, where: str) -> tuple[PlacementMeasurement, ...]:
    """Parse the rows of a table; ``where`` is named in errors.

    Raises:
        BadInput: For the first error in the table.
    """
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        heads = [head.strip() for head in reader.fieldnames or ()]
        reader.fieldnames = heads
        rows = list(reader)
    except csv.Error as error:
        raise BadInput(where, f"line {reader.line_num}: {error}", "a table of comma-separated values") from error
    missing = [name for name in REQUIRED_COLUMNS if name not in heads]
    if missing:
        raise BadInput(where, f"no column {missing[0]!r}", f"the columns {', '.join(MEASUREMENT_COLUMNS)}")
    if not 1 <= len(rows) <= MOST_ROWS:
        raise BadInput(where, f"{len(rows)} rows", f"1 to {MOST_ROWS}")
    return tuple(_parse_row(row, f"{where}: row {i}") for i, row in enumerate(rows, 1))


def measurements_to_csv(rows: Sequence[PlacementMeasurement], more: Sequence[Mapping[str, object]] = ()) -> str:
    """Return the table as CSV; ``more`` has further columns of each row."""
    out = io.StringIO()
    extra = list(dict.fromkeys(name for each in more for name in each))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*MEASUREMENT_COLUMNS, *extra])
    for i, row in enumerate(rows):
        instances = row.placement.instances
        watts = "" if row.watts is None else f"{row.watts:.3f}"
        cells = [
            "+".join(str(getattr(one, name)) for one in instances)
            for name in ("accelerator", "batch_size", "precision")
        ]
        writer.writerow([*cells, f"{row.images_per_s:.4f}", watts, *(more[i].get(name, "") for name in extra)])
    return out.getvalue()


def _parse_row(row: Mapping[str, str | None], where: str) -> PlacementMeasurement:
    if None in row or any(row.get(name) is None for name in REQUIRED_COLUMNS):
        raise BadInput(where, "another number of cells than the first line", "as many cells as columns")
    names, sizes, precisions = (
        [word.strip() for word in (row[name] or "").split("+")] for name in ("instances", "batch_sizes", "precisions")
    )
    if not all(names) or len(names) > MOST_INSTANCES:
        raise BadInput(f"{where}: instances", repr(row["instances"])[:80], f"up to {MOST_INSTANCES} names joined by +")
    sizes, precisions = (
        _broadcast(sizes, names, f"{where}: batch_sizes"),
        _broadcast(precisions, names, f"{where}: precisions"),
    )
    if not all(precisions):
        raise BadInput(f"{where}: precisions", repr(row["precisions"]), "precisions joined by +, e.g. fp32+fp16")
    placement = Placement(
        tuple(
            Instance(name, parse_batch_size(size, f"{where}: batch_sizes"), precision)
            for name, size, precision in zip(names, sizes, precisions, strict=True)
        )
    )
    watts = (row.get("watts") or "").strip()
    return PlacementMeasurement(
        placement,
        _parse_number(row["images_per_s"], f"{where}: images_per_s"),
        _parse_number(watts, f"{where}: watts") if watts else None,
    )


def parse_batch_size(text: str, where: str) -> int:
    """Parse a batch size that a user typed.

    Raises:
        BadInput: If it is no whole number from 1 to ``LARGEST_BATCH``.
    """
    digits = len(text) <= len(str(LARGEST_BATCH)) and text.isascii() and text.isdigit()
    if not (digits and 1 <= int(text) <= LARGEST_BATCH):
        raise BadInput(where, repr(text)[:80], f"a whole number from 1 to {LARGEST_BATCH}")
    return int(text)


def _broadcast(words: list[str], names: list[str], where: str) -> list[str]:
    if len(words) == 1:
        return words * len(names)
    if len(words) != len(names):
        raise BadInput(where, f"{len(words)} values for {len(names)} instances", "one for each, or one for all")
    return words


def _parse_number(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not LEAST <= value <= MOST:
        raise BadInput(where, repr(text)[:80], f"a number from {LEAST:g} to {MOST:g}")
    return value
