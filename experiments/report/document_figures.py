"""Tables of figures in Markdown pages, in a block that the command which measures them writes."""

from __future__ import annotations

from pathlib import Path

from experiments.report.tables import Table
from fedge.atomic_files import write_text
from fedge.errors import BadInput

BLOCK_END = "<!-- end of figures -->"


def write_figures(page: Path, table: Table, command: str, date: str) -> None:
    """Replace the block ``<!-- figures: KEY -->`` ... ``<!-- end of figures -->`` of a page, KEY being the table's.

    Args:
        page: The Markdown page.
        table: The table of figures.
        command: The command that computed them.
        date: The day on which it did.

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
