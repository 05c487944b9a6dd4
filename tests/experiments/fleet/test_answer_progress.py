"""The line that a person sees while hosts are asked."""

from __future__ import annotations

import io

from rich.console import Console

from experiments.fleet.playbook_progress import AnswerProgress, format_waiting


def test_the_line_counts_answers_and_names_whom_it_waits_for() -> None:
    asked = ("srv", *(f"nano-{i}" for i in range(1, 8)))

    assert format_waiting(asked, frozenset({"srv"}), 4.0) == (
        "1 of 8 hosts have answered (0:04); waiting for nano-1, nano-2, nano-3 and 4 more"
    )
    assert format_waiting(("srv",), frozenset({"srv"}), 65.0) == "1 of 1 hosts have answered (1:05)"


def test_nothing_is_shown_where_nobody_looks() -> None:
    out = io.StringIO()
    with AnswerProgress(Console(file=out), ("srv",), frozenset):
        pass

    assert out.getvalue() == ""
