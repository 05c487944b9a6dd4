"""A request's fields: what is meant comes through, everything else is refused by the field's name."""

import pytest

from fedge.worker import refusal
from fedge.worker.refusal import BadField


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
