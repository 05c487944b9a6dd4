"""The worker's wire format: a frame is a short prefix, a JSON header, and the arrays' bytes one after the other.

The prefix is ``FDGW``, header length (u32) and body length (u64), both little endian; then follow the header and the
body. The header's field ``arrays`` is a list of [name, dtype, shape]; their bytes follow in this order, C order, little
endian. Nothing is pickled. Every length is checked against its bound and against the others before memory is allocated.
"""

import json
import socket
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from fedge.worker import MAGIC, PREFIX

# Bounds, so that a malformed frame cannot exhaust the memory: a body of 1 GiB holds 268 million float32 values.
LONGEST_HEADER = 1 << 20
LONGEST_BODY = 1 << 30
MOST_ARRAYS = 4096
MOST_DIMENSIONS = 8
LONGEST_NAME = 256
LONGEST_NUMBER = 40
"""Digits of a number in a header: Python takes minutes to parse an integer of a million digits."""

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
ITEM_BYTES: Dict[str, int] = {name: np.dtype(name).itemsize for name in DTYPES}

EXTENT_RIGHT = f"lengths whose product, zeros left out, is at most {LONGEST_BODY} bytes"

PIECE_BYTES = 1 << 16
"""Bytes read at a time from an unwanted body."""
MOST_PIECES = 512
"""Buffers per system call; the kernel's own limit (UIO_MAXIOV) is 1024."""

Arrays = Dict[str, np.ndarray]


class FrameError(Exception):
    """Received bytes are not a valid frame; the connection is unusable, since the next frame cannot be found."""


class TruncatedFrame(FrameError):
    """The peer closed the connection in the middle of a frame."""


class ArrayEntry(NamedTuple):
    """One array as declared in the header."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    size_bytes: int


class FrameHead(NamedTuple):
    """A frame whose header has been read and checked; its body of ``body_bytes`` bytes is still to be read."""

    header: Dict[str, Any]
    entries: Tuple[ArrayEntry, ...]
    body_bytes: int


def write(
    connection: socket.socket, header: Mapping[str, Any], arrays: Optional[Mapping[str, np.ndarray]] = None
) -> None:
    """Send one frame.

    The header has fields that JSON can represent, without ``arrays``; arrays are of the types in ``DTYPES``.

    Raises:
        FrameError: The header or the arrays exceed a bound or have an unsupported type; nothing was sent.
        OSError: The connection failed.
    """
    ready = {name: _to_wire_form(name, array) for name, array in (arrays or {}).items()}
    fields = dict(header)
    if ready:
        fields["arrays"] = [[name, array.dtype.name, list(array.shape)] for name, array in ready.items()]
    text = json.dumps(fields, separators=(",", ":")).encode("utf-8")
    body_bytes = sum(array.nbytes for array in ready.values())
    if len(text) > LONGEST_HEADER or body_bytes > LONGEST_BODY or len(ready) > MOST_ARRAYS:
        raise FrameError(
            f"a header of {len(text)} bytes and {len(ready)} arrays of {body_bytes} bytes; at most {LONGEST_HEADER} "
            f"bytes, {MOST_ARRAYS} arrays, {LONGEST_BODY} bytes"
        )
    bodies = [_view_bytes(array.reshape(-1).view(np.uint8)) for array in ready.values() if array.nbytes]
    _send_buffers(connection, [memoryview(PREFIX.pack(MAGIC, len(text), body_bytes) + text), *bodies])


def _to_wire_form(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array in C order and little endian; the same object if it already is."""
    if array.dtype.name not in ITEM_BYTES:
        raise FrameError(f"array {name!r}: got {array.dtype.name}; one of {', '.join(DTYPES)}")
    if len(name) > LONGEST_NAME or array.ndim > MOST_DIMENSIONS:
        raise FrameError(f"array {name[:40]!r}: at most {LONGEST_NAME} letters and {MOST_DIMENSIONS} dimensions")
    if _extent_product(array.shape) * array.itemsize > LONGEST_BODY:
        raise FrameError(f"array {name!r}: got shape {array.shape}; {EXTENT_RIGHT}")
    # ascontiguousarray makes a one-dimensional array of a scalar
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)


