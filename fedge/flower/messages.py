"""Construction of Flower messages, also outside a Flower process; the only user of Flower's private task identity."""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.constant import SType
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from fedge.types import NamedArrays

STAND_IN_RUN = 1
SERVER_NODE = 1


def ensure_identity() -> None:
    """Give this process a task identity if no Flower runtime has set one; a ``Message`` cannot be built without it."""
    try:
        _ = (TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id)
    except RuntimeError:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = STAND_IN_RUN, SERVER_NODE, STAND_IN_RUN


def build_message(content: RecordDict, message_type: str, node_id: int) -> Message:
    """Build a message to ``node_id``."""
    ensure_identity()
    return Message(content=content, message_type=message_type, dst_node_id=node_id)


def name_part(name: str, place: int) -> str:
    """Return the name of a record of the client at this place, where a message is of several emulated clients."""
    return f"{name} {place}"


class HeldArray(Array):
    """An ``Array`` that holds its values and is serialised anew whenever its bytes are read.

    Strategies read the values of replies, not their bytes. Flower names an object after its class, so another process
    could not read it.
    """

    def __init__(self, values: NDArray[np.generic]) -> None:
        # Set one by one, each would mark the bytes, of which there are none, as changed.
        self.__dict__.update(dtype=str(values.dtype), shape=values.shape, stype=SType.NUMPY)
        self._values = values

    @property
    def data(self) -> bytes:  # type: ignore[override]  # a field of Flower's
        """Return the serialised values."""
        return Array.from_numpy_ndarray(self._values).data

    def numpy(self) -> NDArray[np.generic]:
        """Return a copy of the values, as deserialising gives one."""
        return self._values.copy()


def hold_arrays(arrays: NamedArrays) -> ArrayRecord:
    """Return a record for this process alone; the arrays must not be changed in place afterwards."""
    record = ArrayRecord()
    for name, values in arrays.items():  # from a mapping it would copy their bytes
        record[name] = HeldArray(values)
    return record


def to_array_record(arrays: NamedArrays) -> ArrayRecord:
    """Convert named arrays to Flower's record, in their order."""
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


def from_array_record(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    """Convert Flower's record to named arrays."""
    return {name: _read_array(array) for name, array in record.items()}


def _read_array(array: Array) -> NDArray[np.generic]:
    """Return the values of an array as Flower would, which parses the header of each of thousands of small ones."""
    if isinstance(array, HeldArray) or array.stype != SType.NUMPY or not array.data.startswith(NPY_START):
        return array.numpy()
    data = array.data
    size = len(NPY_START) + 2 + int.from_bytes(data[len(NPY_START) : len(NPY_START) + 2], "little")
    shape, is_fortran, dtype = _parse_header(data[:size])
    return np.frombuffer(data, dtype, offset=size).reshape(shape, order="F" if is_fortran else "C").copy("K")


NPY_START = b"\x93NUMPY\x01\x00"
"""How serialised values begin, with the version of the format that numpy writes."""


@lru_cache(maxsize=1024)
def _parse_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    with BytesIO(head) as file:
        np.lib.format.read_magic(file)
        return np.lib.format.read_array_header_1_0(file)
