"""What is written in the normal form is read back as it was; a failure leaves what was there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contracts.boards import MAXN, coefficients, grid
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.tables.mode_table import format_mode_tables, read_mode_table, write_mode_table
from fedge.errors import BadInput
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import Modes, ProfileTable


def _table(batch_size: int = 16) -> ProfileTable:
    modes, truth = grid(), coefficients()
    return ProfileTable(
        "board",
        "net",
        batch_size,
        modes,
        compute_step_s(truth, MAXN, modes),
        compute_power_w(truth, MAXN, modes),
        "",
        "",
    )


def test_a_written_table_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "board" / "train" / "net.csv"

    write_mode_table(path, _table())
    back = read_mode_table(path)
    write_mode_table(path, back)

    assert (back.device, back.workload, back.batch_size) == ("board", "net", 16)
    assert back.sha256 == read_mode_table(path).sha256
    np.testing.assert_array_equal(back.modes.knobs, grid().knobs)
    np.testing.assert_allclose(back.step_s, _table().step_s, rtol=1e-11)
    np.testing.assert_allclose(back.power_w, _table().power_w, rtol=1e-11)


@given(st.floats(102, 3_000), st.floats(1e-4, 100), st.floats(1, 100))
def test_any_value_keeps_its_digits(mhz: float, seconds: float, watts: float) -> None:
    modes = Modes(np.array([[4.0, mhz, mhz, mhz]]))
    table = ProfileTable("b", "n", 1, modes, np.array([seconds]), np.array([watts]), "", "")

    cells = [float(cell) for cell in format_mode_tables(table).splitlines()[1].split(",")]

    np.testing.assert_allclose(cells, [4, mhz * 1e3, mhz * 1e6, mhz * 1e6, 1, seconds * 1e3, watts], rtol=1e-11)


def test_batch_sizes_share_a_file(tmp_path: Path) -> None:
    write_mode_table(tmp_path / "net.csv", _table(4), _table(16))

    assert [len(read_mode_table(tmp_path / "net.csv", batch_size=size).modes) for size in (4, 16)] == [len(grid())] * 2


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "net.csv"
    path.write_text("mine", encoding="utf-8")
    torn = replace(_table(), step_s=np.ones(3))

    with pytest.raises(BadInput, match=r"net\.csv: got a file that cannot be written"):
        write_mode_table(path, torn)
    with pytest.raises(BadInput, match="cannot be written"):
        write_mode_table(path / "below" / "net.csv", _table())

    assert [file.name for file in tmp_path.iterdir()] == ["net.csv"]
    assert path.read_text(encoding="utf-8") == "mine"
