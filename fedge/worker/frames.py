"""The worker's wire: one frame is a short prefix, a JSON header, and the arrays' bytes one after the other.

``FDGW``, header length (u32), body length (u64), both little endian; then the header; then the body. The header's field
``arrays`` is a list of [name, dtype, shape]; their bytes follow in this order, C order, little endian. Nothing is
pickled. Every length is checked against its bound and against the others before memory is taken for it.
"""

import json
import socket
import struct
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

MAGIC = b"FDGW"
PREFIX = struct.Struct("<4sIQ")

# Bounds, chosen by us.
LONGEST_HEADER = 1 << 20
LONGEST_BODY = 1 << 30
MOST_ARRAYS = 4096
MOST_DIMENSIONS = 8
LONGEST_NAME = 256
LONGEST_NUMBER = 40
"""Digits of a number in a header; Python takes minutes over an integer of a million digits."""

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
ITEM_BYTES: Dict[str, int] = {name: np.dtype(name).itemsize for name in DTYPES}

EXTENT_RIGHT = f"lengths whose product, zeros left out, is at most {LONGEST_BODY} bytes"

PIECE_BYTES = 1 << 16
"""How much of an unwanted body is read at a time."""
MOST_PIECES = 512
"""Buffers in one system call; the kernel's own limit is 1024."""

Arrays = Dict[str, np.ndarray]


class FrameError(Exception):
    """What arrived is no frame; the connection is of no further use, since its next frame cannot be found."""


class TruncatedFrame(FrameError):
    """The other side closed the connection in the middle of a frame."""


class ArrayEntry(NamedTuple):
    """One array as the header declares it."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    size_bytes: int


class FrameHead(NamedTuple):
    """A frame whose header was read and checked; its body, ``body_bytes`` long, is still to be read."""

    header: Dict[str, Any]
    entries: Tuple[ArrayEntry, ...]
    body_bytes: int


def write(
    connection: socket.socket, header: Mapping[str, Any], arrays: Optional[Mapping[str, np.ndarray]] = None
) -> None:
    """Send one frame; raises ``FrameError`` for what the wire cannot carry, and ``OSError``."""
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
    """The same array in C order and little endian; itself when it is so already."""
    if array.dtype.name not in ITEM_BYTES:
        raise FrameError(f"array {name!r}: got {array.dtype.name}; one of {', '.join(DTYPES)}")
    if len(name) > LONGEST_NAME or array.ndim > MOST_DIMENSIONS:
        raise FrameError(f"array {name[:40]!r}: at most {LONGEST_NAME} letters and {MOST_DIMENSIONS} dimensions")
    if _extent_product(array.shape) * array.itemsize > LONGEST_BODY:
        raise FrameError(f"array {name!r}: got shape {array.shape}; {EXTENT_RIGHT}")
    # ascontiguousarray makes a one-dimensional array of a scalar
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)


def _view_bytes(array: Any) -> memoryview:
    """The memory of an array of bytes; Any, since older type information does not know that arrays are buffers."""
    return memoryview(array)


def _send_buffers(connection: socket.socket, buffers: List[memoryview]) -> None:
    """Send buffers as they lie, without joining them."""
    first = 0
    while first < len(buffers):
        sent = connection.sendmsg(buffers[first : first + MOST_PIECES])
        while first < len(buffers) and sent >= len(buffers[first]):
            sent -= len(buffers[first])
            first += 1
        if sent:
            buffers[first] = buffers[first][sent:]


def read(connection: socket.socket) -> Optional[Tuple[Dict[str, Any], Arrays]]:
    """The next frame's header and arrays; None when the other side has closed between frames. Raises ``FrameError``."""
    head = read_head(connection)
    return None if head is None else (head.header, FrameBody(connection, head).read())


def read_head(connection: socket.socket) -> Optional[FrameHead]:
    """The next frame up to its body, so that a caller can refuse before it takes memory. Raises ``FrameError``."""
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
    """A header's fields; raises ``FrameError`` for what is no JSON object."""
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
    """The arrays that a header declares; raises ``FrameError`` unless they fill the body exactly."""
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
        raise FrameError(f"an array is declared as {str(declared)[:80]}; [name, dtype, shape]")
    name, dtype, shape = declared
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise FrameError(f"an array's name: got {str(name)[:80]!r}; text of at most {LONGEST_NAME} letters")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise FrameError(f"array {name!r}: got dtype {str(dtype)[:80]!r}; one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise FrameError(f"array {name!r}: got shape {str(shape)[:80]}; a list of at most {MOST_DIMENSIONS} lengths")
    if not all(type(length) is int and 0 <= length <= LONGEST_BODY for length in shape):
        raise FrameError(f"array {name!r}: got shape {str(shape)[:80]}; whole numbers from 0 to {LONGEST_BODY}")
    if _extent_product(shape) * ITEM_BYTES[dtype] > LONGEST_BODY:
        raise FrameError(f"array {name!r}: got shape {str(shape)[:80]}; {EXTENT_RIGHT}")
    return ArrayEntry(name, dtype, tuple(shape), 0 if 0 in shape else _extent_product(shape) * ITEM_BYTES[dtype])


def _extent_product(shape: Sequence[int]) -> int:
    """The product of the lengths, zeros left out: numpy refuses even an empty array when this is too large for it."""
    extent = 1  # Python's own integers: a product that overflows would pass for a small array
    for length in shape:
        extent *= length or 1
    return extent


def do_not_wait() -> None:
    """Before each piece of a body: nothing, so that the socket's own time limit is the only one."""


class FrameBody:
    """The rest of a frame, still to be read or thrown away. Raises ``TruncatedFrame``, ``OSError``.

    ``before`` is called before each piece; it may wait for the piece, and end the reading by an exception of its own.
    """

    def __init__(self, connection: socket.socket, head: FrameHead) -> None:
        self._connection = connection
        self._head = head
        self.left = head.body_bytes

    def read(self, room: Optional[np.ndarray] = None, before: Callable[[], None] = do_not_wait) -> Arrays:
        """The arrays of the frame, as writable views of one buffer. Raises ``MemoryError`` too.

        ``room`` is memory to read into, bytes, if it is large enough: what was there before is overwritten.
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

    def drain(self, before: Callable[[], None] = do_not_wait) -> None:
        """Read what is left and nobody wants, without taking memory for it."""
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
    """Fill a buffer; how many bytes came before the other side closed."""
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
