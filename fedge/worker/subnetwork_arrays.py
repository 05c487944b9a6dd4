"""Leading blocks of a full network's arrays: take them out for a narrow network and write them back; pure functions.

Symbols: s is a full array's shape, t the narrow one's, with t_k <= s_k in every dimension k. A narrow array is the
block [0, t_0) x [0, t_1) x ... of the full one: nested subsets of leading channels, so that all clients of a width
agree without a message about which channels are theirs, and a wider network contains a narrower one.

References:
    Diao et al., "HeteroFL", arXiv:2010.01264.
"""

from typing import TYPE_CHECKING, Any, Dict, Mapping, Tuple

import numpy as np

from fedge.worker.refusal import Refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    OwnArrays = Dict[str, NDArray[Any]]
else:
    Arrays = OwnArrays = Mapping

Shape = Tuple[int, ...]
Shapes = Mapping[str, Shape]
Slices = Tuple[slice, ...]


class ShapeMismatch(Refusal):
    """Shapes that are not leading blocks of the full ones."""


def array_shapes(arrays: Arrays) -> Dict[str, Shape]:
    """Return every array's shape, by name."""
    return {name: tuple(np.shape(value)) for name, value in arrays.items()}


def leading_slices(full: Shapes, narrow: Shapes) -> Dict[str, Slices]:
    """Return the slices of each narrow array in the full one.

    Raises:
        ShapeMismatch: A narrow array is not a leading block; the text names the first one.
    """
    for name in sorted(set(full) | set(narrow)):
        outer, inner = full.get(name), narrow.get(name)
        if outer is None or inner is None:
            raise ShapeMismatch(f"array {name!r}", "a shape in one of the two alone", "the same arrays in both")
        if len(outer) != len(inner) or any(i > o or (i == 0 and o > 0) for i, o in zip(inner, outer)):
            raise ShapeMismatch(f"array {name!r}", f"shape {inner}", f"a leading block of {outer}")
    return {name: tuple(slice(0, length) for length in shape) for name, shape in narrow.items()}


def take_leading(arrays: Arrays, narrow: Shapes) -> OwnArrays:
    """Return the leading block of every array, in the order of ``arrays``.

    Raises:
        ShapeMismatch: A shape is not a leading block.
    """
    slices = leading_slices(array_shapes(arrays), narrow)
    return {name: np.asarray(value)[slices[name]] for name, value in arrays.items()}


def take_leading_part(arrays: Arrays, like: Arrays) -> Arrays:
    """Return the leading part of ``arrays`` with the shapes of ``like``; ``arrays`` itself if shapes are equal."""
    shapes = array_shapes(like)
    return arrays if shapes == array_shapes(arrays) else take_leading(arrays, shapes)


def write_leading(full: Arrays, narrow: Arrays) -> OwnArrays:
    """Return copies of the full arrays with the narrow ones written into their leading blocks; types are kept.

    Raises:
        ShapeMismatch: A narrow array is not a leading block.
    """
    slices = leading_slices(array_shapes(full), array_shapes(narrow))
    whole = {name: np.array(value) for name, value in full.items()}
    for name, array in whole.items():
        array[slices[name]] = narrow[name]
    return whole
