"""A table is as wide as its figures want, however narrow the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from experiments.report.text_tables import fit_to_content, make_text_table


def test_no_figure_is_cut_and_no_column_is_left_out() -> None:
    table = make_text_table("A title that is longer than the narrow terminal and than the table itself")
    for name in ("mode", "per\nwindow", "watts"):
        table.add_column(name, no_wrap=True)
    table.add_row("12c/2201.6/1300.5/3199", "12.5", "39.0")
    console = Console(file=io.StringIO(), width=20)
    console.print(fit_to_content(table), crop=False)
    assert isinstance(console.file, io.StringIO)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert "12c/2201.6/1300.5/3199 12.5 39.0" in lines
    assert lines[0].startswith("A title that is longer")
