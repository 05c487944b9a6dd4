"""Every board's accelerators: how many, how fast, and that each number says where it comes from.

What the paper on multi-accelerator inference says in words (arXiv 2503.09546) comes out of the model, one by one.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from contracts.placement_boards import resnet50

from fedge.analysis.placement.accelerators import (
    Instance,
    Placement,
    ThroughputAnchor,
    build_placement_board,
)
from fedge.analysis.placement.placement_outcome import evaluate_placement
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import find_known_network
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
        ThroughputAnchor(1000.0, 64, 1e9, 1e6, 1e9, 0.0, 1e9, 3.0).solve()


SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SMALL, LARGE = (1, 2, 4, 8), (32, 64, 128)
PLACES = {"cuda": ("cuda-cores", "fp32"), "tensor": ("tensor-cores", "mixed"), "dla": ("dla-0", "fp16")}
COMBINATIONS = ("cuda", "tensor", "dla", "cuda tensor", "cuda dla", "tensor dla", "cuda tensor dla")


def images_per_s(combination: str, size: int, network: NetworkCost | None = None) -> float:
    instances = (Instance(PLACES[name][0], size, PLACES[name][1]) for name in combination.split())
    return evaluate_placement(
        build_placement_board(find("agx-orin")), network or resnet50(), Placement(tuple(instances))
    ).images_per_s


def winner(size: int) -> str:
    return max(COMBINATIONS, key=lambda combination: images_per_s(combination, size))


def test_cuda_cores_alone_are_best_at_batch_64():
    assert max(SIZES, key=lambda size: images_per_s("cuda", size)) == 64
    assert images_per_s("cuda", 60) < 415.2 > images_per_s("cuda", 68)


def test_the_counted_network_gives_the_calibration_point_within_one_percent():
    assert images_per_s("cuda", 64, find_known_network("resnet50-imagenet")) == pytest.approx(415.2, rel=0.01)


def test_no_other_single_accelerator_does_more_than_cuda_cores():
    best = max(images_per_s("cuda", size) for size in SIZES)
    assert all(images_per_s(alone, size) < best for alone in ("tensor", "dla") for size in SIZES)


@pytest.mark.parametrize("size", LARGE)
def test_cuda_with_tensor_cores_wins_at_large_batches(size):
    assert winner(size) == "cuda tensor"
    assert images_per_s("cuda tensor", size) > 1.1 * images_per_s("cuda", size)


@pytest.mark.parametrize("size", SMALL)
def test_dla_with_cuda_cores_wins_at_small_batches_and_gains_40_to_50_images_per_second(size):
    assert winner(size) == "cuda dla"
    assert 40 <= images_per_s("cuda dla", size) - images_per_s("cuda", size) <= 50


@pytest.mark.parametrize("size", LARGE)
def test_dla_gains_nothing_at_large_batches(size):
    assert images_per_s("cuda dla", size) < images_per_s("cuda", size)
    assert images_per_s("cuda tensor dla", size) < images_per_s("cuda tensor", size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("combination", [one for one in COMBINATIONS if " " in one])
def test_all_contend_so_that_together_they_do_less_than_the_sum_of_each_alone(combination, size):
    assert images_per_s(combination, size) < sum(images_per_s(alone, size) for alone in combination.split())


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_returns_diminish_at_large_batches(combination):
    """What the last doubling brings is less than what the one before brought, from batch 16 on."""
    done = [images_per_s(combination, size) for size in (8, 16, 32, 64, 128)]
    gains = [later / earlier for earlier, later in pairwise(done)]
    assert all(later < earlier for earlier, later in pairwise(gains))
