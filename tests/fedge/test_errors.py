"""Texts of others in errors are one line, bounded, and do not rule the terminal that shows them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.errors import BadInput, FedgeError, RunFailed, UnknownName, describe_error, find_similar, one_line


@given(st.text(max_size=50), st.text(max_size=50), st.text(max_size=50))
def test_invalid_input_is_one_printable_line_whatever_was_given(where, got, right):
    text = str(BadInput(where, got, right))

    assert text.isprintable()
    text.encode("utf-8")


def test_a_long_text_is_cut():
    assert len(one_line("x" * 10**6)) == 300
    assert len(str(BadInput("x" * 10**6, "y" * 10**6, "z" * 10**6))) < 3_000
    assert len(str(UnknownName("x", "y", ("z" * 10**6, "a")))) < 200
    assert len(describe_error(ValueError("x" * 10**6))) < 400


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("orin-nan", ["orin-nano"]),
        ("Orin-Nano", ["orin-nano"]),
        ("fedavg", ["FedAvg"]),
        ("policy.min_progres", ["policy.min_progress"]),
        ("", []),
        ("pineapple", []),
    ],
)
def test_a_misspelt_name_is_answered_with_the_one_that_may_be_meant(name, similar):
    known = ("orin-nano", "orin-nx", "nano", "FedAvg", "policy.deadline_s", "policy.min_progress")

    assert find_similar(name, known) == similar
    assert ("did you mean" in str(UnknownName("x", name, known))) == bool(similar)


def test_an_error_keeps_its_lines_but_rules_no_terminal():
    assert str(RunFailed("the log:\n\tred \x1b[31m \x07")) == "the log:\n\tred \\x1b[31m \\x07"
    assert str(FedgeError()) == ""