def _view_bytes(array: Any) -> memoryview:
    """Return the memory of a byte array; typed Any, since older type stubs do not know that arrays are buffers."""
    return memoryview(array)


def _send_buffers(connection: socket.socket, buffers: List[memoryview]) -> None:
    """Send buffers without joining them."""
    first = 0
    while first < len(buffers):
        sent = connection.sendmsg(buffers[first : first + MOST_PIECES])
        while first < len(buffers) and sent >= len(buffers[first]):
            sent -= len(buffers[first])
            first += 1
        if sent:
            buffers[first] = buffers[first][sent:]


def read(connection: socket.socket) -> Optional[Tuple[Dict[str, Any], Arrays]]:
    """Read the next frame.

    Returns:
        The header and the arrays by name; None if the peer closed the connection between frames.

    Raises:
        FrameError: The bytes are not a valid frame.
        OSError: The connection failed.
    """
    head = read_head(connection)
    return None if head is None else (head.header, FrameBody(connection, head).read())


def read_head(connection: socket.socket) -> Optional[FrameHead]:
    """Read the next frame up to its body, so that a caller can refuse it before memory is allocated.

    Returns:
        The checked header; None if the peer closed the connection between frames.

    Raises:
        FrameError: The bytes are not a valid frame.
    """
    prefix = bytearray(PREFIX.size)
    got = _fill_buffer(connection, memoryview(prefix))
    if got == 0:
        return None
    if bytes(prefix[: min(got, 4)]) != MAGIC[:got]:
        raise FrameError(f"got {bytes(prefix[:got])!r}; a frame begins with {MAGIC!r}")
    _require_complete(got, PREFIX.size, "prefix")
    _magic, header_bytes, body_bytes = PREFIX.unpack(prefix)
    if header_bytes > LONGEST_HEADER:
        raise FrameError(f"a header of {header_bytes} bytes; at most {LONGEST_HEADER}")
    if body_bytes > LONGEST_BODY:
        raise FrameError(f"a body of {body_bytes} bytes; at most {LONGEST_BODY}")
    text = bytearray(header_bytes)
    _require_complete(_fill_buffer(connection, memoryview(text)), header_bytes, "header")
    header = parse_header(bytes(text))
    return FrameHead(header, parse_entries(header.pop("arrays", []), body_bytes), body_bytes)


def parse_header(text: bytes) -> Dict[str, Any]:
    """Parse a header.

    Raises:
        FrameError: The text is not a JSON object.
    """
    try:
        fields = json.loads(text.decode("utf-8"), parse_int=_parse_int, parse_float=_parse_float)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the header is no JSON: {str(error)[:200]}") from error
    if not isinstance(fields, dict):
        raise FrameError(f"the header is a {type(fields).__name__}; a JSON object")
    return fields


def _parse_int(text: str) -> int:
    return int(_check_digits(text))


def _parse_float(text: str) -> float:
    return float(_check_digits(text))


def _check_digits(text: str) -> str:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} digits; at most {LONGEST_NUMBER}")
    return text


def parse_entries(declared: Any, body_bytes: int) -> Tuple[ArrayEntry, ...]:
    """Parse the declared arrays.

    Args:
        declared: The header's field ``arrays``: a list of [name, dtype, shape].
        body_bytes: Length of the body.

    Raises:
        FrameError: An entry is invalid, a name occurs twice, or the arrays do not fill the body exactly.
    """
    if not isinstance(declared, list) or len(declared) > MOST_ARRAYS:
        raise FrameError(f"arrays: a list of [name, dtype, shape], at most {MOST_ARRAYS}")
    entries = tuple(_parse_entry(one) for one in declared)
    total = sum(entry.size_bytes for entry in entries)
    if total != body_bytes:
        raise FrameError(f"the arrays declared take {total} bytes; the body has {body_bytes}")
    if len({entry.name for entry in entries}) != len(entries):
        raise FrameError("two arrays have the same name; a name of its own for each")
    return entries


