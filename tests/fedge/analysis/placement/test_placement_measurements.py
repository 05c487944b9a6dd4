"""Tables of measured placements: read as they were written, and what is wrong with one is said in one line."""

from __future__ import annotations

import pytest

from fedge.analysis.placement.accelerators import Instance, Placement
from fedge.analysis.placement.placement_measurements import (
    PlacementMeasurement,
    measurements_to_csv,
    parse_measurements,
    read_measurements,
)
from fedge.errors import BadInput

HEAD = "instances,batch_sizes,precisions,images_per_s,watts\n"
ONE = PlacementMeasurement(Placement((Instance("cuda-cores", 64, "fp32"), Instance("dla-0", 8, "fp16"))), 420.5, 51.25)
TWO = PlacementMeasurement(Placement((Instance("cuda-cores", 1, "fp32"),)), 89.0)


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(measurements_to_csv([ONE, TWO], [{"note": "a"}, {}]))
    assert read_measurements(path) == (ONE, TWO)


def test_one_batch_size_and_precision_stand_for_all_and_watts_may_be_left_out():
    (row,) = parse_measurements("instances,batch_sizes,precisions,images_per_s\n dla-0 + dla-1 ,8,fp16,100\n", "x")
    assert row == PlacementMeasurement(Placement((Instance("dla-0", 8, "fp16"), Instance("dla-1", 8, "fp16"))), 100.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no column 'instances'"),
        ("instances,batch_sizes,images_per_s\na,1,2\n", "no column 'precisions'"),
        (HEAD, "0 rows"),
        (HEAD + "a,1,fp32,fast,\n", "row 1: images_per_s"),
        (HEAD + "a,1,fp32,-3,\n", "row 1: images_per_s"),
        (HEAD + "a,1,fp32,nan,\n", "row 1: images_per_s"),
        (HEAD + "a,1,fp32,10,inf\n", "row 1: watts"),
        (HEAD + "a,0,fp32,10,\n", "row 1: batch_sizes"),
        (HEAD + "a,many,fp32,10,\n", "row 1: batch_sizes"),
        (HEAD + "a," + 5000 * "9" + ",fp32,10,\n", "row 1: batch_sizes"),
        (HEAD + "a,1,fp32,1e300,\n", "row 1: images_per_s"),
        (HEAD + "+".join(65 * "a") + ",1,fp32,10,\n", "row 1: instances"),
        (HEAD + "a+b+c,1+2,fp32,10,\n", "2 values for 3 instances"),
        (HEAD + "a+,1,fp32,10,\n", "row 1: instances"),
        (HEAD + "a,1,,10,\n", "row 1: precisions"),
        (HEAD + "a,1,fp32\n", "row 1"),
        (HEAD + "a,1,fp32,10,1,2,3\n", "row 1"),
    ],
)
def test_a_bad_table_is_one_line_that_says_where(text, told):
    with pytest.raises(BadInput, match=told) as caught:
        parse_measurements(text, "rows.csv")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("rows.csv")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x01", None])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, content):
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match="a readable table"):
        read_measurements(path)
