"""Import of CSV logs of jetson-stats (one row per sample): the rails if they are logged, else jtop's own total."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedge.devices.sensing.power_formula import rails_in_formula
from fedge.devices.tables.csv_sheet import CsvSheet, float_or_nan, parse_sheet
from fedge.devices.tables.importers import ImportedRows, format_count
from fedge.devices.tables.importers.power_log import build_power_log, import_runs
from fedge.devices.tables.importers.steps_file import StepsFile
from fedge.devices.tables.importers.timestamps import TIME_FORMATS, parse_time_s
from fedge.errors import BadInput

TOTALS = ("power tot", "power cur")
"""Columns of jtop's total, from version 4 on and before. It is the input rail if the board has one, else the sum of all
rails.
"""


def import_jtop_log(where: str, text: str, steps: StepsFile, total_power: str | None = None) -> ImportedRows:
    """Import the modes of a steps file with the power that jtop logged meanwhile.

    The columns are those of ``jtop().stats``: ``time``, and ``Power <RAIL>`` and ``Power TOT`` from version 4 on or
    ``power cur`` before, all in milliwatts. If ``total_power`` is None or one of its rails is not logged, jtop's own
    total is used, with a note.

    Raises:
        BadInput: The log has no power or no times.
    """
    sheet = parse_sheet(where, text, ("time",))
    columns = _choose_power_columns(sheet, total_power)
    samples, unread = [], []
    for row in sheet.rows:
        at_s = parse_time_s(row.cells["time"])
        milliwatts = {name: mw for name in columns if math.isfinite(mw := float_or_nan(row.cells[name]))}
        if at_s is None or len(milliwatts) < len(columns):
            unread.append(f"line {row.line}")
            continue
        samples.append((at_s, milliwatts))
    if not samples:
        raise BadInput(where, "no row with a time and a power", f"a time ({TIME_FORMATS}) and milliwatts in every row")
    notes = [f"{format_count(unread, 'row')} without a time or a power: left out"] if unread else []
    notes.append(_describe_total(columns, total_power, len(samples)))
    return import_runs(where, build_power_log(where, samples, columns, notes), steps)


def _choose_power_columns(sheet: CsvSheet, total_power: str | None) -> tuple[str, ...]:
    """Return the columns whose sum is the module's power; raise ``BadInput`` if there are none."""
    rails = tuple(f"power {rail.casefold()}" for rail in rails_in_formula(total_power)) if total_power else ()
    if rails and all(rail in sheet.columns for rail in rails):
        return rails
    for total in TOTALS:
        if total in sheet.columns:
            return (total,)
    found = ", ".join(name for name in sheet.columns if name.startswith("power ")) or "none"
    right = f"the columns 'Power TOT' or 'power cur', or the board's rails (power columns found: {found})"
    raise BadInput(sheet.where, "no column of the module's power", right)


def _describe_total(columns: Sequence[str], total_power: str | None, samples: int) -> str:
    if columns[0] in TOTALS:
        why = f"no column of {total_power}" if total_power else "the board is not in the catalogue"
        return f"power is {columns[0]!r}, jtop's own total ({why}), from {samples} samples"
    return f"power is {total_power}, from {samples} samples"
