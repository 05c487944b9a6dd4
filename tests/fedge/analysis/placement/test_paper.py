"""What the paper on multi-accelerator inference says in words (arXiv 2503.09546) comes out of the model, one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from contracts.placement_boards import resnet50

from fedge.analysis.placement.accelerators import Instance, Placement
from fedge.analysis.placement.catalogue_accelerators import build_placement_board
from fedge.analysis.placement.placement_outcome import evaluate_placement
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import find_known_network
from fedge.devices.catalogue import find

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


def test_cuda_cores_alone_do_415_images_per_second_at_batch_64():
    assert images_per_s("cuda", 64) == pytest.approx(415.2, rel=1e-6)


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
def test_cuda_with_tensor_cores_does_not_win_at_small_batches(size):
    assert images_per_s("cuda tensor", size) < images_per_s("cuda", size)


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
