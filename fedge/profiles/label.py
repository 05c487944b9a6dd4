"""The label of a table's numbers: measured, unless the record beside it says that an emulated board made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from fedge.types import Label

RECORD = ".json"
"""A table's record is named like the table, with this after it (docs/profiling.md)."""


def label_of(table: Path) -> Label:
    """``calibrated`` or ``estimated`` for the table of an emulated board, as that board's model is; else ``measured``.

    A record that cannot be read says nothing.
    """
    try:
        record: Any = json.loads(table.with_name(table.name + RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "measured"
    if not isinstance(record, dict) or record.get("label") != "emulated":
        return "measured"
    labels: tuple[Label, ...] = get_args(Label)
    return next((label for label in labels if label == record.get("truth_label")), "estimated")
