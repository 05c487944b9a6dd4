"""A table made on an emulated board never counts as measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedge.devices.tables.mode_table import read_table_label


@pytest.mark.parametrize(
    ("record", "label"),
    [
        (None, "measured"),
        ('{"label": "measured"}', "measured"),
        ('{"label": "emulated", "truth_label": "calibrated"}', "calibrated"),
        ('{"label": "emulated", "truth_label": "estimated"}', "estimated"),
        ('{"label": "emulated"}', "estimated"),
        ('{"label": "emulated", "truth_label": 7}', "estimated"),
        ("[1, 2]", "measured"),
        ('{"label": "emu', "measured"),
    ],
)
def test_the_record_beside_a_table_says_who_made_it(record: str | None, label: str, tmp_path: Path) -> None:
    if record is not None:
        (tmp_path / "net.csv.json").write_text(record, encoding="utf-8")

    assert read_table_label(tmp_path / "net.csv") == label
