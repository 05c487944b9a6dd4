"""Frames against arrays of any kind: all come through bit by bit (arbitrary bytes: `worker-frame` of tests/fuzz)."""

import json
import socket

import pytest

pytest.importorskip("hypothesis", reason="property tests need hypothesis")

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedge.worker import frames


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
