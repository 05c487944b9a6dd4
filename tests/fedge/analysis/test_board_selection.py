"""Which board suits a workload: the best mode within limits, by brute force, and boards ranked by what is asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.board_selection import (
    BoardLimits,
    BoardSelectionRequest,
    RankingObjective,
    filter_suitable,
    find_best_row,
    rank_boards,
)
from fedge.costs.layered_work import find_known_layers
from fedge.costs.layers.network_record import find_known_network
from fedge.devices.catalogue import load_catalogue
from fedge.types import Workload

SPECS = load_catalogue()
RESNET = find_known_network("resnet18-imagenet")
WORK = Workload("resnet18-imagenet", 16, "train", find_known_layers("resnet18-imagenet"))
pairs = st.lists(st.tuples(st.floats(0.1, 100.0), st.floats(1.0, 60.0)), min_size=1, max_size=12)
limit = st.none() | st.floats(0.5, 60.0)


def _worth(aim: RankingObjective, seconds: float, watts: float) -> float:
    return {"time": seconds, "energy": seconds * watts, "both": seconds * seconds * watts}[aim]


@given(pairs, limit, limit, st.sampled_from(["time", "energy", "both"]))
def test_the_best_mode_is_the_best_of_those_that_hold_every_limit(found, power_w, epoch_s, aim):
    seconds, watts = np.array(found).T
    row, broken = find_best_row(seconds, watts, BoardLimits(power_w, epoch_s), aim)
    holding = [
        i for i, (s, w) in enumerate(found) if (power_w is None or w <= power_w) and (epoch_s is None or s <= epoch_s)
    ]
    if holding:
        assert broken == ()
        assert row in holding
        assert _worth(aim, *found[row]) == min(_worth(aim, *found[i]) for i in holding)
    else:
        assert broken


def _offers(job: BoardSelectionRequest, allowed_mb: float = 1e6) -> tuple:
    return rank_boards(tuple(SPECS.values()), SPECS, job, lambda spec: allowed_mb)


@pytest.mark.parametrize("aim", ["time", "energy", "both"])
def test_boards_are_ranked_by_what_is_asked(aim):
    found = _offers(BoardSelectionRequest(WORK, RESNET, 50_000, aim=aim))
    assert {offer.board for offer in found} == set(SPECS)
    worth = [offer.ranking_values[aim] for offer in found]
    assert worth == sorted(worth)
    assert all(offer.is_suitable for offer in found)


def test_only_the_boards_that_were_measured_are_called_calibrated():
    labels = {offer.board: offer.label for offer in _offers(BoardSelectionRequest(WORK, RESNET, 1000))}
    assert {board for board, label in labels.items() if label == "calibrated"} == {"agx-orin-64gb", "orin-nano"}


def test_a_power_limit_leaves_out_boards_that_cannot_keep_it_and_says_why():
    found = _offers(BoardSelectionRequest(WORK, RESNET, 50_000, BoardLimits(power_w=5.0)))
    assert all(offer.power_w <= 5.0 for offer in filter_suitable(found))
    out = [offer for offer in found if not offer.is_suitable]
    assert {"agx-orin-64gb"} <= {offer.board for offer in out}
    assert all("above 5 W" in offer.broken[0] for offer in out)
    assert found[: len(found) - len(out)] == filter_suitable(found)


def test_a_board_without_the_memory_is_left_out_with_the_batch_that_would_fit():
    found = _offers(
        BoardSelectionRequest(Workload("resnet18-imagenet", 512, "train", WORK.layers), RESNET, 50_000),
        allowed_mb=4000.0,
    )
    assert not filter_suitable(found)
    assert all(0 < (offer.memory.batch_size or 0) < 512 for offer in found)
    nothing = _offers(BoardSelectionRequest(WORK, RESNET, 50_000), allowed_mb=10.0)
    assert {offer.memory.batch_size for offer in nothing} == {0}


def test_inference_asks_nothing_of_memory():
    layers = find_known_layers("resnet50-imagenet", "infer")
    found = _offers(
        BoardSelectionRequest(Workload("resnet50-imagenet", 16, "infer", layers), RESNET, 1000), allowed_mb=1.0
    )
    assert all(offer.is_suitable and offer.memory.need_mb is None for offer in found)


@pytest.mark.parametrize(("batch_size", "label"), [(16, "calibrated"), (8, "estimated"), (4096, "estimated")])
def test_inference_that_was_measured_on_a_board_is_not_estimated_by_layers(batch_size, label):
    work = Workload("resnet50-imagenet", batch_size, "infer", find_known_layers("resnet50-imagenet", "infer"))
    found = {offer.board: offer for offer in _offers(BoardSelectionRequest(work, None, 4096))}
    assert found["agx-orin-64gb"].label == label
    assert ("layers of" in found["agx-orin-64gb"].source) is (batch_size == 4096)
    assert "layers of" in found["nano"].source
