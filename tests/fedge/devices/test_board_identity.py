"""A board is recognised by its module, its kit or its words; what nobody knows is said with what would help."""

from __future__ import annotations

import pytest

from fedge.devices import catalogue
from fedge.devices.board_identity import BoardIdentity, match_board_spec
from fedge.errors import BoardError

SPECS = catalogue.load_catalogue()


@pytest.mark.parametrize(
    ("model", "compatible", "top_gpu_mhz", "name"),
    [
        ("NVIDIA Jetson Nano Developer Kit", ("nvidia,p3450-0000", "nvidia,jetson-nano"), 921.6, "nano"),
        ("quill", ("nvidia,quill", "nvidia,p2771-0000", "nvidia,tegra186"), 1300.5, "tx2"),
        ("NVIDIA Jetson Xavier NX", ("nvidia,p3449-0000+p3668-0000", "nvidia,tegra194"), 1109.25, "xavier-nx"),
        ("Jetson-AGX", ("nvidia,galen", "nvidia,p2822-0000+p2888-0001"), 1377.0, "agx-xavier"),
        ("Jetson-AGX", ("nvidia,p2972-0000", "nvidia,tegra194"), 1377.0, "agx-xavier"),
        ("AGX Orin", ("nvidia,p3737-0000+p3701-0004", "nvidia,tegra234"), 930.75, "agx-orin-32gb"),
        ("AGX Orin", ("nvidia,p3737-0000+p3701-0005", "nvidia,tegra234"), 1300.5, "agx-orin-64gb"),
        ("Orin Nano", ("nvidia,p3768-0000+p3767-0005",), 624.75, "orin-nano"),
        ("Orin Nano", ("nvidia,p3768-0000+p3767-0005",), 1020.0, "orin-nano-super"),
    ],
)
def test_a_board_is_known_by_its_module_or_kit(model: str, compatible, top_gpu_mhz: float, name: str) -> None:
    identity = BoardIdentity(model, compatible, "35.4.1")

    assert match_board_spec(identity, [114.75, top_gpu_mhz], SPECS).name == name


def test_without_a_number_its_own_words_are_taken() -> None:
    assert (
        match_board_spec(BoardIdentity("NVIDIA Jetson TX2 Developer Kit", ("nvidia,tegra186",), ""), [], SPECS).name
        == "tx2"
    )


def test_more_words_beat_fewer() -> None:
    found = match_board_spec(BoardIdentity("NVIDIA Jetson Orin Nano Super Developer Kit", (), ""), [1020.0], SPECS)

    assert found.name == "orin-nano-super"


def test_an_unknown_board_is_told_with_the_known_ones_and_what_to_do() -> None:
    with pytest.raises(BoardError, match=r"got 'NVIDIA Thor' .*known: .*nano.*docs/how-to/devices.md"):
        match_board_spec(BoardIdentity("NVIDIA Thor", ("nvidia,p3834-0008",), "38.2"), [1575.0], SPECS)
