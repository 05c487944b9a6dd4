"""Arrays that are held within a process are what Flower's serialised ones are."""

import numpy as np
import pytest
from flwr.app import Array

from fedge.flower.messages import HeldArray, hold_arrays


@pytest.mark.parametrize(
    "values",
    [np.arange(6.0, dtype=np.float32).reshape(2, 3), np.array(3), np.zeros((0, 4)), np.arange(6).reshape(3, 2).T],
)
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
