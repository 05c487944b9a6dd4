"""Tables of power modes: the grid of a board's settings, rounding and search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedge.errors import BadInput
from fedge.types import DeviceSpec, Modes, PowerMode

CLOCK_TOLERANCE_MHZ = 1e-6
# Clocks closer than this count as the same table entry; absorbs rounding in files that store clocks as decimals.


def build_grid(
    spec: DeviceSpec,
    cores: Sequence[int] | None = None,
    cpu_mhz: Sequence[float] | None = None,
    gpu_mhz: Sequence[float] | None = None,
    mem_mhz: Sequence[float] | None = None,
) -> Modes:
    """Return every combination of the given knob values, with memory varying fastest.

    A knob that is not given has the board's table.

    Returns:
        Table of the product of the lengths' rows. Given values are not checked; ``snap_to_spec`` rounds them.
    """
    knobs = (
        spec.cores if cores is None else cores,
        spec.cpu_mhz if cpu_mhz is None else cpu_mhz,
        spec.gpu_mhz if gpu_mhz is None else gpu_mhz,
        spec.mem_mhz if mem_mhz is None else mem_mhz,
    )
    axes = np.meshgrid(*(np.asarray(knob, dtype=np.float64) for knob in knobs), indexing="ij")
    return Modes(np.stack([axis.ravel() for axis in axes], axis=1))


ALL_MODES = 0
"""The number that stands for all modes of a board or a table."""


def parse_mode_count(value: int | str) -> int:
    """Parse a value of ``--modes``: a number of modes, or ``all``, which becomes ``ALL_MODES``.

    Raises:
        BadInput: If it is neither.
    """
    text = str(value)
    if text == "all":
        return ALL_MODES
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise BadInput("--modes", repr(value), "a whole number above 0, or all")
    return int(text)


def stack_modes(modes: Iterable[PowerMode]) -> Modes:
    """Return a table of the given modes in their order."""
    return Modes(np.array([mode.knobs for mode in modes], dtype=np.float64).reshape(-1, 4))


def snap_to_spec(spec: DeviceSpec, mode: PowerMode) -> PowerMode:
    """Round a mode down to the board's tables: per knob the highest value up to the given one, else the lowest."""
    return PowerMode(
        int(_round_down(spec.cores, mode.cores)),
        _round_down(spec.cpu_mhz, mode.cpu_mhz),
        _round_down(spec.gpu_mhz, mode.gpu_mhz),
        _round_down(spec.mem_mhz, mode.mem_mhz),
    )


def find_mode_index(modes: Modes, mode: PowerMode) -> int | None:
    """Return the index of the first row equal to ``mode``, or None."""
    return modes.look_up(_search_equal_row, mode)


def _search_equal_row(modes: Modes, mode: PowerMode) -> int | None:
    hits = np.flatnonzero((np.abs(modes.knobs - mode.knobs) < CLOCK_TOLERANCE_MHZ).all(axis=1))
    return int(hits[0]) if len(hits) else None


def _round_down(table: Sequence[float], cap: float) -> float:
    return max((value for value in table if value <= cap + CLOCK_TOLERANCE_MHZ), default=min(table))
