"""Table export: CSV with unrounded numbers, LaTeX (booktabs) with the numbers as shown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Protocol

from experiments.report.quantities import UNKNOWN

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Characters that make a spreadsheet read a cell as a formula."""
CSV_DIGITS = 10
LATEX_ESCAPES = {
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


class CopyableCell(Protocol):
    """Content of a cell for export."""

    @property
    def plain_text(self) -> str: ...
    @property
    def numeric(self) -> bool: ...
    @property
    def value(self) -> float | None: ...
    @property
    def unit(self) -> str: ...
    @property
    def half_interval(self) -> float | None: ...


def to_csv(heads: Sequence[str], rows: Sequence[Sequence[CopyableCell]]) -> str:
    """Encode a table as CSV.

    Numbers are unrounded with their unit in the heading, half widths of intervals get a column of their own, and
    unknown values are empty. Text that a spreadsheet would run as a formula is prefixed with an apostrophe.
    """
    columns = [[row[i] for row in rows] for i in range(len(heads))]
    halved = [any(cell.half_interval is not None for cell in column) for column in columns]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    titles = [_csv_heading(head, column) for head, column in zip(heads, columns, strict=True)]
    writer.writerow(
        part for title, half in zip(titles, halved, strict=True) for part in (title, f"{title}, ±")[: 1 + half]
    )
    for row in rows:
        parts = [
            (_csv_field(cell), _format_digits(cell.half_interval))[: 1 + half]
            for cell, half in zip(row, halved, strict=True)
        ]
        writer.writerow(part for both in parts for part in both)
    return out.getvalue()


def _csv_heading(head: str, column: Sequence[CopyableCell]) -> str:
    units = {cell.unit for cell in column if cell.value is not None}
    unit = units.pop() if len(units) == 1 else ""
    return _guard_formula(" ".join(f"{head} ({unit})".split() if unit else head.split()))


def _csv_field(cell: CopyableCell) -> str:
    if cell.value is not None:
        return _format_digits(cell.value)
    if cell.plain_text == UNKNOWN:
        return ""
    return cell.plain_text if cell.numeric else _guard_formula(cell.plain_text)


def _format_digits(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.{CSV_DIGITS}g}"


def _guard_formula(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def to_latex(heads: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    """Encode a table of plain text as a LaTeX tabular with booktabs rules; ``numeric`` columns are right-aligned."""
    columns = "".join("r" if right else "l" for right in numeric)
    return "\n".join(
        (
            r"% \usepackage{booktabs}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(heads),
            r"\midrule",
            *(_latex_row(row) for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        )
    )


def _latex_row(parts: Sequence[str]) -> str:
    # LaTeX would read a bracket at the start of a line as the optional length of \\.
    return " & ".join(f"{{{part}}}" if part.startswith("[") else part for part in map(escape_latex, parts)) + r" \\"


def escape_latex(text: str) -> str:
    """Escape LaTeX's special characters and join lines."""
    return "".join(
        LATEX_ESCAPES.get(sign, sign) for sign in " ".join(text.split(" ")).replace("\r", " ").replace("\n", " ")
    )
