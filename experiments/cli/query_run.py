"""``fedge query``: one SELECT over a run's tables, printed as a table, CSV or JSON, or written to a file."""

from __future__ import annotations

import csv as csvlib
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.command_options import AsJson, Run
from experiments.cli.command_output import write_output
from fedge.atomic_files import replace_file
from fedge.errors import BadInput

if TYPE_CHECKING:
    from fedge.telemetry.store_reader import QueryAnswer, QueryRow

MAX_TABLE_ROWS = 200
"""Rows printed as a table; CSV and JSON have all. A default that keeps a terminal usable."""


def query(
    run: Run,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over rounds, clients, events and samples.")],
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write: a new one; by default the terminal.")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Query a run's tables in SQL; nothing else can be read, and nothing written.

    Example: fedge query runs/office "select board, sum(energy_j) from clients group by board"
    """
    from fedge.telemetry import open_run

    if csv and as_json:
        raise BadInput("--json", "--csv as well", "one of the two")
    _check_new_file(out)
    write = format_json if as_json else format_csv if csv else format_table
    with open_run(run) as reader:
        answer = reader.stream(sql)
        pieces = write(answer)
        if out is None:
            _print_pieces(pieces)
            return
        write_output("--out", out, lambda path: _write_pieces(path, pieces))
    sys.stderr.write(f"{answer.row_count} rows in {out.resolve()}\n")


def _print_pieces(pieces: Iterable[str]) -> None:
    try:
        for piece in pieces:
            sys.stdout.write(piece)
        sys.stdout.flush()
    except BrokenPipeError:  # such as `| head`, which has seen enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_pieces(out: Path, pieces: Iterable[str]) -> None:
    with replace_file(out) as part, part.open("w", encoding="utf-8", newline="") as file:
        file.writelines(pieces)


def _check_new_file(out: Path | None) -> None:
    """Check that the file is new, so that a mistyped path overwrites nothing."""
    if out is None:
        return
    if not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "a file in a folder that exists")
    if out.exists():
        raise BadInput("--out", f"{out}, which exists already", "a new file")


def format_table(answer: QueryAnswer) -> Iterator[str]:
    """Format rows as a table: as wide as the terminal, or as needed in a file or pipe."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    names, rows = answer.names, iter(answer)
    shown = list(islice(rows, MAX_TABLE_ROWS))
    more = sum(1 for _ in rows)
    console = Console(
        file=io.StringIO(), width=None if sys.stdout.isatty() else _table_width(names, shown), highlight=False
    )
    table = Table(box=None, pad_edge=False, header_style="bold" if sys.stdout.isatty() else "")
    for place, name in enumerate(names):
        figures = all(row[place] is None or isinstance(row[place], int | float | Decimal) for row in shown)
        table.add_column(escape(_strip_control(name)), justify="right" if figures else "left")
    for row in shown:
        table.add_row(*(escape(_strip_control(_format_cell(value))) for value in row))
    console.print(table)
    if more:
        console.print(f"{MAX_TABLE_ROWS} of {MAX_TABLE_ROWS + more} rows; --csv or --json has all")
    written: str = console.file.getvalue()  # type: ignore[attr-defined]
    yield "".join(line.rstrip() + "\n" for line in written.splitlines())


def format_csv(answer: QueryAnswer) -> Iterator[str]:
    """Format rows as CSV with a header, floats in full precision, NULL as an empty field, and nested values as JSON."""
    yield _csv_line(answer.names)
    for row in answer:
        yield _csv_line([json.dumps(_to_json_value(value)) if _is_nested(value) else value for value in row])


def _csv_line(values: Sequence[Any]) -> str:
    text = io.StringIO()
    csvlib.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def format_json(answer: QueryAnswer) -> Iterator[str]:
    """Format rows as a JSON list with one object per line; non-finite numbers are null.

    Raises:
        BadInput: If two columns have the same name, since an object could keep only one.
    """
    names = answer.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput("SQL", f"two columns called {twice}", "a name for each, such as `... as other`, for --json")
    between = "["
    for row in answer:
        yield between + json.dumps({name: _to_json_value(value) for name, value in zip(names, row, strict=True)})
        between = ",\n"
    yield "]\n" if between != "[" else "[]\n"


def _strip_control(text: str) -> str:
    """Remove control characters, which a terminal would interpret: events contain text from boards."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def _format_cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if _is_nested(value):
        return json.dumps(_to_json_value(value))
    return "" if value is None else str(value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


def _to_json_value(value: Any) -> Any:
    """Convert a value for JSON."""
    if isinstance(value, dict):
        return {str(key): _to_json_value(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_to_json_value(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value if isinstance(value, int | str | None) else str(value)


def _table_width(names: Sequence[str], shown: Sequence[QueryRow]) -> int:
    widest = [max([len(name), *(len(_format_cell(row[place])) for row in shown)]) for place, name in enumerate(names)]
    return max(80, sum(widest) + 2 * len(widest))
