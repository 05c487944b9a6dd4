"""A table in the terminal shows every text as it is and drops no column."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from experiments.report.tables import Table, number_cell, text_cell

HOSTILE = ("[/nope]", "[bold]x[/bold]", "<script>", "a & b")


def printed(table: Table, width: int) -> str:
    out = io.StringIO()
    table.print(Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [30, 200])
@pytest.mark.parametrize("name", HOSTILE)
def test_markup_in_a_name_is_shown_and_not_read(name: str, width: int) -> None:
    table = Table("demo", ("board", "fits"), ((text_cell(name), text_cell("does not fit")),), "[i]demo")

    text = printed(table, width)

    assert name in text
    assert "[i]demo" in text
    assert "does not fit" in text


def test_rows_that_are_wider_than_the_terminal_are_stacked() -> None:
    rows = tuple((text_cell(f"board-{i}"), number_cell(f"{i} W", i), text_cell("fits")) for i in range(2))
    table = Table("demo", ("board", "mean power at MAXN", "verdict"), rows)

    assert "  mean power at MAXN: 1 W\n  verdict: fits" in printed(table, 30)
    assert "board-1  " in printed(table, 80)
    assert all(len(line.rstrip()) <= 30 for line in printed(table, 30).splitlines())
