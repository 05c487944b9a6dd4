"""Tables: one definition that is rendered as HTML, for the terminal, as CSV and as LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from markupsafe import Markup

from experiments.report.quantities import UNKNOWN, percent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable

Content = str | Markup
T = TypeVar("T")
Column = tuple[str, Callable[[T], "Cell"]]
"""Heading of a column, and how its cell is made of a row's item."""
GAP = 2
"""Spaces between two columns in a terminal."""
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


def _csv_heading(head: str, column: Sequence[Cell]) -> str:
    units = {cell.unit for cell in column if cell.value is not None}
    unit = units.pop() if len(units) == 1 else ""
    return _guard_formula(" ".join(f"{head} ({unit})".split() if unit else head.split()))


def _csv_field(cell: Cell) -> str:
    if cell.value is not None:
        return _format_digits(cell.value)
    if cell.plain_text == UNKNOWN:
        return ""
    return cell.plain_text if cell.numeric else _guard_formula(cell.plain_text)


def _format_digits(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.{CSV_DIGITS}g}"


def _guard_formula(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _latex_row(parts: Sequence[str]) -> str:
    # LaTeX would read a bracket at the start of a line as the optional length of \\.
    return " & ".join(f"{{{part}}}" if part.startswith("[") else part for part in map(escape_latex, parts)) + r" \\"


def escape_latex(text: str) -> str:
    """Escape LaTeX's special characters and join lines."""
    return "".join(
        LATEX_ESCAPES.get(sign, sign) for sign in " ".join(text.split(" ")).replace("\r", " ").replace("\n", " ")
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell.

    Attributes:
        content: What is shown; text is escaped, ``Markup`` is not.
        numeric: Whether it is right-aligned.
        value: The unrounded number in ``unit``, for CSV.
        half_interval: Half the width of the number's confidence interval.
        words: Plain text; None derives it from ``content``.
    """

    content: Content
    numeric: bool = False
    best: bool = False
    value: float | None = None
    unit: str = ""
    half_interval: float | None = None
    words: str | None = None

    @property
    def plain_text(self) -> str:
        """Return the content without markup."""
        if self.words is not None:
            return self.words
        return self.content.striptags() if isinstance(self.content, Markup) else self.content


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        key: File name for exports, without suffix.
        title: Title in a terminal; a page has headings of its own.
    """

    key: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""

    @property
    def numeric_columns(self) -> tuple[bool, ...]:
        """Return whether each column is right-aligned."""
        return tuple(cell.numeric for cell in self.rows[0]) if self.rows else (False,) * len(self.heads)

    @property
    def csv(self) -> str:
        """Return the table as CSV.

        Numbers are unrounded with their unit in the heading, half widths of intervals get a column of their own, and
        unknown values are empty. Text that a spreadsheet would run as a formula is prefixed with an apostrophe.
        """
        columns = [[row[i] for row in self.rows] for i in range(len(self.heads))]
        halved = [any(cell.half_interval is not None for cell in column) for column in columns]
        titles = [_csv_heading(head, column) for head, column in zip(self.heads, columns, strict=True)]
        lines = [[(title, f"{title}, ±") for title in titles]]
        lines += [[(_csv_field(cell), _format_digits(cell.half_interval)) for cell in row] for row in self.rows]
        out = io.StringIO()
        for line in lines:
            fields = [field for pair, half in zip(line, halved, strict=True) for field in pair[: 1 + half]]
            csv.writer(out, lineterminator="\n").writerow(fields)
        return out.getvalue()

    @property
    def latex(self) -> str:
        """Return the table as a LaTeX tabular with booktabs rules and the numbers as shown."""
        columns = "".join("r" if right else "l" for right in self.numeric_columns)
        head = (r"% \usepackage{booktabs}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(self.heads))
        rows = map(_latex_row, self._plain_rows())
        return "\n".join((*head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""))

    @property
    def markdown(self) -> str:
        """Return the table as Markdown, with the numbers as shown."""
        rule = ("---:" if numeric else "---" for numeric in self.numeric_columns)
        lines = (self.heads, tuple(rule), *self._plain_rows())
        return "\n".join(f"|{'|'.join(part.replace('|', '&#124;') for part in line)}|" for line in lines)

    @property
    def html(self) -> Markup:
        """Return the table as HTML, nothing without rows; headings of numeric columns are right-aligned as well."""
        if not self.rows:
            return Markup()
        heads = zip(self.heads, self.numeric_columns, strict=True)
        head = Markup().join(Markup("<th{}>{}</th>").format(_css_class(n, best=False), h) for h, n in heads)
        body = Markup().join(
            Markup("<tr>{}</tr>").format(
                Markup().join(
                    Markup("<td{}>{}</td>").format(_css_class(c.numeric, best=c.best), c.content) for c in row
                )
            )
            for row in self.rows
        )
        return Markup(
            '<div class="scroll"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
            '<div class="copies">{}{}</div>'
        ).format(head, body, _copy_button("CSV", self.csv), _copy_button("LaTeX", self.latex))

    def print(self, console: Console) -> None:
        """Print the table; where it is wider than the console, every row becomes lines of ``heading: value``."""
        text = self._as_text(console.width)
        console.print(text, crop=False, highlight=False, soft_wrap=not console.is_terminal)

    def _plain_rows(self) -> list[list[str]]:
        return [[cell.plain_text for cell in row] for row in self.rows]

    def _as_text(self, width: int) -> RenderableType:
        rows = self._plain_rows()
        widths = [max(len(cell) for cell in column) for column in zip(self.heads, *rows, strict=True)]
        # A column's gap is followed by the box's own divider, and the box has two edges, all of them spaces.
        if sum(widths) + (GAP + 1) * (len(widths) - 1) + 2 > width:
            return self._stack_rows(rows)
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text  # plain strings would be read as rich's markup

        table = RichTable(title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP, 0, 0))
        table.title = Text(self.title) if self.title else None
        for head, right in zip(self.heads, self.numeric_columns, strict=True):
            table.add_column(Text(head), justify="right" if right else "left", no_wrap=True)
        for row in rows:
            table.add_row(*map(Text, row))
        return table

    def _stack_rows(self, rows: Sequence[Sequence[str]]) -> RenderableType:
        """Return the rows one after the other, under its first column; unknown values are left out."""
        from rich.text import Text

        lines = [self.title] if self.title else []
        for first, *others in rows:
            lines.append(f"{self.heads[0]}: {first}" if self.heads[0] else first)
            pairs = zip(self.heads[1:], others, strict=True)
            lines += [f"  {head}: {value}" for head, value in pairs if value not in {"", UNKNOWN}]
        return Text("\n".join(lines), overflow="ignore")  # a path that is longer than a line stays whole


def build_table(key: str, columns: Sequence[Column[T]], items: Iterable[T], title: str = "") -> Table:
    """Build a table with one row per item."""
    rows = tuple(tuple(make(item) for _, make in columns) for item in items)
    return Table(key, tuple(heading for heading, _ in columns), rows, title)


def _copy_button(form: str, copied: str) -> Markup:
    return Markup('<button type="button" data-copy="{}" title="copy this table as {}">copy {}</button>').format(
        copied, form, form
    )


def _css_class(numeric: bool, *, best: bool) -> Markup:
    names = " ".join(name for name, holds in (("n", numeric), ("best", best)) if holds)
    return Markup(' class="{}"').format(names) if names else Markup()


def text_cell(value: object) -> Cell:
    """Create a cell of text; None and "" become a dash."""
    return Cell(str(value) if value not in (None, "") else UNKNOWN)


def number_cell(shown: str, value: float | None = None, unit: str = "") -> Cell:
    """Create a numeric cell with formatted text and the unrounded number behind it."""
    return Cell(shown, numeric=True, value=value, unit=unit)


def value_cell(value: float | None, shown: str | Callable[[float], str] = "", unit: str = "") -> Cell:
    """Create a numeric cell of a value as a format or a function shows it; a dash if unknown."""
    if value is None:
        return number_cell(UNKNOWN)
    return number_cell(f"{value:{shown}}" if isinstance(shown, str) else shown(value), value, unit)


def percent_cell(share: float | None, digits: int = 1) -> Cell:
    """Create a cell of a share in percent; a dash if unknown."""
    return number_cell(percent(share, digits), None if share is None else 100 * share, "%")


def swatch_cell(colour: str, name: str) -> Cell:
    """Create a cell with a name and a swatch of its colour in the charts."""
    return Cell(Markup('<i class="swatch" style="background:{}"></i>{}').format(colour, name))


def make_prose_table(*heads: str) -> RichTable:
    """Return an empty table of rich for prose, which wraps within the last column; ``Table`` is for everything else."""
    from rich.table import Table as RichTable

    table = RichTable(box=None, padding=(0, GAP, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, no_wrap=head != heads[-1], overflow="fold")
    return table


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Print tables one below the other."""
    for table in tables:
        table.print(console)


def print_facts(
    console: Console, facts: Iterable[tuple[str, str]], *, label_width: int = 0, label_style: str = ""
) -> None:
    """Print pairs of label and text in two columns: whole into a file, on a terminal wrapped right of the labels."""
    from rich.table import Table as RichTable
    from rich.text import Text

    pairs = list(facts)
    label_width = max([label_width, *(len(label) for label, _ in pairs)])
    if not console.is_terminal:
        print_lines(console, (f"{label:<{label_width + GAP}}{text}".rstrip() for label, text in pairs))
        return
    table = RichTable.grid(padding=(0, GAP, 0, 0))
    table.add_column(no_wrap=True, min_width=label_width)
    table.add_column(overflow="fold")
    for label, text in pairs:
        table.add_row(Text(label, label_style), Text(text))
    console.print(table)


def print_lines(console: Console, lines: Iterable[str], style: str = "") -> None:
    """Print lines literally: whole into a file, and on a terminal wrapped between words, never within one."""
    from rich.text import Text

    for line in lines:
        text = Text(line, style, overflow="ignore")
        console.print(text, highlight=False, soft_wrap=not console.is_terminal, crop=False)
