"""Leading blocks: taken, put back in their place, and refused where they are none."""

import numpy as np
import pytest

from fedge.worker.subnetwork_arrays import ShapeMismatch, array_shapes, leading_slices, take_leading, write_leading


def test_a_narrow_array_is_the_leading_block_of_the_full_one():
    full = {"w": np.arange(12.0).reshape(3, 4), "b": np.arange(3.0), "n": np.array(7)}

    taken = take_leading(full, {"w": (2, 3), "b": (2,), "n": ()})

    assert taken["w"].tolist() == [[0, 1, 2], [4, 5, 6]]
    assert taken["b"].tolist() == [0, 1]
    assert taken["n"] == 7
    assert list(taken) == ["w", "b", "n"]


def test_what_is_put_back_changes_its_block_alone_and_no_argument():
    full = {"w": np.zeros((3, 4), np.float32)}
    narrow = {"w": np.ones((2, 2), np.float64)}

    whole = write_leading(full, narrow)

    assert whole["w"].dtype == np.float32
    assert whole["w"].sum() == 4
    assert whole["w"][:2, :2].sum() == 4
    assert full["w"].sum() == 0


def test_what_was_taken_and_put_back_is_what_was_there():
    rng = np.random.RandomState(3)
    full = {"a": rng.randn(4, 3, 2, 2), "b": rng.randn(5)}
    back = write_leading(full, take_leading(full, {"a": (2, 1, 2, 2), "b": (5,)}))
    assert all(np.array_equal(back[name], full[name]) for name in full)


@pytest.mark.parametrize(
    ("narrow", "told"),
    [
        ({"w": (4, 4)}, "shape (4, 4)"),
        ({"w": (3,)}, "shape (3,)"),
        ({"w": (0, 4)}, "shape (0, 4)"),
        ({}, "one of the two alone"),
        ({"w": (3, 4), "v": (1,)}, "array 'v'"),
    ],
)
def test_what_is_no_leading_block_is_refused_by_name(narrow, told):
    with pytest.raises(ShapeMismatch) as caught:
        leading_slices({"w": (3, 4)}, narrow)
    assert told in str(caught.value)


def test_shapes_are_told_by_name():
    assert array_shapes({"w": np.zeros((2, 3)), "n": np.array(1)}) == {"w": (2, 3), "n": ()}
