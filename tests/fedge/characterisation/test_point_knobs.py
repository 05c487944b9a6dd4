"""A point's knobs one by one, and in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.finding_text import (
    QuantityChange,
    describe_changes,
    describe_knob_change,
    describe_shares,
    format_count,
    format_interval,
    format_percent,
    format_quantity,
    format_seconds,
    join_words,
    make_change,
)
from fedge.characterisation.point_knobs import (
    describe_differences,
    describe_other_knobs,
    describe_setting,
    get_knob_value,
    without_knob,
)
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.types import PowerMode

POINT = SweepPoint("nano-1", "net", mode=PowerMode(4, 1479.0, 921.6, 1600.0), workers=1)


def _of(*found: tuple[float, str]) -> list[QuantityChange]:
    return [make_change(ratio, quantity) for ratio, quantity in found]


def test_two_points_that_differ_in_one_knob_are_the_same_without_it() -> None:
    other = replace(POINT, workers=3)
    assert without_knob(POINT, "workers") == without_knob(other, "workers")
    assert without_knob(POINT, "storage") != without_knob(other, "storage")
    slower = replace(POINT, mode=PowerMode(4, 1479.0, 76.8, 1600.0))
    assert without_knob(POINT, "gpu_mhz") == without_knob(slower, "gpu_mhz")
    assert (get_knob_value(slower, "gpu_mhz"), get_knob_value(replace(POINT, mode=None), "gpu_mhz")) == (76.8, None)


def test_a_setting_in_words_leaves_out_what_goes_without_saying() -> None:
    assert describe_setting(POINT) == "training, mode 4c/1479/921.6/1600 MHz, batch 16, 1 worker, dropped cache"
    special = replace(
        POINT, kind="infer", mode=None, workers=2, prefetch=4, pinned=True, storage="sd", cache="warm", dvfs=True
    )
    assert (
        describe_setting(special)
        == "inference, batch 16, 2 workers, prefetch 4, pinned memory, sd, warm cache, DVFS on"
    )
    assert (
        describe_other_knobs(POINT, "gpu_mhz")
        == "4 cores, CPU 1479 MHz, memory 1600 MHz, batch 16, 1 worker, dropped cache"
    )


def test_figures_have_their_units_and_three_digits() -> None:
    said = [format_seconds(value) for value in (20161.0, 12.06, 1.6, 0.0041, 0.00031, 0.0)]
    assert said == ["20161 s", "12.1 s", "1.60 s", "4.10 ms", "310 us", "0 s"]
    assert format_quantity(830.2, "energy_j") == "830 J"
    assert format_quantity(14.23, "power_w") == "14.2 W"
    assert [format_percent(part) for part in (0.671, -0.3, 0.004, 0.0096)] == ["67 %", "30 %", "0.4 %", "1 %"]


def test_changes_are_said_by_their_direction() -> None:
    assert (
        describe_changes(_of((0.33, "stall_s"), (1.02, "power_w")))
        == "cuts the stall by 67 % but raises the power by 2 %"
    )
    assert (
        describe_changes(_of((2.5, "energy_j"), (10.3, "e2e_s")))
        == "takes 2.5 times the energy and makes the epoch's time 10.3 times as long"
    )
    assert (
        describe_changes(_of((0.5, "e2e_s"), (3.11, "power_w")))
        == "cuts the epoch's time by 50 % but takes 3.1 times the power"
    )
    assert describe_changes(_of((0.001, "stall_s"))) == "cuts the stall by over 99 %"
    assert format_interval(Estimate(0.33, 0.31, 0.35, 9)) == "-69.0 to -65.0 %"
    assert format_interval(Estimate(3.0, 2.5, 3.5, 9)) == "2.5 to 3.5 times"


@given(st.floats(0.0, 50.0).filter(lambda ratio: abs(ratio - 1.0) > 0.01))
def test_a_cut_is_never_called_a_rise(ratio: float) -> None:
    verbs = ("raises ", "makes ") if ratio > 1 else ("cuts ",)
    assert describe_changes(_of((ratio, "stall_s"))).startswith(verbs)


def test_of_several_a_range_is_said_the_lesser_change_first() -> None:
    assert describe_changes([QuantityChange("e2e_s", 0.55, 0.9)]) == "cuts the epoch's time by 10 to 45 %"
    assert describe_changes([QuantityChange("power_w", 1.3, 1.5)]) == "raises the power by 30 to 50 %"
    assert describe_changes([QuantityChange("power_w", 1.7, 2.3)]) == "takes 1.7 to 2.3 times the power"
    assert describe_shares([QuantityChange("computing", 0.92, 0.99)]) == "92 to 99 % computing"


def test_a_setting_is_told_from_others_by_what_differs() -> None:
    assert POINT.mode is not None
    slow = replace(POINT, mode=replace(POINT.mode, gpu_mhz=76.8), workers=0)
    assert describe_differences(slow, [POINT, slow]) == "GPU 76.8 MHz, no workers"
    assert describe_differences(POINT, [POINT, replace(POINT, dvfs=True)]) == "DVFS off"
    both = replace(POINT, mode=PowerMode(2, 1479.0, 76.8, 1600.0))
    assert describe_differences(both, [POINT, both]) == "mode 2c/1479/76.8/1600 MHz"
    assert describe_differences(POINT, [POINT, POINT]) == ""


def test_things_are_counted_in_the_plural_but_one() -> None:
    assert [format_count(n, what) for n, what in ((1, "point"), (2, "epoch"), (7500, "minibatch"))] == [
        "1 point", "2 epochs", "7,500 minibatches",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("knob", "before", "after", "said"),
    [
        ("workers", 1, 2, "Adding a second loader worker"),
        ("workers", 0, 4, "Having 4 loader workers instead of none"),
        ("batch_size", 1, 16, "A batch of 16 instead of 1"),
        ("cores", 2, 8, "Having 8 cores instead of 2"),
        ("cpu_mhz", 1200.0, 2265.6, "The CPU at 2265.6 instead of 1200 MHz"),
        ("storage", "sd", "ssd", "Reading from ssd instead of sd"),
        ("cache", "dropped", "warm", "A warm instead of a dropped page cache"),
        ("pinned", False, True, "Pinned instead of pageable memory"),
        ("dvfs", False, True, "DVFS on instead of off"),
        ("kind", "train", "infer", "Inference instead of training"),
    ],
)
def test_turning_a_knob_has_a_subject(knob: str, before: object, after: object, said: str) -> None:
    assert describe_knob_change(knob, before, after) == said  # type: ignore[arg-type]


def test_lists_end_in_and() -> None:
    assert [join_words(list("abc")[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
