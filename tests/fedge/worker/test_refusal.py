"""The kinds of errors: every refusal has one of them, and the manual names them all."""

from pathlib import Path

import pytest

from fedge.worker import refusal, sources, tasks
from fedge.worker.refusal import KINDS, LONGEST_TEXT, BadField, Refusal, error_reply

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "worker.md"


def test_every_refusal_has_a_kind_of_the_wire():
    refusals = (Refusal, refusal.BadField, refusal.NoTaskLoaded, sources.BadSource, tasks.WrongHash)
    assert {one.kind for one in refusals} < set(KINDS)
    assert str(Refusal("here", "this", "that")) == "here: got this; that"


def test_the_manual_names_every_kind():
    page = PAGE.read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"`{kind}`" not in page] == []


def test_an_answer_never_has_a_kind_of_its_own_nor_a_text_without_end():
    header, arrays = error_reply("a task's own idea", "x" * 9999)
    assert header == {"ok": False, "error": {"kind": "failed", "text": "x" * LONGEST_TEXT}}
    assert arrays == {}


def test_what_is_meant_comes_through():
    asked = {"o": {}, "t": "text", "n": 3, "s": 2}
    assert refusal.get_object(asked, "o") == {}
    assert refusal.get_text(asked, "t") == "text"
    assert refusal.get_count(asked, "n", 1) == 3
    assert refusal.get_count(asked, "missing", 1) == 1
    assert refusal.get_number(asked, "n") == 3.0
    assert refusal.get_seconds(asked, "s") == 2.0
    assert refusal.get_seconds(asked, "missing") is None


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        (refusal.get_object, [None, [], "x"]),
        (refusal.get_text, [None, "", 3]),
        (lambda asked, name: refusal.get_count(asked, name, 1), [0, -1, 1.0, True, "1", 2**63]),
        (refusal.get_number, [None, True, "1", float("nan"), float("inf"), -float("inf")]),
        (refusal.get_seconds, [0, -1.0, True, "1", float("nan"), float("inf")]),
    ],
)
def test_what_is_not_meant_is_refused_by_name(read, wrong):
    for value in wrong:
        with pytest.raises(BadField, match=r"^the_field: got .*; "):
            read({"the_field": value}, "the_field")
