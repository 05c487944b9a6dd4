"""A study of transfer: one table of means for the terminal, for pages of documents and for an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.report.page import Section, write_page
from experiments.report.tables import Cell, Column, Table, build_table, print_lines, text_cell, value_cell
from fedge.atomic_files import write_text
from fedge.errors import BadInput
from fedge.studies.transfer_models import TransferRow
from fedge.studies.transfer_study import TransferSummary, summarize_transfer

if TYPE_CHECKING:
    from rich.console import Console


BLOCK_END = "<!-- end of figures -->"


def write_figures(page: Path, table: Table, command: str, date: str) -> None:
    """Replace the block ``<!-- figures: KEY -->`` ... ``<!-- end of figures -->`` of a page, KEY being the table's.

    Raises:
        BadInput: If the page cannot be read or has no such block.
    """
    before, after = find_block(page, table.key)
    parts = (f"<!-- figures: {table.key} -->\n`{command}`, {date}:", table.markdown, BLOCK_END)
    write_text(page, before + "\n\n".join(parts) + after)


def find_block(page: Path, key: str) -> tuple[str, str]:
    """Return the text before and after the block of a key.

    Raises:
        BadInput: If the page cannot be read or has no such block.
    """
    start = f"<!-- figures: {key} -->"
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("--docs", str(page), "a Markdown page that can be read") from error
    before, found, rest = text.partition(start)
    _, ended, after = rest.partition(BLOCK_END)
    if not (found and ended):
        raise BadInput("--docs", f"{page} without a block", f"a page with the lines {start} and {BLOCK_END}")
    return before, after


FIGURES: tuple[tuple[str, str], ...] = (
    ("error", "error"),
    ("worst table", "worst"),
    ("bias", "bias"),
    ("in 90 %", "covered"),
    ("below bound", "bounded"),
    ("regret", "regret"),
    ("worst", "worst_regret"),
    ("oracle's saving", "saved"),
    ("too slow", "missed"),
    ("refused", "refused"),
)
"""Heading and field of every column of figures, all in percent."""
FIGURES_KEY = "transfer"
"""Key of the table of means, which names its block in pages of documents."""
NOTE = (
    "Percent; every table has the same weight. Bias: mean signed error. In 90 %, below bound: share of the values in "
    "their 90 % interval, and below its upper end, for memory the bound of 99 %. Choice: the mode of least energy "
    "at most 5 % slower than MAXN; regret: its energy beyond the oracle's, of problems the lost training steps. Too "
    "slow: choices above 5 %, missed deadlines of rounds, problems without a solution."
)


def build_transfer_table(rows: Sequence[TransferRow]) -> Table:
    """Build the table of means: one line per model, what was left out, quantity and number of modes."""
    columns: list[Column[TransferSummary]] = [
        ("model", lambda one: text_cell(one.part)),
        ("left out", lambda one: text_cell(one.left_out)),
        ("kind", lambda one: text_cell(one.kind)),
        ("quantity", lambda one: text_cell(_name_quantity(one))),
        ("modes", lambda one: value_cell(one.modes)),
        ("tables", lambda one: value_cell(one.tables)),
    ]
    columns += [(heading, _figure_column(field, ".1f", "%")) for heading, field in FIGURES]
    return build_table(FIGURES_KEY, columns, summarize_transfer(rows), "Transfer")


def _figure_column(field: str, shown: str, unit: str = "") -> Callable[[TransferRow | TransferSummary], Cell]:
    return lambda one: value_cell(getattr(one, field), shown, unit)


def _name_quantity(one: TransferRow | TransferSummary) -> str:
    return f"{one.quantity}, {one.variant}" if one.variant else one.quantity


def build_row_table(rows: Sequence[TransferRow]) -> Table:
    """Build the table of all rows."""
    names = ("error", "bias", "covered", "bounded", "slowdown", "saving", "oracle_saving", "regret", "missed")
    columns: tuple[Column[TransferRow], ...] = (
        ("model", lambda row: text_cell(row.part)),
        ("left out", lambda row: text_cell(row.left_out)),
        ("judged", lambda row: text_cell(row.judged)),
        ("quantity", lambda row: text_cell(_name_quantity(row))),
        ("modes", lambda row: value_cell(row.modes)),
        *((name.replace("_", " "), _figure_column(name, ".3f" if name == "slowdown" else ".1f")) for name in names),
        ("refused", lambda row: text_cell(row.refused)),
    )
    return build_table("rows", columns, rows)


def print_transfer(console: Console, rows: Sequence[TransferRow]) -> None:
    """Print the table of means and what its columns mean."""
    build_transfer_table(rows).print(console)
    print_lines(console, (NOTE,))


def write_transfer_page(rows: Sequence[TransferRow], tables: Path, out: Path) -> None:
    """Write the page atomically."""
    sections = (
        Section("Means", NOTE, html=build_transfer_table(rows).html),
        Section("Tables", "Every model on every table.", html=build_row_table(rows).html),
    )
    judged = len({row.judged for row in rows})
    write_page(out, "Transfer to what was not seen", sections, str(tables), facts=(f"{judged} tables",))
