"""Write-ahead files: frames of Arrow rows with CRCs, so that appended rows survive the process.

    file   = frame of the schema, then frames of rows
    frame  = mark (8 bytes), length of the payload (uint32), CRC-32 of the length and the payload (uint32), payload
    payload = an Arrow IPC message: the schema's, or one record batch without dictionaries

Integers are little-endian; heads and payloads are multiples of 8 bytes, as Arrow's alignment requires. An incomplete
frame ends the file: if no complete frame follows, the writer was interrupted (torn); otherwise the file was damaged
later.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = b"\xfefedgeW2"
HEAD = struct.Struct("<8sII")
LONGEST = 2**31
"""Upper limit of a payload in bytes, far above what one append writes: a larger length is damage."""


@dataclass(frozen=True, slots=True)
class WalContents:
    """Content of a write-ahead file.

    Attributes:
        schema: Their schema; None in an empty file.
        good_bytes: End of the last complete frame.
        damaged: Whether complete frames follow an incomplete one, or a complete one holds no rows of the schema.
    """

    batches: tuple[Any, ...]
    schema: Any
    good_bytes: int
    total_bytes: int
    damaged: bool

    @property
    def torn(self) -> bool:
        """Whether the last frame is incomplete and no complete one follows."""
        return self.good_bytes < self.total_bytes and not self.damaged

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


def make_frame(message: Any) -> bytes:
    """Return the frame of an Arrow schema, the first of a file, or of a record batch."""
    payload = memoryview(message.serialize())
    return HEAD.pack(MARK, len(payload), _crc(len(payload), payload)) + payload


def append(path: Path, data: bytes, good_bytes: int, sync: bool) -> int:
    """Write ``data`` after the first ``good_bytes`` bytes.

    When it returns, the operating system has the bytes; with ``sync`` they are on disk. The file is created if
    ``good_bytes``, the end of its valid content, is 0.

    Returns:
        The new end of the valid content.

    Raises:
        OSError: Writing failed; it names the file. Bytes that could not be removed are removed by the next append.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | (os.O_CREAT if good_bytes == 0 else 0), 0o644)
    try:
        if os.fstat(fd).st_size > good_bytes:
            os.ftruncate(fd, good_bytes)
        try:
            _write_all(fd, data)
            if sync:
                os.fsync(fd)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, good_bytes)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(fd)
    return good_bytes + len(data)


def read(path: Path) -> WalContents:
    """Read everything up to the first incomplete frame.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    data = path.read_bytes()
    schema, end, batches = None, 0, []
    while (payload := _read_frame_at(data, end)) is not None:
        if (content := _decode_frame(payload, schema)) is None:
            break
        if schema is None:
            schema = content
        else:
            batches.append(content)
        end += HEAD.size + len(payload)
    return WalContents(
        tuple(batches), schema=schema, good_bytes=end, total_bytes=len(data), damaged=_has_frame_after(data, end)
    )


def truncate_wal(path: Path, good_bytes: int) -> None:
    """Cut off a torn frame."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(fd, good_bytes)
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_frame_at(data: bytes, at: int) -> memoryview | None:
    """Return the payload of the complete frame at ``at``; None if there is none."""
    if at + HEAD.size > len(data):
        return None
    mark, length, crc = HEAD.unpack_from(data, at)
    start = at + HEAD.size
    if mark != MARK or length > LONGEST or start + length > len(data):
        return None
    payload = memoryview(data)[start : start + length]
    return payload if _crc(length, payload) == crc else None


def _decode_frame(payload: memoryview, schema: Any) -> Any:
    """Return the schema, or the rows of the schema, in a payload; None if it holds something else.

    Arrow reads a batch without looking at its offsets, and crashes when such a batch is used: so they are checked here.
    """
    import pyarrow as pa

    try:
        if schema is None:
            found = pa.ipc.read_schema(pa.py_buffer(payload))
            # Arrow decodes names where they are used: one that is no UTF-8 is damage of this frame.
            return found if all(found.names) else None
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
        batch.validate(full=True)
    except (OSError, EOFError, ValueError, KeyError, MemoryError, pa.ArrowException):  # Arrow raises all of them
        return None
    return batch


def _has_frame_after(data: bytes, at: int) -> bool:
    """Return whether a complete frame begins at or after ``at``."""
    at -= 1
    while (at := data.find(MARK, at + 1)) >= 0:
        if _read_frame_at(data, at) is not None:
            return True
    return False


def _crc(length: int, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(length.to_bytes(4, "little")))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
