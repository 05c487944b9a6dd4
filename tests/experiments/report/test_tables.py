"""Tables: whole in every terminal, and as CSV and LaTeX, in which every text survives and nothing is a command."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from experiments.report.tables import (
    FORMULA_STARTS,
    Cell,
    Table,
    escape_latex,
    number_cell,
    print_facts,
    swatch_cell,
    text_cell,
)

HOSTILE = ("[/nope]", "[bold]x[/bold]", "<script>", "a & b")


def printed(table: Table, width: int) -> str:
    out = io.StringIO()
    table.print(Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [30, 200])
@pytest.mark.parametrize("name", HOSTILE)
def test_markup_in_a_name_is_shown_and_not_read(name, width):
    table = Table("demo", ("board", "fits"), ((text_cell(name), text_cell("does not fit")),), "[i]demo")

    text = printed(table, width)

    assert name in text
    assert "[i]demo" in text
    assert "does not fit" in text


def test_rows_that_are_wider_than_the_terminal_are_stacked():
    rows = tuple((text_cell(f"board-{i}"), number_cell(f"{i} W", i), text_cell("fits")) for i in range(2))
    table = Table("demo", ("board", "mean power at MAXN", "verdict"), rows)

    assert "  mean power at MAXN: 1 W\n  verdict: fits" in printed(table, 30)
    assert "board-1  " in printed(table, 80)
    assert all(len(line.rstrip()) <= 30 for line in printed(table, 30).splitlines())


@pytest.mark.parametrize("terminal", [True, False])
def test_facts_are_whole_in_a_file_and_wrapped_right_of_their_labels_on_a_terminal(terminal):
    out, words = io.StringIO(), " ".join(f"word{i}" for i in range(30))
    print_facts(
        Console(file=out, width=60, force_terminal=terminal, color_system=None), [("report", words), ("n", "1")]
    )
    lines = [line.rstrip() for line in out.getvalue().splitlines()]

    assert lines[-1] == "n       1"
    if terminal:
        assert all(len(line) <= 60 and line.startswith((" " * 8, "report  ", "n  ")) for line in lines)
        assert len(lines) > 2
    else:
        assert out.getvalue().splitlines() == [f"report  {words}", "n       1"]


WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
NASTY = 'a_b & 5 %, "q" {x} $y #1 ~ ^ \\ <b>'


def table_of(*rows: tuple[Cell, ...], heads: tuple[str, ...] = ("board", "energy")) -> Table:
    return Table("demo", heads, rows)


def read(told: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(told)))


@given(WORDS, WORDS)
def test_every_text_comes_back_from_csv(name, other):
    found = read(table_of((swatch_cell("red", name), text_cell(other))).csv)[1]
    for was, now in zip((name, other), found, strict=True):
        shown = was.strip() if was != "–" else ""
        assert now.removeprefix("'") == shown.removeprefix("'")


def test_numbers_are_not_rounded_and_their_unit_is_in_the_head():
    told = table_of(
        (text_cell("nano-1"), number_cell("1.23 kJ", 1234.5678, "J")),
        (text_cell("nano-2"), number_cell("–", None, "J")),
    )
    assert read(told.csv) == [["board", "energy (J)"], ["nano-1", "1234.5678"], ["nano-2", ""]]


def test_half_an_interval_is_a_column_of_its_own():
    cell = Cell("1 ± 2 J", True, value=1.0, unit="J", half_interval=2.0)
    told = table_of((text_cell("a"), cell), (text_cell("b"), number_cell("3 J", 3.0, "J")))
    assert read(told.csv) == [["board", "energy (J)", "energy (J), ±"], ["a", "1", "2"], ["b", "3", ""]]


@given(st.sampled_from(FORMULA_STARTS[:4]), WORDS)
def test_a_spreadsheet_runs_no_text_as_a_formula(sign, rest):
    assert not read(table_of((text_cell(sign + rest), text_cell("x"))).csv)[1][0].startswith(FORMULA_STARTS)


@given(WORDS)
def test_nothing_in_a_text_is_a_command_of_latex(name):
    told = escape_latex(name)
    # What is left after our own commands and escaped signs has none of LaTeX's special ones.
    bare = re.sub(r"\\text[a-z]+\{\}|\\dots\{\}|\$(\\pm|\\times|-)\$|\\[&%$#_{}]", "", told)
    assert not set(bare) & set('\\&%$#_{}^<>|"')


def test_every_special_sign_is_written_out():
    assert escape_latex(NASTY) == (
        r"a\_b \& 5 \%, ''q'' \{x\} \$y \#1 \textasciitilde{} \textasciicircum{} \textbackslash{} "
        r"\textless{}b\textgreater{}"
    )
    assert escape_latex("−1 ± 2\u00a0%") == r"$-$1 $\pm$ 2~\%"


def test_latex_has_a_line_per_row_and_the_rules_of_booktabs():
    told = table_of(
        (swatch_cell("red", "[nano_1]"), number_cell("1.2 J", 1.2, "J")), (text_cell("b"), number_cell("2 J", 2.0, "J"))
    )
    assert told.latex.splitlines() == [
        r"% \usepackage{booktabs}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"board & energy \\",
        r"\midrule",
        r"{[nano\_1]} & 1.2 J \\",
        r"b & 2 J \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_the_buttons_hold_both_forms_escaped():
    html = table_of((text_cell("</button><img src=x>\"'&"), text_cell("c"))).html
    assert html.count("data-copy=") == 2
    assert "<img" not in html
