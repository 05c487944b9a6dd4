"""The wire of the power daemon: what is taken as a request, what is sent as a reply."""

import json

import pytest

from fedge.powerd import line_protocol
from fedge.powerd.mode_records import PowerdRefusal


def refused(line: bytes) -> PowerdRefusal:
    with pytest.raises(PowerdRefusal) as caught:
        line_protocol.decode_request(line)
    assert caught.value.kind == "bad-request"
    return caught.value


def test_lines_come_out_in_order_however_they_came_in() -> None:
    lines = line_protocol.LineBuffer()
    for byte in b"one\ntwo\nthr":
        lines.feed(bytes([byte]))
    assert [lines.pop_line(), lines.pop_line(), lines.pop_line()] == [b"one", b"two", None]
    assert not lines.has_line()
    assert lines.drain() == 3


def test_a_line_of_4096_bytes_is_taken_and_one_more_byte_is_refused() -> None:
    lines = line_protocol.LineBuffer()
    lines.feed(b"a" * 4096 + b"\n")
    assert lines.pop_line() == b"a" * 4096
    lines.feed(b"a" * 4097 + b"\n")
    assert lines.has_line()
    with pytest.raises(PowerdRefusal, match="4096"):
        lines.pop_line()


def test_a_line_without_an_end_is_refused_before_it_ends() -> None:
    lines = line_protocol.LineBuffer()
    lines.feed(b"a" * 4096)
    assert lines.pop_line() is None
    lines.feed(b"a")
    with pytest.raises(PowerdRefusal):
        lines.pop_line()


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
    assert line_protocol.decode_request(b' {"v":1,"verb":"get"} ') == {"v": 1, "verb": "get"}


def test_a_reply_is_one_ascii_line() -> None:
    line = line_protocol.encode_reply({"name": "Zo\u00eb\n"})
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line.decode("ascii")) == {"ok": True, "name": "Zo\u00eb\n"}


def test_a_refusal_has_its_kind_and_text_and_what_was_read_back_where_there_is_something() -> None:
    assert json.loads(line_protocol.encode_refusal(PowerdRefusal("held", "by ann")).decode()) == {
        "ok": False,
        "error": {"kind": "held", "text": "by ann"},
    }
    assert (
        json.loads(line_protocol.encode_refusal(PowerdRefusal("did-not-stick", "no", got=0)).decode())["error"]["got"]
        == 0
    )
