"""Arrays that are held within a process are what Flower's serialised ones are."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedge.flower.messages import HeldArray, from_array_record, hold_arrays, to_array_record

VALUES = [np.arange(6.0, dtype=np.float32).reshape(2, 3), np.array(3), np.zeros((0, 4)), np.arange(6).reshape(3, 2).T]


@pytest.mark.parametrize("values", VALUES)
def test_a_held_array_is_flowers_array_of_the_same_values(values):
    held, theirs = HeldArray(values), Array(values)

    assert (held.dtype, held.shape, held.stype, held.data) == (theirs.dtype, theirs.shape, theirs.stype, theirs.data)
    assert np.array_equal(held.numpy(), theirs.numpy())


def test_a_strategy_that_changes_what_it_reads_changes_no_reply():
    values = np.ones(3)
    record = hold_arrays({"w": values})
    assert isinstance(record["w"], HeldArray)
    read = record["w"].numpy()
    np.multiply(read, 2, out=read)

    assert np.array_equal(values, np.ones(3))
    assert np.array_equal(record["w"].numpy(), np.ones(3))


@pytest.mark.parametrize("values", [*VALUES, np.arange(3, dtype=">f4")])
def test_what_is_read_is_what_flower_reads(values):
    record = to_array_record({"w": values})
    ours, theirs = from_array_record(record)["w"], record["w"].numpy()

    assert (ours.dtype, ours.shape, ours.flags.writeable) == (theirs.dtype, theirs.shape, True)
    assert np.array_equal(ours, theirs)


def test_bytes_that_are_too_few_or_python_objects_are_refused():
    data = Array(np.arange(6.0)).data
    objects = data.replace(b"'<f8'", b"'|O' ")
    for wrong in (data[:-8], objects):
        with pytest.raises(ValueError):
            from_array_record(ArrayRecord({"w": Array("float64", (6,), "numpy.ndarray", wrong)}))
