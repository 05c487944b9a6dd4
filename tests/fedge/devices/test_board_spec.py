"""A real board's spec holds its own tables; modes go to the daemon's units and back unchanged."""

import pytest

from fedge.devices import catalogue
from fedge.devices.board_spec import (
    READ_ON_BOARD,
    BoardIdentity,
    build_board_spec,
    match_board_spec,
    mode_from_wire,
    mode_to_wire,
)
from fedge.errors import BoardError
from fedge.types import PowerMode

CATALOGUED = catalogue.find("orin-nano")
KNOBS = {
    "cores": [1, 2, 3, 4, 5, 6],
    "cpu_khz": [115200, 729600, 1510400],
    "gpu_hz": [306000000, 510000000, 624750000],
    "emc_hz": [204000000, 665600000, 2133000000],
}
DESCRIBED = {
    "knobs": KNOBS,
    "allowed": KNOBS | {"cores": [2, 3, 4, 5, 6], "cpu_khz": [729600, 1510400]},
    "presets": [
        {"id": 0, "name": "15W", "mode": {"cores": 6}, "needs_reboot": False, "default": True},
        {"id": 1, "name": "7W", "mode": {"cores": 4, "cpu_khz": 960000}, "needs_reboot": True, "default": False},
        {"id": 2, "name": "8W", "mode": {"cores": 4, "gpu_hz": 510000000}, "needs_reboot": False, "default": False},
    ],
}


def test_the_tables_are_those_that_the_board_allows():
    spec = build_board_spec(CATALOGUED, DESCRIBED, "VDD_IN")

    assert spec.cores == (2, 3, 4, 5, 6)
    assert spec.cpu_mhz == (729.6, 1510.4)
    assert spec.gpu_mhz == (306.0, 510.0, 624.75)
    assert spec.mem_mhz == (204.0, 665.6, 2133.0)
    assert spec.sources["gpu_mhz"] == READ_ON_BOARD
    assert spec.ram_gb == CATALOGUED.ram_gb


def test_presets_that_need_a_reboot_are_not_offered():
    spec = build_board_spec(CATALOGUED, DESCRIBED, "VDD_IN")

    assert set(spec.presets) == {"15W", "8W", "MAXN"}
    assert spec.presets["8W"] == PowerMode(4, 1510.4, 510.0, 2133.0)
    assert spec.default_preset == "15W"


def test_a_knob_that_the_board_does_not_expose_has_one_value_and_says_so():
    bare = DESCRIBED | {"knobs": KNOBS | {"emc_hz": []}, "allowed": DESCRIBED["allowed"] | {"emc_hz": []}}
    spec = build_board_spec(CATALOGUED, bare, "VDD_IN")

    assert spec.mem_mhz == CATALOGUED.mem_mhz[-1:]
    assert "no such knob" in spec.sources["mem_mhz"]
    assert "emc_hz" not in mode_to_wire(spec.maxn, bare["knobs"])


def test_every_mode_goes_to_the_wire_and_back():
    spec = build_board_spec(CATALOGUED, DESCRIBED, "VDD_IN")

    for cpu_mhz in spec.cpu_mhz:
        for gpu_mhz in spec.gpu_mhz:
            mode = PowerMode(4, cpu_mhz, gpu_mhz, spec.mem_mhz[1])
            wire = mode_to_wire(mode, KNOBS)
            assert wire["gpu_hz"] in KNOBS["gpu_hz"]
            assert mode_from_wire(wire, spec) == mode


def test_the_formula_of_the_total_is_that_of_the_sensors():
    assert build_board_spec(CATALOGUED, DESCRIBED, "VDD_IN").total_power == "VDD_IN"


@pytest.mark.parametrize("knob", ["cores", "cpu_khz", "gpu_hz", "emc_hz"])
def test_the_spec_needs_no_single_knob(knob):
    bare = DESCRIBED | {"knobs": KNOBS | {knob: []}, "allowed": DESCRIBED["allowed"] | {knob: []}}

    assert build_board_spec(CATALOGUED, bare, "VDD_IN").maxn is not None


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
def test_a_board_is_known_by_its_module_or_kit(model, compatible, top_gpu_mhz, name):
    identity = BoardIdentity(model, compatible, "35.4.1")

    assert match_board_spec(identity, [114.75, top_gpu_mhz], SPECS).name == name


def test_without_a_number_its_own_words_are_taken():
    assert (
        match_board_spec(BoardIdentity("NVIDIA Jetson TX2 Developer Kit", ("nvidia,tegra186",), ""), [], SPECS).name
        == "tx2"
    )


def test_more_words_beat_fewer():
    found = match_board_spec(BoardIdentity("NVIDIA Jetson Orin Nano Super Developer Kit", (), ""), [1020.0], SPECS)

    assert found.name == "orin-nano-super"


def test_an_unknown_board_is_told_with_the_known_ones_and_what_to_do():
    with pytest.raises(BoardError, match=r"got 'NVIDIA Thor' .*known: .*nano.*docs/how-to/devices.md"):
        match_board_spec(BoardIdentity("NVIDIA Thor", ("nvidia,p3834-0008",), "38.2"), [1575.0], SPECS)
