"""A table of a page: its cells, and the table as HTML with the buttons that copy it; texts are escaped here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape, unescape

from experiments.report.copies import csv_of, latex_of
from experiments.report.quantities import UNKNOWN

LABELS = ("measured", "calibrated", "estimated")


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its HTML (already escaped) and whether it is a number, for which it is set flush right."""

    html: str
    numeric: bool = False
    best: bool = False
    value: float | None = None
    """The number itself, in ``unit``; CSV has it unrounded."""
    unit: str = ""
    half: float | None = None
    """Half of the number's confidence interval."""
    words: str | None = None
    """What is written, without HTML; None where it is the HTML without its tags."""

    @property
    def plain(self) -> str:
        if self.words is not None:
            return self.words
        return unescape(re.sub(r"<[^>]*>", "", self.html)).strip()


@dataclass(frozen=True, slots=True)
class Table:
    """Heads and rows; ``key`` is its name as a file."""

    key: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether a column is flush right."""
        return tuple(cell.numeric for cell in self.rows[0]) if self.rows else (False,) * len(self.heads)

    @property
    def csv(self) -> str:
        return csv_of(self.heads, self.rows)

    @property
    def latex(self) -> str:
        return latex_of(self.heads, self.numeric, [[cell.plain for cell in row] for row in self.rows])

    @property
    def html(self) -> str:
        """A column of numbers has its head flush right too."""
        head = "".join(
            f"<th{_classes(n, False)}>{escape(h)}</th>" for h, n in zip(self.heads, self.numeric, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(f"<td{_classes(c.numeric, c.best)}>{c.html}</td>" for c in row) + "</tr>"
            for row in self.rows
        )
        return (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
            f'<div class="copies">{_button("CSV", self.csv)}{_button("LaTeX", self.latex)}</div>'
        )


def _button(form: str, copied: str) -> str:
    return f'<button type="button" data-copy="{escape(copied)}" title="copy this table as {form}">copy {form}</button>'


def _classes(numeric: bool, best: bool) -> str:
    names = [name for name, holds in (("n", numeric), ("best", best)) if holds]
    return f' class="{" ".join(names)}"' if names else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], key: str = "table") -> str:
    """A table as HTML."""
    return Table(key, tuple(heads), tuple(tuple(row) for row in rows)).html


def text(value: object) -> Cell:
    """A cell of words."""
    return Cell(escape(str(value)) if value not in (None, "") else UNKNOWN)


def figure(value: str) -> Cell:
    """A cell of digits."""
    return Cell(escape(value), numeric=True)


def measured(shown: str, value: float | None, unit: str = "") -> Cell:
    """A cell of digits whose number is known besides."""
    return Cell(escape(shown), numeric=True, value=value, unit=unit)


def swatch(colour: str, name: str) -> Cell:
    """A name with its colour in the charts before it."""
    return Cell(f'<i class="swatch" style="background:{colour}"></i>{escape(name)}')


def badge(label: str) -> str:
    """How a number came about."""
    kind = label if label in LABELS else "unknown"
    return f'<span class="badge {kind}">{escape(label)}</span>'
