"""The catalogue: every stock board holds together, and a bad board file is refused in one line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedge.devices.catalogue import CITED_FIELDS, FIGURE_FIELDS, aliases, find, load_catalogue, load_spec
from fedge.errors import BadInput, UnknownName
from fedge.types import PowerMode

BOARDS = sorted(load_catalogue())
LABELS = ("measured", "calibrated", "estimated")
STOCK = Path(__file__).parents[3] / "fedge" / "devices" / "catalogue"


def test_the_catalogue_holds_the_ten_boards():
    assert BOARDS == [
        "agx-orin-32gb", "agx-orin-64gb", "agx-xavier", "nano", "orin-nano", "orin-nano-super", "orin-nx-16gb",
        "orin-nx-8gb", "tx2", "xavier-nx",
    ]  # fmt: skip


def test_the_catalogue_is_read_once():
    assert load_catalogue() is load_catalogue()


def test_an_alias_stands_for_its_board():
    assert find("agx-orin") is find("agx-orin-64gb")
    for alias, name in aliases().items():
        assert find(alias).name == name


def test_no_alias_is_taken_twice_or_hides_a_board():
    declared = [a for file in STOCK.glob("*.yaml") for a in yaml.safe_load(file.read_text()).get("aliases", [])]
    assert len(declared) == len(set(declared)) == len(aliases())
    assert not set(declared) & set(BOARDS)


def test_an_unknown_board_lists_the_known_ones():
    with pytest.raises(UnknownName) as caught:
        find("orin-max", where="fleet[0].device")
    assert str(caught.value).startswith(
        "fleet[0].device: got 'orin-max'; did you mean orin-nx or orin-nano? known: agx-orin-32gb"
    )
    assert "agx-orin," in str(caught.value)


@pytest.mark.parametrize("board", BOARDS)
def test_a_stock_file_is_named_after_its_board(board):
    assert load_spec(STOCK / f"{board}.yaml") == find(board)


@pytest.mark.parametrize("board", BOARDS)
def test_every_preset_is_on_the_boards_tables(board):
    spec = find(board)
    for mode in spec.presets.values():
        assert mode.cores in spec.cores
        assert mode.cpu_mhz in spec.cpu_mhz
        assert mode.gpu_mhz in spec.gpu_mhz
        assert mode.mem_mhz in spec.mem_mhz
    assert spec.default_preset in spec.presets
    assert spec.presets["MAXN"] == spec.maxn


@pytest.mark.parametrize("board", BOARDS)
def test_every_figure_and_table_has_a_label_and_a_source(board):
    spec = find(board)
    assert set(spec.sources) == {*FIGURE_FIELDS, *CITED_FIELDS}
    for cited in spec.sources.values():
        label, _, source = cited.partition(": ")
        assert label in LABELS
        assert len(source) > 10
    for field in FIGURE_FIELDS:
        figure = getattr(spec, field)
        assert figure.value > 0
        assert spec.sources[field] == f"{figure.label}: {figure.source}"


@pytest.mark.parametrize("board", BOARDS)
def test_the_figures_of_a_board_agree_with_each_other(board):
    spec = find(board)
    cuda = re.match(r"(\d+) CUDA cores", spec.accelerators[0])
    assert spec.gpu_gflops.value == pytest.approx(2e-3 * int(cuda[1]) * max(spec.gpu_mhz), rel=1e-3)
    assert spec.idle_w.value < spec.max_w.value
    assert spec.cpu_score.value <= 1.0


def test_presets_stand_at_the_clock_nearest_to_the_configured_one():
    assert find("agx-xavier").presets["MODE_30W_ALL"] == PowerMode(8, 1190.4, 905.25, 1600.0)
    assert find("nano").presets["5W"] == PowerMode(2, 921.6, 614.4, 1600.0)
    assert find("tx2").presets["MAXQ"].gpu_mhz == 854.25


def test_the_figures_that_no_board_has_shown_are_not_called_measured():
    measured = {
        (board, field) for board in BOARDS for field in FIGURE_FIELDS if getattr(find(board), field).label == "measured"
    }
    assert measured == {("agx-xavier", "idle_w"), ("agx-orin-64gb", "idle_w"), ("orin-nano", "max_w")}


Board = dict[str, Any]


def _without(field: str) -> Callable[[Board], object]:
    return lambda board: board.pop(field)


def _with(field: str, value: object) -> Callable[[Board], object]:
    return lambda board: board.__setitem__(field, value)


BAD: list[tuple[Callable[[Board], object], str, str]] = [
    (_with("colour", "green"), "colour", "an unknown key; known here: name"),
    (_without("idle_w"), "idle_w", "got nothing"),
    (_with("idle_w", 3), "idle_w", "got 3"),
    (_with("idle_w", {"value": "3 W", "label": "measured", "source": "log"}), "idle_w.value", "got '3 W'"),
    (_with("idle_w", {"value": -3, "label": "measured", "source": "log"}), "idle_w.value", "more than 0"),
    (_with("idle_w", {"value": 3, "label": "guessed", "source": "log"}), "idle_w.label", "'estimated'"),
    (_with("idle_w", {"value": 3, "label": "measured", "source": ""}), "idle_w.source", "text that is not empty"),
    (_with("idle_w", {"value": 3, "label": "measured"}), "idle_w.source", "got nothing"),
    (_with("gpu_mhz", [300, 200]), "gpu_mhz", "each larger than the one before"),
    (_with("gpu_mhz", [300, 300]), "gpu_mhz", "each larger than the one before"),
    (_with("gpu_mhz", [0, 300]), "gpu_mhz", "values above 0"),
    (_with("gpu_mhz", [float("nan"), 300]), "gpu_mhz", "finite"),
    (_with("gpu_mhz", []), "gpu_mhz", "a list of numbers, or a range"),
    (_with("gpu_mhz", "fast"), "gpu_mhz", "got 'fast'; a list of numbers, or a range"),
    (_with("gpu_mhz", [True, 300]), "gpu_mhz", "a list of numbers, or a range"),
    (_with("gpu_mhz", {"from": 100, "to": 1000, "step": 70}), "gpu_mhz", "whole steps"),
    (_with("gpu_mhz", {"from": 100, "to": 1e12, "step": 1e-3}), "gpu_mhz", "at most"),
    (_with("gpu_mhz", {"from": 100}), "gpu_mhz", "a range of numbers: from, to, step"),
    (_with("gpu_mhz", {"from": 100, "to": float("nan")}), "gpu_mhz", "rises in at most"),
    (_with("cores", [1.5, 2]), "cores", "whole numbers"),
    (_with("presets", {"5W": {"cores": 3}, "MAXN": {"cores": 2}}), "presets.MAXN", "every knob at its top"),
    (_with("presets", {"5W": {"cores": 9}}), "presets.5W.cores", "one of 1, 2, 3, 4"),
    (_with("presets", {"5W": {"gpu_mhz": 1200}}), "presets.5W.gpu_mhz", "(nearest: 921.6)"),
    (_with("presets", {"5W": {"gpu_mhz": float("nan")}}), "presets.5W.gpu_mhz", "a clock of the board's table"),
    (_with("presets", {"5W": {"volts": 5}}), "presets.5W.volts", "an unknown key"),
    (_with("default_preset", "10W"), "default_preset", "known: 5W, MAXN"),
    (_with("total_power", "VDD_IN"), "total_power", "known: POM_5V_IN"),
    (_with("sources", {}), "sources.modules", "a label and a source"),
    (_with("jetpacks", [4.6]), "jetpacks[0]", "got 4.6"),
    (_with("name", "My Board"), "name", "got 'My Board'"),
]


@pytest.mark.parametrize(("spoil", "field", "text"), BAD)
def test_a_bad_board_file_is_refused_in_one_line_with_file_and_field(spoil, field, text, tmp_path):
    board = yaml.safe_load((STOCK / "nano.yaml").read_text())
    spoil(board)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(board))
    with pytest.raises(BadInput) as caught:
        load_spec(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {field}: got ")
    assert text in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "text"), [("- a\n- b\n", "got a list"), ("a: [", "text that is not YAML"), ("", "got an empty file")]
)
def test_a_file_that_is_no_board_is_refused_in_one_line(content, text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(BadInput, match=text) as caught:
        load_spec(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused_with_its_path(tmp_path):
    with pytest.raises(BadInput, match=r"nowhere\.yaml: got no such file"):
        find(str(tmp_path / "nowhere.yaml"))


def test_the_users_own_board_is_found_by_its_path(tmp_path):
    board = yaml.safe_load((STOCK / "nano.yaml").read_text())
    board["name"] = "bench-3"
    path = tmp_path / "bench.yaml"
    path.write_text(yaml.safe_dump(board))
    assert find(str(path)).name == "bench-3"


def test_the_manuals_example_is_a_good_board(tmp_path):
    manual = (STOCK.parents[2] / "docs" / "how-to" / "devices.md").read_text()
    path = tmp_path / "manual.yaml"
    path.write_text(manual.partition("```yaml\n")[2].partition("```")[0])
    assert find(str(path)).maxn == PowerMode(12, 2201.6, 1300.5, 3199.0)


@pytest.mark.parametrize("board", BOARDS)
def test_the_manual_names_every_board_with_its_number_of_modes(board):
    spec = find(board)
    sizes = [len(table) for table in (spec.cores, spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz)]
    row = f"{' x '.join(map(str, sizes))} = {sizes[0] * sizes[1] * sizes[2] * sizes[3]:,} |"
    manual = (STOCK.parents[2] / "docs" / "how-to" / "devices.md").read_text()
    assert any(line.startswith(f"| `{board}` |") and line.endswith(row) for line in manual.splitlines())
