"""Every board's accelerators: how many, how fast, and that each number says where it comes from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedge.analysis.placement.catalogue_accelerators import ThroughputAnchor, build_placement_board, solve_anchor
from fedge.devices.catalogue import find, load_catalogue
from fedge.errors import BadInput

DLAS = {
    "agx-orin-64gb": 2, "agx-orin-32gb": 2, "agx-xavier": 2, "xavier-nx": 2, "orin-nx-16gb": 2, "orin-nx-8gb": 1,
    "orin-nano": 0, "orin-nano-super": 0, "nano": 0, "tx2": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(load_catalogue()))
def test_a_board_has_the_dla_of_its_data_sheet(name):
    names = build_placement_board(find(name)).accelerator_names
    assert sum(one.startswith("dla-") for one in names) == DLAS[name]


@pytest.mark.parametrize("name", ["nano", "tx2"])
def test_boards_without_tensor_cores_have_cuda_cores_alone(name):
    assert build_placement_board(find(name)).accelerator_names == ("cuda-cores",)


@pytest.mark.parametrize("name", sorted(load_catalogue()))
def test_every_figure_has_a_label_and_a_source_and_the_board_is_estimated(name):
    board = build_placement_board(find(name))
    assert board.label == "estimated"
    assert len(board.figures) >= 20
    for what, figure in board.figures:
        assert figure.label in {"measured", "calibrated", "estimated"}, what
        assert len(figure.source) >= 8, what


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("agx-orin-64gb", 42.6), ("agx-orin-32gb", 26.7), ("agx-xavier", 11.3), ("xavier-nx", 6.8), ("orin-nano", 10.2)],
)
def test_tensor_cores_peaks_are_those_of_the_data_sheets(name, tflops):
    """170 sparse INT8 TOPS of the AGX Orin's tensor cores are 42.6 dense TFLOP/s in fp16."""
    figures = dict(build_placement_board(find(name)).figures)
    speed = build_placement_board(find(name)).accelerator("tensor-cores").speed("mixed")
    assert speed.flop_per_s / figures["mixed of peak"].value / 1e12 == pytest.approx(tflops, rel=0.01)


def test_no_accelerator_reaches_more_than_its_peak():
    for spec in load_catalogue().values():
        cuda = build_placement_board(spec).accelerator("cuda-cores").speed("fp32")
        assert 0.5 < cuda.flop_per_s / (1e9 * spec.gpu_gflops.value) < 1


def test_tf32_is_known_to_ampere_alone_and_offered_nowhere_before_it_is_measured():
    orin, xavier = (
        build_placement_board(find(name)).accelerator("tensor-cores") for name in ("agx-orin", "agx-xavier")
    )
    assert [speed.precision for speed in orin.speeds] == ["mixed", "tf32"]
    assert [speed.precision for speed in xavier.speeds] == ["mixed"]
    assert orin.precisions == ("mixed",)


def test_a_board_of_the_users_own_is_refused_with_the_known_ones():
    with pytest.raises(BadInput, match="agx-orin-64gb"):
        build_placement_board(replace(find("nano"), name="my-board"))


def test_an_anchor_that_no_speed_reaches_is_refused():
    with pytest.raises(ValueError, match="no speed"):
        solve_anchor(ThroughputAnchor(1000.0, 64, 1e9, 1e6, 1e9, 0.0, 1e9, 3.0))
