"""Reads any CSV as named columns of text, whatever its separator, and a cell as a number or a clear error."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.errors import BadInput

SEPARATORS = (",", ";", "\t")
"""Of these the one that makes most needed names appear in the first line is the file's; ties go to the first."""
MAX_SHOWN_LENGTH = 40


@dataclass(frozen=True, slots=True)
class SheetRow:
    """One line's cells by column name, and the number of the line (for messages)."""

    line: int
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CsvSheet:
    """A CSV file: names in lower case without spaces around them, and the rows that are not empty."""

    where: str
    columns: tuple[str, ...]
    rows: tuple[SheetRow, ...]


def read_bytes(path: Path, right: str) -> bytes:
    """A file's bytes; raises ``BadInput`` for a missing or unreadable one, where ``right`` says what it should be."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise BadInput(str(path), "no such file", f"the path of {right}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(str(path), f"a file that cannot be read ({reason})", f"a readable {right}") from error


def decode_text(where: str, raw: bytes, right: str = "a CSV file in UTF-8") -> str:
    """UTF-8 with or without a byte order mark; raises ``BadInput`` for anything else."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(where, f"bytes that are not text (at {error.start})", right) from error


def parse_sheet(where: str, text: str, needed: Sequence[str]) -> CsvSheet:
    """The sheet in ``text``, which has to have the columns ``needed`` (lower case), in any order and beside others.

    Separated by commas, semicolons or tabs; with the latter two a decimal comma is read as a point. Raises ``BadInput``
    for missing and repeated columns, and for lines that are no CSV or longer than the header.
    """
    separator = max(SEPARATORS, key=lambda s: sum(name in needed for name in _read_header(text, s)))
    columns = _read_header(text, separator)
    missing = [name for name in needed if name not in columns]
    if missing:
        right = f"columns {','.join(needed)}" + (
            f" (found {_shorten(', '.join(columns), 160)})" if any(columns) else ""
        )
        raise BadInput(where, f"no column {', '.join(missing)}", right)
    twice = [name for name in needed if columns.count(name) > 1]
    if twice:
        raise BadInput(where, f"two columns {twice[0]}", "every column once")
    return CsvSheet(where, columns, tuple(_iterate_rows(where, text, separator, columns)))


def parse_number(where: str, column: str, text: str, whole: bool = False) -> float:
    """A finite number above 0; ``where`` names file and line. Raises ``BadInput`` for everything else."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0 and not (whole and value != round(value))):
        right = "a whole number above 0" if whole else "a number above 0"
        raise BadInput(f"{where}, {column}", _shorten(repr(text), MAX_SHOWN_LENGTH), right)
    return value


def _read_header(text: str, separator: str) -> tuple[str, ...]:
    """The names in the first line; none where it is no CSV (reading its rows says so)."""
    try:
        cells = next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
    except csv.Error:
        return ()
    return tuple(cell.strip().casefold() for cell in cells)


def _iterate_rows(where: str, text: str, separator: str, columns: tuple[str, ...]) -> Iterator[SheetRow]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        next(reader, None)
        for cells in reader:
            stripped = [_clean_cell(cell, separator) for cell in cells]
            if not any(stripped):
                continue
            if any(stripped[len(columns) :]):
                raise BadInput(
                    f"{where}: line {reader.line_num}", f"{len(cells)} cells", f"{len(columns)}, as in the first line"
                )
            padded = stripped + [""] * (len(columns) - len(stripped))
            yield SheetRow(reader.line_num, dict(zip(columns, padded, strict=False)))
    except csv.Error as error:
        raise BadInput(f"{where}: line {reader.line_num}", f"a line that is not CSV ({error})", "a CSV file") from error


def _clean_cell(text: str, separator: str) -> str:
    stripped = text.strip()
    return stripped.replace(",", ".") if separator != "," and stripped.count(",") == 1 else stripped


def _shorten(text: str, longest: int) -> str:
    """One line, cut where it gets long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 3] + "..."
