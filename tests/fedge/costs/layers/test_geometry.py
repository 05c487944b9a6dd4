"""The geometry of traced convolutions is that of the networks measured on the TX2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedge.costs.layers.network_record import CONVOLUTION_COLUMNS
from fedge.costs.layers.network_source import load_network_cost


def geometry(name: str) -> list[list[float]]:
    return [[getattr(each, column) for column in CONVOLUTION_COLUMNS] for each in load_network_cost(name).convolutions]


def measured(profiles_root: Path, network: str) -> list[list[float]]:
    data = json.loads((profiles_root / "perf4sight-tx2" / f"{network}.layers.json").read_text(encoding="utf-8"))
    assert tuple(data["columns"]) == CONVOLUTION_COLUMNS
    unpruned: list[list[float]] = data["levels"]["0"]
    return unpruned


@pytest.mark.parametrize(
    ("network", "name"), [("resnet18", "resnet18"), ("resnet50", "resnet50"), ("squeezenet", "squeezenet1_0")]
)
def test_torchvisions_network_is_the_measured_one(profiles_root: Path, network: str, name: str) -> None:
    assert geometry(name) == measured(profiles_root, network)


def test_the_measured_mobilenet_expands_in_its_first_block_too_and_is_otherwise_torchvisions(
    profiles_root: Path,
) -> None:
    network = measured(profiles_root, "mobilenetv2")
    assert network.pop(1) == [32, 32, 1, 0, 1, 1, 112]
    assert geometry("mobilenet_v2") == network
