"""Frames: arrays come through as they were, and nothing that is wrong is believed or costs memory."""

import json
import socket
import threading

import numpy as np
import pytest

from fedge.worker import frames


@pytest.fixture
def pair():
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(10.0)
    yield ends
    for end in ends:
        end.close()


def through(pair, header, arrays=None):
    """Send from a thread, since a large frame does not fit into the kernel's buffer."""
    sender = threading.Thread(target=frames.write, args=(pair[0], header, arrays))
    sender.start()
    got = frames.read(pair[1])
    sender.join(10.0)
    return got


def raw(header, body=b"", header_bytes=None, body_bytes=None, magic=b"FDGW"):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    lengths = [len(part) if told is None else told for part, told in ((text, header_bytes), (body, body_bytes))]
    return frames.PREFIX.pack(magic, *lengths) + text + body


def refused(pair, data):
    pair[0].sendall(data)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(frames.FrameError) as caught:
        frames.read(pair[1])
    return str(caught.value)


ARRAYS = {
    "a scalar": np.array(2.5),
    "a model's weights": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "half": np.linspace(0, 1, 5).astype(np.float16),
    "a counter": np.array(7, dtype=np.int64),
    "yes and no": np.array([True, False, True]),
    "pixels": np.arange(255, dtype=np.uint8),
    "nothing": np.zeros((0, 3), np.float32),
    "in another order": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "every second": np.arange(10, dtype=np.int32)[::2],
    "big endian": np.arange(4, dtype=">f4"),
}


def test_arrays_come_through_as_they_were_and_in_their_order(pair):
    header, got = through(pair, {"v": 1, "verb": "train"}, ARRAYS)
    assert header == {"v": 1, "verb": "train"}
    assert list(got) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(got[name], array)
        assert got[name].dtype == array.dtype.newbyteorder("=")
        assert got[name].shape == array.shape
        assert got[name].flags.writeable
        assert got[name].flags.aligned
        assert got[name].flags.c_contiguous
    _, got = through(pair, {}, {str(i): np.array([i]) for i in range(2000)})
    assert [int(array[0]) for array in got.values()] == list(range(2000))


def test_given_room_is_used_when_it_is_large_enough(pair):
    room = np.zeros(100, np.uint8)
    for count in (10, 20):
        frames.write(pair[0], {}, {"a": np.full(count, 7.0)})
        got = frames.FrameBody(pair[1], frames.read_head(pair[1])).read(room)["a"]
        assert got.tolist() == [7.0] * count
        assert np.shares_memory(got, room) == (count == 10)


def test_frames_follow_each_other_and_the_end_is_none(pair):
    frames.write(pair[0], {"n": 1}, {"a": np.ones(2)})
    frames.write(pair[0], {"n": 2})
    pair[0].close()
    assert frames.read(pair[1])[0] == {"n": 1}
    assert frames.read(pair[1]) == ({"n": 2}, {})
    assert frames.read(pair[1]) is None


