"""``fedge devices``: what it prints fits a terminal, carries labels, and is good JSON when asked."""

import json
from collections.abc import Callable

import pytest
from rich.console import Console

from experiments.cli import devices_list
from experiments.cli.devices_list import devices_list as list_devices
from experiments.cli.devices_list import devices_modes, devices_show
from fedge.devices.catalogue import load_catalogue

BOARDS = sorted(load_catalogue())
ORIN_NANO_LOWEST = {"cores": 1, "cpu_mhz": 115.2, "gpu_mhz": 306.0, "mem_mhz": 204.0}
NANO_MAXN = {"cores": 4, "cpu_mhz": 1479.0, "gpu_mhz": 921.6, "mem_mhz": 1600.0}


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_list, "make_console", lambda: Console(width=80))


Shown = Callable[[], str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """What was printed since the last call."""
    return lambda: capsys.readouterr().out


def test_the_list_names_every_board_and_marks_estimates(shown):
    list_devices()
    lines = shown().splitlines()
    assert all(any(line.startswith(f" {board} ") for line in lines) for board in BOARDS)
    row = next(line for line in lines if line.startswith(" agx-xavier "))
    assert row.split() == ["agx-xavier", "8", "~1410", "~136.5", "~32", "7.5", "~30", "29,232"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("board", BOARDS)
def test_a_board_is_shown_in_80_columns_with_a_label_on_every_fact(shown, board):
    devices_show(board)
    text = shown()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("measured ") + text.count("estimated ") >= 17
    assert "…" not in text


@pytest.mark.parametrize("board", BOARDS)
def test_the_knobs_of_a_board_fit_80_columns(shown, board):
    devices_modes(board)
    text = shown()
    assert max(map(len, text.splitlines())) <= 80
    assert "MAXN" in text
    assert "at power-on" in text


def test_an_alias_shows_its_board(shown):
    devices_modes("agx-orin")
    assert "Jetson AGX Orin 64GB: 18,096 power modes (12 x 29 x 13 x 4)" in shown()


def test_a_preset_is_one_line(shown):
    devices_modes("nano", "5W")
    assert shown() == "nano 5W: 2c/921.6/614.4/1600 MHz\n"


def test_all_modes_are_one_csv_row_each(shown):
    devices_modes("orin-nano", every=True)
    lines = shown().splitlines()
    assert lines[0] == "cores,cpu_mhz,gpu_mhz,mem_mhz"
    assert len(lines) == 1 + 1800
    assert lines[-1] == "6,1510.4,624.75,2133"


def test_the_list_as_json_has_value_label_and_source_of_every_figure(shown):
    list_devices(as_json=True)
    boards = json.loads(shown())
    assert [board["name"] for board in boards] == BOARDS
    assert all(set(board["idle_w"]) == {"value", "label", "source"} for board in boards)


def test_a_board_as_json_has_its_tables_presets_and_sources(shown):
    devices_show("agx-orin", as_json=True)
    board = json.loads(shown())
    assert board["modes"] == 18_096
    assert board["presets"]["MODE_15W"] == {"cores": 4, "cpu_mhz": 1113.6, "gpu_mhz": 420.75, "mem_mhz": 2133.0}
    assert board["knobs"]["mem_mhz"] == [204, 665.6, 2133, 3199]
    assert board["sources"]["presets"].startswith("measured: ")


@pytest.mark.parametrize(
    ("name", "preset", "every", "found"),
    [
        ("orin-nano", None, False, lambda told: told["count"] == 1800),
        ("orin-nano", None, True, lambda told: len(told) == 1800 and told[0] == ORIN_NANO_LOWEST),
        ("nano", "MAXN", False, lambda told: told == NANO_MAXN),
    ],
)
def test_modes_as_json_are_counted_listed_or_picked(shown, name, preset, every, found):
    devices_modes(name, preset, every, as_json=True)
    assert found(json.loads(shown()))


def test_a_board_says_which_workloads_have_costs_of_its_own(shown):
    devices_show("agx-orin")
    orin = shown()
    devices_show("nano")
    nano = shown()

    assert "resnet50-imagenet" in orin
    assert orin.count("batch 1 4 16 32 64") == 2
    assert "none of its own" not in orin
    assert nano.count("none of its own") == 2


def test_a_boards_costs_as_json_are_batch_sizes_by_kind_and_workload(shown):
    devices_show("agx-orin", as_json=True)
    calibrated = json.loads(shown())["calibrated"]

    assert calibrated["train"]["yolov8n-coco"] == [16]
    assert calibrated["infer"]["resnet50-imagenet"] == [1, 4, 16, 32, 64]
