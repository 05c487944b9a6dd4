"""HTML building blocks of reports: headline cards and tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape, unescape

from experiments.report.quantities import UNKNOWN
from experiments.report.table_formats import to_csv, to_latex

Card = tuple[str, str, str]
"""Name, value and remark of a card as HTML; names chosen by users must be escaped before."""


def render_cards(every: Iterable[Card], wide: Collection[str] = ()) -> str:
    """Render cards as HTML.

    Args:
        every: The cards, as escaped HTML.
        wide: Names of cards that span the full width on a phone.
    """
    items = "".join(
        f'<div{_card_class(name, wide)}><dt>{name}</dt><dd class="figure">{value}</dd><dd '
        f'class="aside">{aside}</dd></div>'
        for name, value, aside in every
    )
    return f'<dl class="cards">{items}</dl>'


def _card_class(name: str, wide: Collection[str]) -> str:
    return ' class="wide"' if name in wide else ""


LABELS = ("measured", "calibrated", "estimated")


@dataclass(frozen=True, slots=True)
class TableCell:
    """A table cell.

    Attributes:
        html: Content as escaped HTML.
        numeric: Whether it is right-aligned.
        best: Whether it is highlighted as the column's best.
    """

    html: str
    numeric: bool = False
    best: bool = False
    value: float | None = None
    """The unrounded number in ``unit``, for CSV."""
    unit: str = ""
    half_interval: float | None = None
    """Half the width of the number's confidence interval."""
    words: str | None = None
    """Plain text; None derives it from the HTML."""

    @property
    def plain_text(self) -> str:
        if self.words is not None:
            return self.words
        return unescape(re.sub(r"<[^>]*>", "", self.html)).strip()


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table.

    Attributes:
        key: File name for exports, without suffix.
        heads: Column headings.
        rows: Rows of cells, as long as ``heads``.
    """

    key: str
    heads: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]

    @property
    def numeric_columns(self) -> tuple[bool, ...]:
        """Whether each column is right-aligned."""
        return tuple(cell.numeric for cell in self.rows[0]) if self.rows else (False,) * len(self.heads)

    @property
    def csv(self) -> str:
        return to_csv(self.heads, self.rows)

    @property
    def latex(self) -> str:
        return to_latex(self.heads, self.numeric_columns, [[cell.plain_text for cell in row] for row in self.rows])

    @property
    def html(self) -> str:
        """Render the table; headings of numeric columns are right-aligned as well."""
        head = "".join(
            f"<th{_cell_classes(n, False)}>{escape(h)}</th>"
            for h, n in zip(self.heads, self.numeric_columns, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(f"<td{_cell_classes(c.numeric, c.best)}>{c.html}</td>" for c in row) + "</tr>"
            for row in self.rows
        )
        return (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
            f'<div class="copies">{_copy_button("CSV", self.csv)}{_copy_button("LaTeX", self.latex)}</div>'
        )


def _copy_button(form: str, copied: str) -> str:
    return f'<button type="button" data-copy="{escape(copied)}" title="copy this table as {form}">copy {form}</button>'


def _cell_classes(numeric: bool, best: bool) -> str:
    names = [name for name, holds in (("n", numeric), ("best", best)) if holds]
    return f' class="{" ".join(names)}"' if names else ""


def render_table(heads: Sequence[str], rows: Sequence[Sequence[TableCell]], key: str = "table") -> str:
    """Render a table as HTML."""
    return ReportTable(key, tuple(heads), tuple(tuple(row) for row in rows)).html


def text_cell(value: object) -> TableCell:
    """Create a cell of escaped text."""
    return TableCell(escape(str(value)) if value not in (None, "") else UNKNOWN)


def number_cell(value: str) -> TableCell:
    """Create a numeric cell from formatted text."""
    return TableCell(escape(value), numeric=True)


def value_cell(shown: str, value: float | None, unit: str = "") -> TableCell:
    """Create a numeric cell with formatted text and the unrounded number behind it."""
    return TableCell(escape(shown), numeric=True, value=value, unit=unit)


def swatch_cell(colour: str, name: str) -> TableCell:
    """Create a cell with a name and a swatch of its colour in the charts."""
    return TableCell(f'<i class="swatch" style="background:{colour}"></i>{escape(name)}')


def label_badge(label: str) -> str:
    """Render a provenance label (measured, calibrated, estimated) as a badge."""
    kind = label if label in LABELS else "unknown"
    return f'<span class="badge {kind}">{escape(label)}</span>'
