"""Frames against everything: arbitrary bytes never do more than raise a FrameError, arbitrary arrays come through."""

import json
import socket

import pytest

hypothesis = pytest.importorskip("hypothesis", reason="property tests need hypothesis")

import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fedge.worker import frames  # noqa: E402

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
DECLARED = st.lists(
    st.tuples(
        st.text(max_size=3) | VALUES,
        st.sampled_from([*frames.DTYPES, "object", "complex64"]) | VALUES,
        st.lists(st.integers(-1, 5) | st.sampled_from([2**30, 2**31, 2**63]), max_size=5) | VALUES,
    ).map(list)
    | VALUES,
    max_size=4,
)


def arrive(data):
    """What a reader makes of these bytes followed by the end: a frame, None, or the error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        theirs.settimeout(10.0)
        try:
            return frames.read(theirs)
        except frames.FrameError as error:
            return error


@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_are_a_frame_an_end_or_an_error(data, with_magic):
    got = arrive(frames.MAGIC + data if with_magic else data)
    assert got is None or isinstance(got, (tuple, frames.FrameError))


@given(VALUES | st.fixed_dictionaries({"arrays": DECLARED | VALUES}), st.binary(max_size=64))
def test_an_arbitrary_header_gives_arrays_that_fill_the_body_or_an_error(header, body):
    text = json.dumps(header).encode()
    got = arrive(frames.PREFIX.pack(frames.MAGIC, len(text), len(body)) + text + body)
    if isinstance(got, tuple):
        assert sum(array.nbytes for array in got[1].values()) == len(body)
    else:
        assert isinstance(got, frames.FrameError)


@given(st.sampled_from(frames.DTYPES), st.lists(st.sampled_from([0, 1, 2**10, 2**29, 2**30]), max_size=8))
def test_an_empty_array_of_any_lengths_is_an_array_or_an_error(dtype, lengths):
    shape = [0, *lengths]
    text = json.dumps({"arrays": [["a", dtype, shape]]}).encode()
    got = arrive(frames.PREFIX.pack(frames.MAGIC, len(text), 0) + text)
    if isinstance(got, tuple):
        assert got[1]["a"].shape == tuple(shape)
    else:
        assert isinstance(got, frames.FrameError)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.tuples(st.sampled_from(frames.DTYPES), st.lists(st.integers(0, 3), max_size=4), st.integers(0, 255)),
        max_size=5,
    )
)
def test_arbitrary_arrays_come_through_bit_by_bit(described):
    arrays = {name: np.full(shape, value).astype(dtype) for name, (dtype, shape, value) in described.items()}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.write(ours, {"v": 1}, arrays)
        header, got = frames.read(theirs)
    assert header == {"v": 1}
    assert [(name, a.dtype, a.shape, a.tobytes()) for name, a in got.items()] == [
        (name, a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()
    ]


@given(st.integers(0, 200))
def test_a_frame_cut_anywhere_is_an_error_or_the_end(cut):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.write(ours, {"v": 1}, {"a": np.arange(12.0)})
        whole = theirs.recv(4096)
    got = arrive(whole[: min(cut, len(whole) - 1)])
    assert got is None if cut == 0 else isinstance(got, frames.FrameError)
