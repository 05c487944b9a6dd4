"""A measured table is read in SI units, and a bad one is refused with the line and the reason."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedge.errors import BadInput
from fedge.profiles.table import COLUMNS, read_table
from fedge.types import PowerMode

HEAD = ",".join(COLUMNS)
ROWS = ("4,1500000,500000000,800000000,16,250,9.5", "8,2000000,1000000000,1600000000,16,100,20")


def _file(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "my-board" / "train" / "my-net.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


def test_units_become_mhz_seconds_and_watts(tmp_path: Path) -> None:
    table = read_table(_file(tmp_path, *ROWS))

    assert list(table.modes) == [PowerMode(4, 1500, 500, 800), PowerMode(8, 2000, 1000, 1600)]
    np.testing.assert_allclose(table.step_s, [0.25, 0.1])
    np.testing.assert_allclose(table.power_w, [9.5, 20])
    assert table.maxn == PowerMode(8, 2000, 1000, 1600)


def test_names_come_from_the_path_and_can_be_given(tmp_path: Path) -> None:
    path = _file(tmp_path, *ROWS)

    assert (read_table(path).device, read_table(path).workload) == ("my-board", "my-net")
    assert (read_table(path, "a", "b").device, read_table(path, "a", "b").workload) == ("a", "b")


def test_the_sum_names_the_very_bytes(tmp_path: Path) -> None:
    path = _file(tmp_path, *ROWS)

    assert read_table(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_columns_may_stand_in_any_order_and_beside_others(tmp_path: Path) -> None:
    path = _file(tmp_path, "20,x,8,2000000,1000000000,1600000000,16,100", head="power_w,note," + ",".join(COLUMNS[:-1]))

    assert read_table(path).power_w[0] == 20


def test_repeated_modes_become_their_median_in_place(tmp_path: Path) -> None:
    repeats = [ROWS[1].replace(",100,20", f",{time_ms},{watts}") for time_ms, watts in ((90, 19), (300, 30))]

    table = read_table(_file(tmp_path, ROWS[1], ROWS[0], *repeats))

    assert table.duplicates == 2
    assert list(table.modes) == [PowerMode(8, 2000, 1000, 1600), PowerMode(4, 1500, 500, 800)]
    np.testing.assert_allclose(table.step_s, [0.1, 0.25])
    np.testing.assert_allclose(table.power_w, [20, 9.5])


def test_of_several_batch_sizes_one_must_be_chosen(tmp_path: Path) -> None:
    path = _file(tmp_path, ROWS[0], ROWS[1].replace(",16,", ",32,"))

    with pytest.raises(BadInput, match="batch sizes 16, 32; choose one"):
        read_table(path)
    with pytest.raises(BadInput, match="got 64; known: 16, 32"):
        read_table(path, batch_size=64)
    assert read_table(path, batch_size=32).step_s.tolist() == [0.1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("4,1500000,500000000,800000000,16,fast,9.5", r"line 3, time_ms: got 'fast'; a number above 0"),
        ("4,1500000,500000000,800000000,16,nan,9.5", r"line 3, time_ms: got 'nan'"),
        ("4,1500000,500000000,800000000,16,inf,9.5", r"line 3, time_ms: got 'inf'"),
        ("4,1500000,500000000,800000000,16,250,0", r"line 3, power_w: got '0'"),
        ("4,-1,500000000,800000000,16,250,9.5", r"line 3, cpu_khz: got '-1'"),
        ("4.5,1500000,500000000,800000000,16,250,9.5", r"line 3, cores: got '4.5'; a whole number above 0"),
        ("4,1500000,500000000,800000000,16,250", r"line 3, power_w: got ''"),
    ],
)
def test_a_bad_number_is_named_with_its_line_and_column(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        read_table(_file(tmp_path, ROWS[0], row))

    assert "\n" not in str(error.value)


def test_missing_columns_are_listed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no column time_ms, power_w; columns cores,cpu_khz"):
        read_table(_file(tmp_path, "1,2,3,4,5", head=",".join(COLUMNS[:5])))


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no rows"):
        read_table(_file(tmp_path))


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.csv: got no such file"):
        read_table(tmp_path / "nowhere.csv")


def test_a_folder_cannot_be_read_as_a_table(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_table(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "image.csv"
    path.write_bytes(b"\xff\xd8\xff\xe0")

    with pytest.raises(BadInput, match="bytes that are not text"):
        read_table(path)
