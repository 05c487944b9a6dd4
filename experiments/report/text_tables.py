"""Terminal tables of numbers: cells are never truncated; rows wrap on a narrow terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

MAX_WIDTH = 500
"""Widest table, in characters: a default far beyond any real row."""


def make_text_table(title: str) -> Table:
    """Create an empty table with a title."""
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=0)


def fit_to_content(table: Table) -> Table:
    """Make the table as wide as its content; print it with ``crop=False``."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=MAX_WIDTH)
    title, table.title = table.title, None  # which may wrap
    table.width = Measurement.get(console, console.options, table).maximum
    table.title = title
    return table