def test_a_body_can_be_thrown_away_and_the_next_frame_is_found(pair):
    sender = threading.Thread(target=frames.write, args=(pair[0], {"n": 0}, {"a": np.zeros(100000)}))
    sender.start()
    frames.FrameBody(pair[1], frames.read_head(pair[1])).drain()
    sender.join(10.0)
    assert through(pair, {"n": 1})[0] == {"n": 1}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame begins with"),
        (b"FD", "after 2 of the prefix's 16 bytes"),
        (raw({}, magic=b"FDGX"), "a frame begins with"),
        (raw({}, header_bytes=frames.LONGEST_HEADER + 1), "at most 1048576"),
        (raw({}, body_bytes=frames.LONGEST_BODY + 1), "at most 1073741824"),
        (raw({}, header_bytes=10), "after 2 of the header's 10 bytes"),
        (raw({"arrays": [["a", "uint8", [4]]]}, b"ab", body_bytes=4), "after 2 of the body's 4 bytes"),
        (raw(b"\xff\xfe"), "no JSON"),
        (raw(b"[" * 100000), "no JSON"),
        (raw(b"1" * 100000), "a number of 100000 digits"),
        (raw(b"[1]"), "a list; a JSON object"),
        (raw({}, b"left over"), "take 0 bytes; the body has 9"),
        (raw({"arrays": {"a": 1}}), "a list of [name, dtype, shape]"),
        (raw({"arrays": [["a"]]}), "[name, dtype, shape]"),
        (raw({"arrays": [[1, "uint8", [0]]]}), "name"),
        (raw({"arrays": [["a", "object", [1]]]}, b"12345678"), "one of float32"),
        (raw({"arrays": [["a", ["uint8"], [1]]]}, b"1"), "one of float32"),
        (raw({"arrays": [["a", "uint8", [-1]]]}), "whole numbers from 0"),
        (raw({"arrays": [["a", "uint8", [1.0]]]}, b"1"), "whole numbers from 0"),
        (raw({"arrays": [["a", "uint8", [True]]]}, b"1"), "whole numbers from 0"),
        (raw({"arrays": [["a", "uint8", [1] * 9]]}, b"1"), "at most 8"),
        (raw({"arrays": [["a", "float64", [1 << 29, 1 << 29, 1 << 3]]]}, body_bytes=0), "at most 1073741824 bytes"),
        (raw({"arrays": [["a", "float64", [1 << 20]]]}, body_bytes=0), "take 8388608 bytes; the body has 0"),
        (raw({"arrays": [["a", "uint8", [0] + [1 << 30] * 3]]}), "zeros left out"),
        (raw({"arrays": [["a", "float64", [1 << 30, 0]]]}), "zeros left out"),
        (raw({"arrays": [["a", "uint8", [1]], ["a", "uint8", [1]]]}, b"12"), "the same name"),
        (raw({"arrays": [["a", "uint8", [0]]] * 4097}), "at most 4096"),
    ],
)
def test_what_is_no_frame_is_refused_with_what_would_be_right(pair, data, says):
    assert says in refused(pair, data)


def test_lengths_that_do_not_fit_together_are_refused_before_memory_is_taken(pair, monkeypatch):
    monkeypatch.setattr(frames.np, "empty", lambda *_: pytest.fail("memory was taken"))
    assert "the body has 1073741824" in refused(
        pair, raw({"arrays": [["a", "uint8", [1]]]}, body_bytes=frames.LONGEST_BODY)
    )


@pytest.mark.parametrize(
    ("header", "arrays", "says"),
    [
        ({}, {"a": np.array(["text"])}, "one of float32"),
        ({}, {"a": np.array([None])}, "one of float32"),
        ({}, {"a" * 300: np.zeros(1)}, "256 letters"),
        ({}, {"a": np.zeros((1,) * 9)}, "8 dimensions"),
        ({}, {"a": np.zeros((0, 1 << 31), np.uint8)}, "zeros left out"),
        ({"text": "a" * (1 << 20)}, {}, "at most 1048576"),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_before_a_byte_is_sent(pair, header, arrays, says):
    with pytest.raises(frames.FrameError) as caught:
        frames.write(pair[0], header, arrays)
    assert says in str(caught.value)
    pair[0].close()
    assert frames.read(pair[1]) is None


def test_a_body_whose_reading_is_ended_can_be_thrown_away_from_there_on(pair):
    whole = raw({"arrays": [["a", "uint8", [1000]]]}, bytes(1000))
    pair[0].sendall(whole[:-400])
    body = frames.FrameBody(pair[1], frames.read_head(pair[1]))

    def before():
        if body.left < 1000:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        body.read(None, before)
    assert body.left == 400
    pair[0].sendall(whole[-400:])
    frames.write(pair[0], {"n": 2})
    body.drain()
    assert frames.read(pair[1])[0] == {"n": 2}


def test_a_byte_that_is_neither_true_nor_false_counts_as_true(pair):
    pair[0].sendall(raw({"arrays": [["a", "bool", [3]]]}, b"\x00\x01\x07"))
    _, got = frames.read(pair[1])
    assert got["a"].view(np.uint8).tolist() == [0, 1, 1]