def _parse_entry(declared: Any) -> ArrayEntry:
    if not isinstance(declared, list) or len(declared) != 3:
        raise FrameError(f"an array is declared as {repr(declared)[:80]}; [name, dtype, shape]")
    name, dtype, shape = declared
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise FrameError(f"an array's name: got {str(name)[:80]!r}; text of at most {LONGEST_NAME} letters")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise FrameError(f"array {name!r}: got dtype {str(dtype)[:80]!r}; one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise FrameError(f"array {name!r}: got shape {repr(shape)[:80]}; a list of at most {MOST_DIMENSIONS} lengths")
    if not all(type(length) is int and 0 <= length <= LONGEST_BODY for length in shape):
        raise FrameError(f"array {name!r}: got shape {repr(shape)[:80]}; whole numbers from 0 to {LONGEST_BODY}")
    if _extent_product(shape) * ITEM_BYTES[dtype] > LONGEST_BODY:
        raise FrameError(f"array {name!r}: got shape {repr(shape)[:80]}; {EXTENT_RIGHT}")
    return ArrayEntry(name, dtype, tuple(shape), 0 if 0 in shape else _extent_product(shape) * ITEM_BYTES[dtype])


def _extent_product(shape: Sequence[int]) -> int:
    """Return the product of the lengths without zeros: numpy refuses even an empty array if it is too large."""
    extent = 1  # Python's own integers: a product that overflows would pass for a small array
    for length in shape:
        extent *= length or 1
    return extent


class FrameBody:
    """The body of a frame, still to be read or discarded."""

    def __init__(self, connection: socket.socket, head: FrameHead) -> None:
        self._connection = connection
        self._head = head
        self.left = head.body_bytes

    def read(self, room: Optional[np.ndarray] = None, before: Callable[[], None] = lambda: None) -> Arrays:
        """Read the arrays of the frame.

        Args:
            room: A byte buffer to read into if it is large enough; its content is overwritten.
            before: Called before each piece; it may wait for the piece, and abort the reading by raising an exception.

        Returns:
            Writable arrays by name, views of one buffer.

        Raises:
            TruncatedFrame: The peer closed the connection.
            MemoryError: There is no memory for the body.
            OSError: The connection failed.
        """
        if room is None or len(room) < self._head.body_bytes:
            room = np.empty(self._head.body_bytes, np.uint8)  # not a bytearray, which would be filled with zeros first
        body = room[: self._head.body_bytes]
        target = _view_bytes(body)
        while self.left:
            self._receive_piece(target[len(target) - self.left :], before)
        arrays: Arrays = {}
        offset = 0
        for entry in self._head.entries:
            arrays[entry.name] = _view_array(body[offset : offset + entry.size_bytes], entry)
            offset += entry.size_bytes
        return arrays

    def drain(self, before: Callable[[], None] = lambda: None) -> None:
        """Read and discard the remaining bytes without allocating memory for them; ``before`` as for ``read``."""
        piece = memoryview(bytearray(PIECE_BYTES))
        while self.left:
            self._receive_piece(piece[: min(self.left, PIECE_BYTES)], before)

    def _receive_piece(self, target: memoryview, before: Callable[[], None]) -> None:
        before()
        got = self._connection.recv_into(target)
        if not got:
            _require_complete(self._head.body_bytes - self.left, self._head.body_bytes, "body")
        self.left -= got


def _view_array(piece: np.ndarray, entry: ArrayEntry) -> np.ndarray:
    if entry.dtype == "bool":
        piece = np.not_equal(piece, 0)  # any other byte than 0 and 1 would be neither true nor false
    dtype = np.dtype(entry.dtype).newbyteorder("<")
    if piece.ctypes.data % dtype.itemsize:
        piece = piece.copy()  # torch and ARM want numbers at multiples of their size
    return np.asarray(piece.view(dtype), dtype.newbyteorder("=")).reshape(entry.shape)


def _fill_buffer(connection: socket.socket, target: memoryview) -> int:
    """Fill a buffer and return the number of bytes received before the peer closed the connection."""
    got = 0
    while got < len(target):
        count = connection.recv_into(target[got:])
        if not count:
            break
        got += count
    return got


def _require_complete(got: int, wanted: int, what: str) -> None:
    if got < wanted:
        raise TruncatedFrame(f"the connection ended after {got} of the {what}'s {wanted} bytes")
