"""The kinds of errors: every refusal has one of them, and the manual names them all."""

from pathlib import Path

from fedge.worker import refusal, sources, tasks
from fedge.worker.refusal import KINDS, LONGEST_TEXT, Refusal, error_reply

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
