"""The allow-list: table values of the board's own knobs, above the floor, and stock modes that need no reboot."""

import pytest

from fedge.powerd import allow_list
from fedge.powerd.config import Config
from fedge.powerd.mode_records import KnobTables, Mode, PowerdRefusal, Preset

TABLES = KnobTables((1, 2, 3, 4), (102000, 403200, 1479000), (76800000, 921600000), ())
OPTIONS = Config()


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (Mode(), "bad-request"),
        (Mode(cores="2"), "bad-request"),
        (Mode(cores=True), "bad-request"),
        (Mode(cpu_khz=403200.0), "bad-request"),
        (Mode(emc_hz=1600000000), "not-allowed"),
        (Mode(cores=5), "off-table"),
        (Mode(cores=1), "below-floor"),
        (Mode(cores=2, cpu_khz=102000), "below-floor"),
    ],
)
def test_what_is_no_table_value_above_the_floor_is_refused_with_its_kind(mode, kind) -> None:
    allow_list.check_mode(Mode(2, 403200, 76800000), TABLES, OPTIONS)
    with pytest.raises(PowerdRefusal) as caught:
        allow_list.check_mode(mode, TABLES, OPTIONS)
    assert caught.value.kind == kind
    assert kind != "off-table" or "1, 2, 3, 4" in caught.value.text


def test_a_knob_whose_whole_table_is_below_the_floor_keeps_its_highest_value() -> None:
    assert allow_list.above_floor(KnobTables((1,), (102000,)), OPTIONS) == KnobTables((1,), (102000,))


def test_a_preset_is_found_by_id_and_by_name_in_any_case() -> None:
    presets = [Preset(0, "MAXN", Mode(), False, True), Preset(8, "5W", Mode(), False, False)]
    assert allow_list.find_preset(presets, "maxn") is allow_list.find_preset(presets, 0)
    assert allow_list.find_preset(presets, "8").name == "5W"
    with pytest.raises(PowerdRefusal, match=r"MAXN \(0\), 5W \(8\)"):
        allow_list.find_preset(presets, "7W")


def test_a_preset_below_the_floor_or_with_another_mask_is_refused() -> None:
    for preset, kind in [
        (Preset(1, "1C", Mode(cores=1), False, False), "below-floor"),
        (Preset(2, "7W", Mode(cores=4), True, False), "reboot-needed"),
    ]:
        with pytest.raises(PowerdRefusal) as caught:
            allow_list.check_preset(preset, TABLES, OPTIONS)
        assert caught.value.kind == kind
    allow_list.check_preset(Preset(0, "MAXN", Mode(), False, True), TABLES, OPTIONS)
