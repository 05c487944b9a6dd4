"""Tables of measured placements: read as they were written, and what is wrong with one is said in one line.

A board's parameters from measured placements: found again, bad rows set aside, what was not measured predicted.
"""

from dataclasses import replace

import numpy as np
import pytest
from contracts.placement_boards import resnet50

from fedge.analysis.placement.accelerator_fit import (
    PlacementMeasurement,
    apply_parameters,
    find_parameter_keys,
    fit_board,
    measurements_to_csv,
    parse_measurements,
    predict_images_per_s,
    read_measurements,
)
from fedge.analysis.placement.accelerators import Instance, Placement, PlacementBoard, build_placement_board
from fedge.analysis.placement.placement_outcome import evaluate_placement
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.types import Floats

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
        ("", "no header"),
        ("instances,batch_sizes,images_per_s\na,1,2\n", "no column precisions"),
        (HEAD, "0 rows"),
        (HEAD + "a,1,fp32,fast,\n", "line 2: images_per_s"),
        (HEAD + "a,1,fp32,-3,\n", "line 2: images_per_s"),
        (HEAD + "a,1,fp32,nan,\n", "line 2: images_per_s"),
        (HEAD + "a,1,fp32,10,inf\n", "line 2: watts"),
        (HEAD + "a,0,fp32,10,\n", "line 2: batch_sizes"),
        (HEAD + "a,many,fp32,10,\n", "line 2: batch_sizes"),
        (HEAD + "a," + 5000 * "9" + ",fp32,10,\n", "line 2: batch_sizes"),
        (HEAD + "a,1,fp32,1e300,\n", "line 2: images_per_s"),
        (HEAD + "+".join(65 * "a") + ",1,fp32,10,\n", "line 2: instances"),
        (HEAD + "a+b+c,1+2,fp32,10,\n", "2 values for 3 instances"),
        (HEAD + "a+,1,fp32,10,\n", "line 2: instances"),
        (HEAD + "a,1,,10,\n", "line 2: precisions"),
        (HEAD + "a,1,fp32\n", "line 2"),
        (HEAD + "a,1,fp32,10,1,2,3\n", "line 2"),
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
    with pytest.raises(BadInput, match="table of measurements"):
        read_measurements(path)


ORIN = build_placement_board(find("agx-orin"))
PLACES = {"c": ("cuda-cores", "fp32"), "t": ("tensor-cores", "mixed"), "d": ("dla-0", "fp16")}


def placements(combinations: str, sizes: tuple[int, ...]) -> list[Placement]:
    return [
        Placement(tuple(Instance(PLACES[one][0], size, PLACES[one][1]) for one in combination))
        for combination in combinations.split()
        for size in sizes
    ]


def another_board(seed: int) -> PlacementBoard:
    """The AGX Orin with every parameter off by about half."""
    keys = tuple(find_parameter_keys(ORIN, [PlacementMeasurement(one, 1.0) for one in placements("c t d ct", (1,))]))
    moved: Floats = np.random.default_rng(seed).normal(0, 0.4, len(keys))
    return apply_parameters(ORIN, keys, moved)


def measured(
    board: PlacementBoard, some: list[Placement], noise: float = 0.0, seed: int = 0
) -> list[PlacementMeasurement]:
    rng = np.random.default_rng(seed)
    found = [evaluate_placement(board, resnet50(), one) for one in some]
    return [
        PlacementMeasurement(one, o.images_per_s * np.exp(noise * rng.standard_normal()), o.power_w)
        for one, o in zip(some, found, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_combinations_that_were_not_measured_are_predicted_from_those_that_were(seed):
    truth = another_board(seed)
    seen = measured(truth, placements("c t d ct", (1, 8, 64)), 0.02, seed)
    left = placements("cd td ctd", (2, 16, 64))
    found = fit_board(ORIN, resnet50(), seen)
    true = np.array([evaluate_placement(truth, resnet50(), one).images_per_s for one in left])
    off = np.abs(predict_images_per_s(found.board, resnet50(), left) / true - 1)
    before = np.abs(predict_images_per_s(ORIN, resnet50(), left) / true - 1)
    assert found.error < 3
    assert found.left_out_error < 8
    assert found.power_error < 5
    assert off.mean() < 0.06
    assert off.mean() < 0.4 * before.mean()


@pytest.mark.slow
def test_a_bad_row_is_told_and_does_not_bend_the_fit():
    truth = another_board(3)
    rows = measured(truth, placements("c t ct", (1, 4, 16, 64)), 0.01)
    rows[5] = replace(rows[5], images_per_s=3 * rows[5].images_per_s)
    found = fit_board(ORIN, resnet50(), rows)
    assert found.doubtful == (6,)
    good = [row.placement for i, row in enumerate(rows) if i != 5]
    true = np.array([evaluate_placement(truth, resnet50(), one).images_per_s for one in good])
    assert np.abs(predict_images_per_s(found.board, resnet50(), good) / true - 1).max() < 0.06


def test_what_was_measured_is_calibrated_and_the_rest_stays_estimated():
    found = fit_board(ORIN, resnet50(), measured(another_board(1), placements("c d", (1, 8, 64)), 0.01))
    cuda = Instance("cuda-cores", 4, "fp32")
    assert found.board.label == "calibrated"
    assert found.label_placement(Placement((cuda, Instance("dla-1", 2, "fp16")))) == "calibrated"
    assert found.label_placement(Placement((cuda, Instance("dla-0", 2, "int8")))) == "estimated"
    assert found.board.accelerator("tensor-cores") == ORIN.accelerator("tensor-cores")


def test_tf32_may_be_planned_with_once_it_was_measured():
    tf32 = [
        PlacementMeasurement(Placement((Instance("tensor-cores", size, "tf32"),)), rate)
        for size, rate in ((1, 80), (8, 400), (64, 700))
    ]
    board = fit_board(ORIN, resnet50(), tf32).board
    assert board.accelerator("tensor-cores").precisions == ("mixed", "tf32")


def test_watts_that_nobody_read_are_left_as_they_were():
    rows = [replace(row, watts=None) for row in measured(another_board(1), placements("c", (1, 8, 64)))]
    found = fit_board(ORIN, resnet50(), rows)
    assert found.power_error is None
    assert found.board.idle_w == ORIN.idle_w


@pytest.mark.parametrize(
    ("board", "combinations", "sizes", "told"),
    [("agx-orin", "c", (1, 8), "3 or more"), ("nano", "d", (1, 8, 64), "row 1: got 'dla-0'")],
)
def test_too_few_rows_and_rows_of_another_board_are_refused(board, combinations, sizes, told):
    rows = measured(another_board(1), placements(combinations, sizes))
    with pytest.raises(BadInput, match=told):
        fit_board(build_placement_board(find(board)), resnet50(), rows)
