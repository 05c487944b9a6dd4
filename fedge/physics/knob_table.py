"""Modes as shares of the top mode, with the few combinations of knobs on which the parts of a step depend.

The GPU's part depends on the clocks of GPU and memory, the host's on cores, CPU clock and memory clock. A board with
thousands of modes has some fifty of the former and some hundreds of the latter, so a part is computed once per
combination and then looked up for every mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats

CORES, CPU, GPU, MEM = range(4)
"""Columns of the knobs."""


@dataclass(frozen=True, slots=True, eq=False)
class KnobCombinations:
    """The combinations of some knobs that occur among n modes.

    Attributes:
        x: One mode's shares for each of the u combinations, shape (u, 4); only the combined knobs may be used.
        index: Combination of each mode, shape (n,); None if every mode counts as its own combination.
    """

    x: Floats
    index: NDArray[np.intp] | None = None

    def split(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the shares of cores, CPU, GPU and memory, each of shape (u,)."""
        return self.x[..., CORES], self.x[..., CPU], self.x[..., GPU], self.x[..., MEM]

    def expand(self, values: Floats) -> Floats:
        """Return values per combination, shape (..., u), as values per mode, shape (..., n)."""
        return values if self.index is None else values.take(self.index, axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class KnobTable:
    """n modes as shares of the top mode.

    Attributes:
        x: Shares of cores, CPU, GPU and memory, shape (n, 4).
        host: Combinations of cores, CPU and memory.
        gpu: Combinations of GPU and memory.
        axes: For each knob its values in ascending order, and the place of each mode's value among them, shape (n,).
    """

    x: Floats
    host: KnobCombinations
    gpu: KnobCombinations
    axes: tuple[tuple[Floats, NDArray[np.intp]], ...] = ()


def as_knob_table(x: Floats | KnobTable) -> KnobTable:
    """Return shares of shape (..., n, 4) as a table in which every mode is its own combination; a table as it is."""
    if isinstance(x, KnobTable):
        return x
    each = KnobCombinations(x)
    return KnobTable(x, each, each)


def tabulate_shares(x: Floats) -> KnobTable:
    """Return shares of shape (n, 4) as a table of their combinations."""
    axes = tuple(split_axis(knob) for knob in x.T)
    return KnobTable(x, _combine_knobs(x, (CORES, CPU, MEM)), _combine_knobs(x, (GPU, MEM)), axes)


def split_axis(knob: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Return a knob's distinct values in ascending order, and the place of each mode's value among them."""
    values, which = np.unique(knob, return_inverse=True)
    return values, which.reshape(-1)


def _combine_knobs(x: Floats, knobs: Sequence[int]) -> KnobCombinations:
    _, first, index = np.unique(x[:, list(knobs)], axis=0, return_index=True, return_inverse=True)
    return KnobCombinations(x[first], index.reshape(-1))
