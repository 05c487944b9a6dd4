"""Checks of the units of a table's columns, and notes on what a valid table cannot show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedge.errors import BadInput
from fedge.types import Floats, Modes, ProfileTable


@dataclass(frozen=True, slots=True)
class _Quantity:
    """Expected values of a column. The bounds are wide of every existing board; they only detect wrong units.

    Attributes:
        column: Name of the column.
        unit: Unit that the column's name states.
        bounds_unit: Unit of the bounds, and of error messages.
        description: Description of the largest value, for error messages.
        smallest: Lower bound of every row.
        top: Bounds of the largest row.
        unit_mistakes: Factor that corrects a column in another unit -> that unit.
    """

    column: str
    unit: str
    bounds_unit: str
    description: str
    smallest: float
    top: tuple[float, float]
    unit_mistakes: Mapping[float, str]


def _clock_quantity(column: str, unit: str, unit_mistakes: Mapping[float, str]) -> _Quantity:
    return _Quantity(
        column,
        unit=unit,
        bounds_unit="MHz",
        description="a board's top clock",
        smallest=10.0,
        top=(100.0, 20_000.0),
        unit_mistakes=unit_mistakes,
    )


COLUMN_QUANTITIES = (
    _Quantity(
        "cores",
        unit="a count",
        bounds_unit="cores",
        description="a board's core count",
        smallest=1.0,
        top=(1.0, 128.0),
        unit_mistakes={},
    ),
    _clock_quantity("cpu_khz", "kHz", {1e-3: "Hz", 1e3: "MHz", 1e6: "GHz"}),
    _clock_quantity("gpu_hz", "Hz", {1e3: "kHz", 1e6: "MHz", 1e9: "GHz"}),
    _clock_quantity("mem_hz", "Hz", {1e3: "kHz", 1e6: "MHz", 1e9: "GHz"}),
    _Quantity(
        "time_ms",
        unit="milliseconds",
        bounds_unit="s",
        description="the slowest minibatch",
        smallest=1e-5,
        top=(1e-4, 300.0),
        unit_mistakes={1e-3: "microseconds", 1e-6: "nanoseconds", 1e3: "seconds"},
    ),
    _Quantity(
        "power_w",
        unit="watts",
        bounds_unit="W",
        description="a board's top power",
        smallest=0.1,
        top=(0.5, 1_000.0),
        unit_mistakes={1e-3: "milliwatts", 1e-6: "microwatts", 1e3: "kilowatts"},
    ),
)


def check_units(where: str, modes: Modes, step_s: Floats, power_w: Floats) -> None:
    """Check that the columns of a table have plausible units.

    Seconds in ``time_ms`` are not detected if they could be the milliseconds of a small model.

    Args:
        where: The table, for error messages.
        modes: The modes, n of them, in MHz.
        step_s: Seconds per step, shape (n,).
        power_w: Power in watts, shape (n,).

    Raises:
        BadInput: A column is in another unit than its name states, or single rows are out of range.
    """
    for quantity, values in zip(COLUMN_QUANTITIES, (*modes.knobs.T, step_s, power_w), strict=True):
        _check_column(where, quantity, values)


def _check_column(where: str, quantity: _Quantity, values: Floats) -> None:
    low, high = quantity.top
    top = float(values.max())
    strange = (values < quantity.smallest) | (values > high)
    strays, others = values[strange], values[~strange]
    few = 2 * len(strays) < len(values) or low <= top <= high
    if len(strays) and few and low <= others.max() <= high:
        got = f"{strays[0]:g} {quantity.bounds_unit} in {len(strays)} of {len(values)} rows"
        right = f"{quantity.unit} in every row: from {quantity.smallest:g} to {high:g} {quantity.bounds_unit}"
        raise BadInput(f"{where}: {quantity.column}", got, right)
    if not low <= top <= high:
        right = f"{quantity.unit}: {quantity.description} lies between {low:g} and {high:g} {quantity.bounds_unit}"
        raise BadInput(
            f"{where}: {quantity.column}",
            f"{top:g} {quantity.bounds_unit} as the top",
            right + _unit_hint(quantity, top),
        )


def list_table_notes(table: ProfileTable) -> tuple[str, ...]:
    """List repairs of a table and what cannot be learnt from it, one sentence each; empty for most tables."""
    notes = []
    if table.duplicates:
        noun = "row repeats" if table.duplicates == 1 else "rows repeat"
        notes.append(f"{table.duplicates} {noun} a mode: the mode's median is used")
    if len(table.modes) == 1:
        notes.append("only one power mode: how time and power change from mode to mode cannot be seen in it")
        return tuple(notes)
    columns = (*table.modes.knobs.T, table.step_s, table.power_w)
    for quantity, values in zip(COLUMN_QUANTITIES, columns, strict=True):
        if np.ptp(values) == 0:
            notes.append(_constant_column_note(quantity, float(values[0])))
    return tuple(notes)


def _unit_hint(quantity: _Quantity, top: float) -> str:
    low, high = quantity.top
    for factor, unit in quantity.unit_mistakes.items():
        if low <= top * factor <= high:
            mend = f"multiply it by {factor:.0f}" if factor > 1 else f"divide it by {1 / factor:.0f}"
            return f"; the column looks like {unit}: {mend}"
    return ""


def _constant_column_note(quantity: _Quantity, value: float) -> str:
    same = f"{quantity.column} is the same in every row ({value:g}{_unit_suffix(quantity)})"
    if quantity.column in ("time_ms", "power_w"):
        return f"{same}: was it measured in every mode?"
    return f"{same}: what other values do cannot be seen in this table"


def _unit_suffix(quantity: _Quantity) -> str:
    return "" if quantity.column == "cores" else f" {quantity.bounds_unit}"
