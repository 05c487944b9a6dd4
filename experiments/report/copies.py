"""A table as text to copy: CSV with the numbers themselves, LaTeX (booktabs) as the page shows them; pure."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Protocol

from experiments.report.quantities import UNKNOWN

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What spreadsheets take for the beginning of a formula."""
DIGITS = 10
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "°": r"\textdegree{}",
    "–": "--",
    "…": r"\dots{}",
    "\u00a0": "~",
}


class Copied(Protocol):
    """What a cell tells of itself."""

    @property
    def plain(self) -> str: ...
    @property
    def numeric(self) -> bool: ...
    @property
    def value(self) -> float | None: ...
    @property
    def unit(self) -> str: ...
    @property
    def half(self) -> float | None: ...


def csv_of(heads: Sequence[str], rows: Sequence[Sequence[Copied]]) -> str:
    """Numbers unrounded, their unit in the head; the half of an interval as a column of its own; unknown is empty.

    A text that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    columns = [[row[i] for row in rows] for i in range(len(heads))]
    halved = [any(cell.half is not None for cell in column) for column in columns]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    titles = [_title(head, column) for head, column in zip(heads, columns, strict=True)]
    writer.writerow(
        part for title, half in zip(titles, halved, strict=True) for part in (title, f"{title}, ±")[: 1 + half]
    )
    for row in rows:
        parts = [(_cell(cell), _digits(cell.half))[: 1 + half] for cell, half in zip(row, halved, strict=True)]
        writer.writerow(part for both in parts for part in both)
    return out.getvalue()


def _title(head: str, column: Sequence[Copied]) -> str:
    units = {cell.unit for cell in column if cell.value is not None}
    unit = units.pop() if len(units) == 1 else ""
    return _safe(" ".join(f"{head} ({unit})".split() if unit else head.split()))


def _cell(cell: Copied) -> str:
    if cell.value is not None:
        return _digits(cell.value)
    if cell.plain == UNKNOWN:
        return ""
    return cell.plain if cell.numeric else _safe(cell.plain)


def _digits(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.{DIGITS}g}"


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text


def latex_of(heads: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    """A tabular with the rules of booktabs, numbers flush right."""
    columns = "".join("r" if right else "l" for right in numeric)
    return "\n".join(
        (
            r"% \usepackage{booktabs}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _line(heads),
            r"\midrule",
            *(_line(row) for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        )
    )


def _line(parts: Sequence[str]) -> str:
    # A bracket at a line's beginning would be taken for the length that \\ accepts.
    return " & ".join(f"{{{part}}}" if part.startswith("[") else part for part in map(escaped, parts)) + r" \\"


def escaped(text: str) -> str:
    """The text with what LaTeX takes for commands written out, in one line."""
    return "".join(LATEX.get(sign, sign) for sign in " ".join(text.split(" ")).replace("\r", " ").replace("\n", " "))
