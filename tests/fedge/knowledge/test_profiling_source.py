"""What can be profiled: a table replays its rows, an emulated board meters; candidates are all modes of the board."""

import numpy as np
import pytest
from contracts.boards import grid, made_up_table

from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.knowledge.profiling_source import list_candidates, source_from_board, source_from_table
from fedge.modes import build_grid as every_mode
from fedge.types import Modes, PowerMode, ProfileTable

NANO = load_catalogue()["orin-nano"]


def table_of(modes: Modes, device: str = "my-board") -> ProfileTable:
    return made_up_table(modes=modes, device=device, sha256="a" * 64, path="/x/my-board/net.csv")


def test_a_table_answers_with_its_rows():
    table = table_of(grid())

    seen = source_from_table(table, None, "net.csv").measure(table.modes[7])

    assert (seen.mode, seen.step_s, seen.power_w) == (table.modes[7], table.step_s[7], table.power_w[7])


def test_a_table_of_no_known_board_has_its_own_modes_as_candidates():
    ground = source_from_table(table_of(grid()), None, "net.csv")

    assert ground.candidates is ground.truth.modes
    assert ground.candidates_from == "the table's modes"
    assert (ground.label, ground.source, ground.sha256) == ("measured", "net.csv", "a" * 64)


def test_a_table_on_part_of_a_known_board_may_be_asked_for_all_of_its_modes():
    part = Modes(every_mode(NANO).knobs[::50])

    candidates, origin = list_candidates(table_of(part), NANO)

    np.testing.assert_array_equal(candidates.knobs, every_mode(NANO).knobs)
    assert origin == "every mode of the catalogue's orin-nano"


def test_a_clock_of_the_table_takes_the_place_of_the_catalogues_nearly_the_same():
    knobs = every_mode(NANO).knobs[::50].copy()
    top = knobs[:, 1].max()
    knobs[knobs[:, 1] == top, 1] = 1.01 * top

    candidates, _ = list_candidates(table_of(Modes(knobs)), NANO)

    assert len(candidates) == len(every_mode(NANO))
    assert {*knobs[:, 1]} <= {*candidates.knobs[:, 1]}
    assert top not in candidates.knobs[:, 1]


def test_a_table_with_clocks_that_the_board_lacks_keeps_to_its_own_modes():
    table = table_of(grid())

    candidates, origin = list_candidates(table, NANO)

    assert candidates is table.modes
    assert "clocks that the catalogue's orin-nano lacks" in origin


def test_a_table_takes_the_catalogues_name_of_its_board():
    ground = source_from_table(table_of(grid(), "orin-nano-8gb"), NANO, "net.csv")

    assert ground.truth.device == "orin-nano"


def test_an_emulated_board_meters_with_noise_about_its_own_surface():
    ground = source_from_board("orin-nano", "resnet18-imagenet", seed=1)
    rows = range(0, len(ground.truth.modes), 90)

    seen = [ground.measure(ground.truth.modes[row]) for row in rows]

    off = [np.log(one.step_s / ground.truth.step_s[row]) for one, row in zip(seen, rows, strict=True)]
    assert 0 < np.median(np.abs(off)) < 0.03
    assert {one.steps for one in seen} == {40}
    assert ground.label in ("calibrated", "estimated")
    assert ground.sha256 is None
    assert ground.source.startswith("an emulated orin-nano")
    assert ground.idle.label == "estimated"


def test_an_emulated_board_is_the_same_for_a_seed_and_another_for_another():
    boards = [source_from_board("tx2", "resnet18-imagenet", seed) for seed in (1, 1, 2)]
    seconds = [board.truth.step_s for board in boards]
    seen = [board.measure(board.truth.modes[5]) for board in boards]

    np.testing.assert_array_equal(seconds[0], seconds[1])
    assert seen[0] == seen[1]
    assert not np.allclose(seconds[0], seconds[2])


def test_an_emulated_board_believes_nothing_of_its_own_workload():
    ground = source_from_board("agx-orin", "mobilenetv3l-gld23k", seed=0)

    assert ground.truth.device == "agx-orin-64gb"
    assert ground.background.prior_tables
    assert not [name for name in ground.background.prior_tables if "mobilenetv3l-gld23k" in name]


@pytest.mark.parametrize(
    ("device", "workload", "where"),
    [("nosuch", "resnet18-imagenet", "--board"), ("orin-nano", "nosuch", "--workload")],
)
def test_an_unknown_board_or_workload_is_named_by_its_option(device, workload, where):
    with pytest.raises(BadInput) as error:
        source_from_board(device, workload, 0)

    assert error.value.where == where


def test_a_mode_that_is_not_there_cannot_be_measured():
    strange = PowerMode(99, 1.0, 1.0, 1.0)

    for ground in (
        source_from_board("orin-nano", "resnet18-imagenet", 0),
        source_from_table(table_of(grid()), None, "t"),
    ):
        with pytest.raises(BadInput, match="one of the"):
            ground.measure(strange)
