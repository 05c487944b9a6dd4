"""A write-ahead file gives back everything before its first broken frame, wherever it was cut or damaged."""

import struct
import zlib

import pyarrow as pa
import pytest
from contracts.crashing import disk_full
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.telemetry import wal

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])


def frames(count: int) -> list[bytes]:
    """A schema's frame, then ``count`` frames of 0, 1, 2 ... rows and more."""
    batches = [
        pa.RecordBatch.from_pydict({"n": [*range(i + 1)], "name": [f"row {i}"] * (i + 1)}, SCHEMA) for i in range(count)
    ]
    return [*map(wal.make_frame, (SCHEMA, *batches))]


def ends(pieces: list[bytes]) -> list[int]:
    return [sum(map(len, pieces[: i + 1])) for i in range(len(pieces))]


@settings(max_examples=150, deadline=None)
@given(count=st.integers(0, 5), share=st.floats(0, 1))
def test_a_file_cut_anywhere_gives_every_whole_frame(tmp_path_factory, count, share):
    pieces = frames(count)
    data = b"".join(pieces)
    cut = round(share * len(data))
    path = tmp_path_factory.mktemp("wal") / "1.wal"
    path.write_bytes(data[:cut])

    found = wal.read(path)

    whole = sum(end <= cut for end in ends(pieces))
    assert len(found.batches) == max(0, whole - 1)
    assert not found.damaged
    assert found.torn == (cut not in {0, *ends(pieces)})
    wal.truncate_wal(path, found.good_bytes)
    assert not wal.read(path).torn


@settings(max_examples=150, deadline=None)
@given(count=st.integers(1, 5), place=st.floats(0, 0.9999), flip=st.integers(1, 255))
def test_a_damaged_byte_ends_the_file_before_its_frame(tmp_path_factory, count, place, flip):
    pieces = frames(count)
    data = bytearray(b"".join(pieces))
    at = int(place * len(data))
    data[at] ^= flip
    path = tmp_path_factory.mktemp("wal") / "1.wal"
    path.write_bytes(data)

    found = wal.read(path)

    hit = sum(end <= at for end in ends(pieces))
    assert len(found.batches) == max(0, hit - 1)
    assert found.damaged == (hit < len(pieces) - 1), "only damage in the middle is told from a torn end"


def test_an_append_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "1.wal"
    head, row = frames(1)
    end = wal.append(path, head, 0, sync=False)
    real = wal.os.write

    def full(fd: int, data: memoryview) -> int:
        if len(data) < len(row):
            disk_full()
        return real(fd, data[: len(data) // 2])

    monkeypatch.setattr(wal.os, "write", full)
    with pytest.raises(OSError, match="No space"):
        wal.append(path, row, end, sync=False)
    monkeypatch.undo()

    assert path.read_bytes() == head
    wal.append(path, row, end, sync=True)
    assert [batch.to_pylist() for batch in wal.read(path).batches] == [[{"n": 0, "name": "row 0"}]]


def test_a_frame_whose_offsets_lead_out_of_its_text_is_damage(tmp_path):
    schema, batch = frames(2)[0], pa.RecordBatch.from_pydict({"n": [1], "name": ["a row"]}, SCHEMA)
    payload = bytearray(memoryview(batch.serialize()))
    at = payload.rindex(b"a row") - 8  # the offsets 0 and 5 stand in the eight bytes before their padding
    while payload[at : at + 8] != struct.pack("<ii", 0, 5):
        at -= 4
    payload[at + 4 : at + 8] = struct.pack("<i", 2**30)
    crc = zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))
    path = tmp_path / "1.wal"
    path.write_bytes(schema + frames(1)[1] + wal.HEAD.pack(wal.MARK, len(payload), crc) + payload)

    found = wal.read(path)

    assert (found.rows, found.damaged) == (1, True)


def test_a_schema_with_a_name_that_is_no_text_is_damage(tmp_path):
    schema, *rest = frames(1)
    named = schema[wal.HEAD.size :].replace(b"name", b"nam\xff")
    damaged = wal.HEAD.pack(wal.MARK, len(named), wal._crc(len(named), named)) + named
    (tmp_path / "1.wal").write_bytes(damaged + rest[0])

    found = wal.read(tmp_path / "1.wal")

    assert (found.schema, found.batches, found.damaged) == (None, (), True)
