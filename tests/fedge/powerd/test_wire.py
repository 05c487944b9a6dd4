"""The wire of the power daemon: what is taken as a request, what is sent as a reply."""

import json

import pytest

from fedge.powerd import wire
from fedge.powerd.mode import Refused


def refused(line: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        wire.request(line)
    assert caught.value.kind == "bad-request"
    return caught.value


def test_lines_come_out_in_order_however_they_came_in() -> None:
    lines = wire.Lines()
    for byte in b"one\ntwo\nthr":
        lines.feed(bytes([byte]))
    assert [lines.next(), lines.next(), lines.next()] == [b"one", b"two", None]
    assert not lines.ready()
    assert lines.drain() == 3


def test_a_line_of_4096_bytes_is_taken_and_one_more_byte_is_refused() -> None:
    lines = wire.Lines()
    lines.feed(b"a" * 4096 + b"\n")
    assert lines.next() == b"a" * 4096
    lines.feed(b"a" * 4097 + b"\n")
    assert lines.ready()
    with pytest.raises(Refused, match="4096"):
        lines.next()


def test_a_line_without_an_end_is_refused_before_it_ends() -> None:
    lines = wire.Lines()
    lines.feed(b"a" * 4096)
    assert lines.next() is None
    lines.feed(b"a")
    with pytest.raises(Refused):
        lines.next()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"", "no JSON"),
        (b"get", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 4096, "no JSON"),
        (b'{"v":1,"verb":"get","verb":"set"}', "twice"),
        (b'{"v":1,"verb":"hold","seconds":NaN}', "NaN"),
        (b"[1]", "one JSON object"),
        (b'{"verb":"get"}', "v=null"),
        (b'{"v":2,"verb":"get"}', "one version"),
        (b'{"v":true,"verb":"get"}', "v=true"),
        (b'{"v":1}', "verb=null"),
        (b'{"v":1,"verb":7}', "verb=7"),
    ],
)
def test_what_is_no_request_is_refused_with_what_was_got(line: bytes, word: str) -> None:
    assert word in refused(line).text


def test_a_request_is_its_fields() -> None:
    assert wire.request(b' {"v":1,"verb":"get"} ') == {"v": 1, "verb": "get"}


def test_a_reply_is_one_ascii_line() -> None:
    line = wire.reply({"name": "Zo\u00eb\n"})
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line.decode("ascii")) == {"ok": True, "name": "Zo\u00eb\n"}


def test_a_refusal_has_its_kind_and_text_and_what_was_read_back_where_there_is_something() -> None:
    assert json.loads(wire.refusal(Refused("held", "by ann")).decode()) == {
        "ok": False,
        "error": {"kind": "held", "text": "by ann"},
    }
    assert json.loads(wire.refusal(Refused("did-not-stick", "no", got=0)).decode())["error"]["got"] == 0
