"""The allow-list beside what the recorded boards show (test_every_board): missing knobs, and tables below the floor."""

import pytest

from fedge.powerd import board_control
from fedge.powerd.config import Config
from fedge.powerd.mode_records import KnobTables, Mode, PowerdRefusal, Preset


def test_a_knob_that_the_board_has_not_is_refused(refused) -> None:
    refusal = refused(board_control.check_mode, Mode(emc_hz=1600000000), KnobTables((1, 2), (403200,)), Config())
    assert refusal.kind == "not-allowed"


def test_a_refusal_lists_the_values_of_the_table(refused) -> None:
    assert "1, 2, 3, 4:" in refused(board_control.check_mode, Mode(cores=5), KnobTables((1, 2, 3, 4)), Config()).text


def test_a_knob_whose_whole_table_is_below_the_floor_keeps_its_highest_value() -> None:
    assert board_control.above_floor(KnobTables((1,), (102000,)), Config()) == KnobTables((1,), (102000,))


def test_a_preset_is_found_by_id_and_by_name_in_any_case() -> None:
    presets = [Preset(0, "MAXN", Mode(), False, True), Preset(8, "5W", Mode(), False, False)]
    assert board_control.find_preset(presets, "maxn") is board_control.find_preset(presets, 0)
    assert board_control.find_preset(presets, "8").name == "5W"
    with pytest.raises(PowerdRefusal, match=r"MAXN \(0\), 5W \(8\)"):
        board_control.find_preset(presets, "7W")
