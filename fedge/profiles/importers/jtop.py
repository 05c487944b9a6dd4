"""Imports CSV logs of jetson-stats (one row per sample): the rails where they are logged, else jtop's own total."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedge.errors import BadInput
from fedge.profiles.importers import Imported, counted
from fedge.profiles.importers.power_log import log_of, measured_in, rails_of
from fedge.profiles.importers.stamps import FORMS, seconds_of
from fedge.profiles.importers.steps import Steps
from fedge.profiles.sheet import Row, Sheet, sheet_of

TOTALS = ("power tot", "power cur")
"""jtop's own total: since version 4, and before. It is the input rail where the board has one, else all rails' sum."""


def from_log(
    where: str, text: str, steps: Steps, device: str, workload: str, total_power: str | None = None
) -> Imported:
    """The modes of ``steps`` with the power logged meanwhile.

    The columns are those that ``jtop().stats`` gives: ``time``; since version 4 ``Power <RAIL>`` and ``Power TOT``,
    before ``power cur``, all in milliwatts. ``total_power`` is the board's formula; where it is None or a rail of it is
    no column, jtop's total is taken and noted. Raises ``BadInput`` for a log without either, and without times.
    """
    sheet = sheet_of(where, text, ("time",))
    columns = _power_columns(sheet, total_power)
    samples, unread = [], []
    for row in sheet.rows:
        at_s = seconds_of(row.cells["time"])
        milliwatts = {name: mw for name in columns if math.isfinite(mw := _plain(row, name))}
        if at_s is None or len(milliwatts) < len(columns):
            unread.append(f"line {row.line}")
            continue
        samples.append((at_s, milliwatts))
    if not samples:
        raise BadInput(where, "no row with a time and a power", f"a time ({FORMS}) and milliwatts in every row")
    notes = [f"{counted(unread, 'row')} without a time or a power: left out"] if unread else []
    notes.append(_total_note(columns, total_power, len(samples)))
    return measured_in(where, log_of(where, samples, columns, notes), steps, device, workload)


def _power_columns(sheet: Sheet, total_power: str | None) -> tuple[str, ...]:
    """The columns whose sum is the module's power."""
    rails = tuple(f"power {rail.casefold()}" for rail in rails_of(total_power)) if total_power else ()
    if rails and all(rail in sheet.columns for rail in rails):
        return rails
    for total in TOTALS:
        if total in sheet.columns:
            return (total,)
    found = ", ".join(name for name in sheet.columns if name.startswith("power ")) or "none"
    right = f"the columns 'Power TOT' or 'power cur', or the board's rails (power columns found: {found})"
    raise BadInput(sheet.where, "no column of the module's power", right)


def _total_note(columns: Sequence[str], total_power: str | None, samples: int) -> str:
    if columns[0] in TOTALS:
        why = f"no column of {total_power}" if total_power else "the board is not in the catalogue"
        return f"power is {columns[0]!r}, jtop's own total ({why}), from {samples} samples"
    return f"power is {total_power}, from {samples} samples"


def _plain(row: Row, column: str) -> float:
    try:
        return float(row.cells[column])
    except ValueError:
        return math.nan
