"""The wire of the power daemon: what is taken as a request, what is sent as a reply."""

import json

import pytest

from fedge.powerd import line_protocol
from fedge.powerd.mode_records import PowerdRefusal


def test_a_line_of_4096_bytes_is_taken_and_one_more_byte_is_refused_with_or_without_an_end():
    lines = line_protocol.LineBuffer()
    lines.feed(b"a" * 4096 + b"\n")
    assert lines.pop_line() == b"a" * 4096
    lines.feed(b"a" * 4096)
    assert lines.pop_line() is None
    for more in (b"a", b"\n"):
        lines.feed(more)
        assert lines.has_line()
        with pytest.raises(PowerdRefusal, match="4096"):
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
def test_what_is_no_request_is_refused_with_what_was_got(line, word, refused):
    refusal = refused(line_protocol.decode_request, line)
    assert refusal.kind == "bad-request"
    assert word in refusal.text


def test_a_wrong_value_is_repeated_as_far_as_it_fits_on_a_line():
    assert line_protocol.format_value("x" * 78) == '"' + "x" * 78 + '"'
    assert line_protocol.format_value("x" * 79) == '"' + "x" * 76 + "..."


def test_a_reply_is_one_ascii_line_and_a_refusal_has_what_was_read_back_where_there_is_something():
    line = line_protocol.encode_reply({"name": "Zo\u00eb\n"})
    assert line.count(b"\n") == 1
    assert json.loads(line.decode("ascii")) == {"ok": True, "name": "Zo\u00eb\n"}
    assert str(PowerdRefusal("held", "by ann")) == "by ann"
    for got, more in ((None, {}), (0, {"got": 0})):
        reply = json.loads(line_protocol.encode_refusal(PowerdRefusal("held", "by ann", got)).decode())
        assert reply == {"ok": False, "error": {"kind": "held", "text": "by ann", **more}}
