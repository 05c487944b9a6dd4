"""A real board's spec holds its own tables; modes go to the daemon's units and back unchanged."""

from __future__ import annotations

import pytest

from fedge.devices import catalogue
from fedge.devices.board_spec import READ_ON_BOARD, build_board_spec, mode_from_wire, mode_to_wire
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


def test_the_tables_are_those_that_the_board_allows() -> None:
    spec = build_board_spec(CATALOGUED, DESCRIBED, "VDD_IN")

    assert spec.cores == (2, 3, 4, 5, 6)
    assert spec.cpu_mhz == (729.6, 1510.4)
    assert spec.gpu_mhz == (306.0, 510.0, 624.75)
    assert spec.mem_mhz == (204.0, 665.6, 2133.0)
    assert spec.sources["gpu_mhz"] == READ_ON_BOARD
    assert spec.ram_gb == CATALOGUED.ram_gb


def test_presets_that_need_a_reboot_are_not_offered() -> None:
    spec = build_board_spec(CATALOGUED, DESCRIBED, "VDD_IN")

    assert set(spec.presets) == {"15W", "8W", "MAXN"}
    assert spec.presets["8W"] == PowerMode(4, 1510.4, 510.0, 2133.0)
    assert spec.default_preset == "15W"


def test_a_knob_that_the_board_does_not_expose_has_one_value_and_says_so() -> None:
    bare = DESCRIBED | {"knobs": KNOBS | {"emc_hz": []}, "allowed": DESCRIBED["allowed"] | {"emc_hz": []}}
    spec = build_board_spec(CATALOGUED, bare, "VDD_IN")

    assert spec.mem_mhz == CATALOGUED.mem_mhz[-1:]
    assert "no such knob" in spec.sources["mem_mhz"]
    assert "emc_hz" not in mode_to_wire(spec.maxn, bare["knobs"])


def test_every_mode_goes_to_the_wire_and_back() -> None:
    spec = build_board_spec(CATALOGUED, DESCRIBED, "VDD_IN")

    for cpu_mhz in spec.cpu_mhz:
        for gpu_mhz in spec.gpu_mhz:
            mode = PowerMode(4, cpu_mhz, gpu_mhz, spec.mem_mhz[1])
            wire = mode_to_wire(mode, KNOBS)
            assert wire["gpu_hz"] in KNOBS["gpu_hz"]
            assert mode_from_wire(wire, spec) == mode


def test_the_formula_of_the_total_is_that_of_the_sensors() -> None:
    assert build_board_spec(CATALOGUED, DESCRIBED, "VDD_IN").total_power == "VDD_IN"


@pytest.mark.parametrize("knob", ["cores", "cpu_khz", "gpu_hz", "emc_hz"])
def test_the_spec_needs_no_single_knob(knob: str) -> None:
    bare = DESCRIBED | {"knobs": KNOBS | {knob: []}, "allowed": DESCRIBED["allowed"] | {knob: []}}

    assert build_board_spec(CATALOGUED, bare, "VDD_IN").maxn is not None
