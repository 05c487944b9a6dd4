"""CSV files as named text columns, with any common separator, and parsing of cells as numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.errors import BadInput, one_line

SEPARATORS = (",", ";", "\t")
"""Possible separators; the one with which the header contains most needed names is used, the first one in a tie."""
MAX_SHOWN_LENGTH = 40


@dataclass(frozen=True, slots=True)
class SheetRow:
    """Cells of one line by column name, and the line number for error messages."""

    line: int
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CsvSheet:
    """A CSV file, with column names stripped and in lower case, and without empty rows."""

    where: str
    columns: tuple[str, ...]
    rows: tuple[SheetRow, ...]


def read_bytes(path: Path, right: str) -> bytes:
    """Read a file.

    ``right`` describes the expected content in error messages.

    Raises:
        BadInput: The file is missing or unreadable.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise BadInput(str(path), "no such file", f"the path of {right}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(str(path), f"a file that cannot be read ({reason})", f"{right} that can be read") from error


def decode_text(where: str, raw: bytes, right: str = "a CSV file in UTF-8") -> str:
    """Decode UTF-8 with or without a byte order mark.

    Raises:
        BadInput: The content is not UTF-8.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(where, f"bytes that are not text (at {error.start})", right) from error


def parse_sheet(where: str, text: str, needed: Sequence[str]) -> CsvSheet:
    """Parse a CSV file separated by commas, semicolons or tabs.

    With semicolons or tabs, a decimal comma is read as a point. Columns beside the ``needed`` ones (lower case) are
    allowed, in any order.

    Raises:
        BadInput: A column is missing or repeated, or a line is not CSV or longer than the header.
    """
    separator = max(SEPARATORS, key=lambda s: sum(name in needed for name in _read_header(text, s)))
    columns = _read_header(text, separator)
    missing = [name for name in needed if name not in columns]
    if missing:
        right = f"columns {','.join(needed)}" + (
            f" (found {one_line(', '.join(columns), 160)})" if any(columns) else ""
        )
        raise BadInput(where, f"no column {', '.join(missing)}" if any(columns) else "no header", right)
    twice = [name for name in needed if columns.count(name) > 1]
    if twice:
        raise BadInput(where, f"two columns {twice[0]}", "every column once")
    return CsvSheet(where, columns, tuple(_iterate_rows(where, text, separator, columns)))


def float_or_nan(text: str) -> float:
    """Parse a number; NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_number(where: str, column: str, text: str, whole: bool = False) -> float:
    """Parse a finite number above 0.

    Raises:
        BadInput: The cell is not such a number.
    """
    value = float_or_nan(text)
    if not (math.isfinite(value) and value > 0 and not (whole and value != round(value))):
        right = "a whole number above 0" if whole else "a number above 0"
        raise BadInput(f"{where}, {column}", one_line(repr(text), MAX_SHOWN_LENGTH), right)
    return value


def _read_header(text: str, separator: str) -> tuple[str, ...]:
    """Return the column names in the first line; empty if it is not CSV, which reading the rows reports."""
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
