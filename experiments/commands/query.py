"""``fedge query``: one SELECT over a run's tables, printed as a table, CSV or JSON, or written to a file."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedge.errors import BadInput, UnknownName
from fedge.telemetry import open_run
from fedge.telemetry.run_folder import write_text

MAX_ROWS = 200
"""Rows that a table shows; the other forms have all. Chosen by us."""


def query(run: Path, sql: str, form: str, out: Path | None) -> None:
    """Ask and print, or write ``out``; raises ``BadInput`` for what is no run, no SELECT, or no place to write to."""
    if form not in FORMS:
        raise UnknownName("--format", form, tuple(FORMS))
    _check(out)
    with open_run(run) as opened:
        found = opened.query(sql)
    names = list(found.column_names)
    rows = list(zip(*(column.to_pylist(maps_as_pydicts="strict") for column in found.columns), strict=True))
    text = FORMS[form](names, rows)
    if out is None:
        sys.stdout.write(text)
        return
    try:
        write_text(out, text)
    except OSError as error:
        raise BadInput("--out", str(out), f"a file that can be written ({error.strerror})") from error
    sys.stderr.write(f"{len(rows)} rows in {out.resolve()}\n")


def _check(out: Path | None) -> None:
    """A slip of the tab key replaces nothing: the file must be new."""
    if out is None:
        return
    if not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "a file in a folder that exists")
    if out.exists():
        raise BadInput("--out", f"{out}, which is there already", "a new file")


def as_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """For the eye: as wide as the terminal, or as it needs to be where the output is a file or a pipe."""
    console = Console(file=io.StringIO(), width=None if sys.stdout.isatty() else _width(names, rows), highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold" if sys.stdout.isatty() else "")
    for place, name in enumerate(names):
        figures = all(row[place] is None or isinstance(row[place], int | float) for row in rows)
        table.add_column(escape(name), justify="right" if figures else "left")
    for row in rows[:MAX_ROWS]:
        table.add_row(*(escape(_cell(value)) for value in row))
    console.print(table)
    if len(rows) > MAX_ROWS:
        console.print(f"{MAX_ROWS} of {len(rows)} rows; --format csv or json has all")
    written: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "".join(line.rstrip() + "\n" for line in written.splitlines())


def as_csv(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """With a head, floats in full, NULL as an empty field, rails as JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([json.dumps(_plain(value)) if _is_nested(value) else value for value in row] for row in rows)
    return text.getvalue()


def as_json(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A list with one object per row, each on a line; what JSON has no number for is null."""
    lines = [json.dumps({name: _plain(value) for name, value in zip(names, row, strict=True)}) for row in rows]
    return "[" + ",\n".join(lines) + "]\n"


FORMS: Mapping[str, Callable[[Sequence[str], Sequence[Sequence[Any]]], str]] = {
    "table": as_table,
    "csv": as_csv,
    "json": as_json,
}


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if _is_nested(value):
        return json.dumps(_plain(value))
    return "" if value is None else str(value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int | str | None) else str(value)


def _width(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
    shown = rows[:MAX_ROWS]
    widest = [max([len(name), *(len(_cell(row[place])) for row in shown)]) for place, name in enumerate(names)]
    return max(80, sum(widest) + 2 * len(widest))
