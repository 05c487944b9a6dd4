"""A point's knobs one by one, and in words."""

from dataclasses import replace

from fedge.characterisation.plan_reader import read_resolved_plan
from fedge.characterisation.point_knobs import (
    describe_differences,
    describe_other_knobs,
    describe_point,
    describe_setting,
    get_knob_value,
    without_knob,
)
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.types import PowerMode

POINT = SweepPoint("nano-1", "net", mode=PowerMode(4, 1479.0, 921.6, 1600.0), workers=1)


def test_two_points_that_differ_in_one_knob_are_the_same_without_it():
    other = replace(POINT, workers=3)
    assert without_knob(POINT, "workers") == without_knob(other, "workers")
    assert without_knob(POINT, "storage") != without_knob(other, "storage")
    slower = replace(POINT, mode=PowerMode(4, 1479.0, 76.8, 1600.0))
    assert without_knob(POINT, "gpu_mhz") == without_knob(slower, "gpu_mhz")
    assert (get_knob_value(slower, "gpu_mhz"), get_knob_value(replace(POINT, mode=None), "gpu_mhz")) == (76.8, None)


def test_a_setting_in_words_leaves_out_what_goes_without_saying():
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


def test_a_setting_is_told_from_others_by_what_differs():
    assert POINT.mode is not None
    slow = replace(POINT, mode=replace(POINT.mode, gpu_mhz=76.8), workers=0)
    assert describe_differences(slow, [POINT, slow]) == "GPU 76.8 MHz, no workers"
    assert describe_differences(POINT, [POINT, replace(POINT, dvfs=True)]) == "DVFS off"
    both = replace(POINT, mode=PowerMode(2, 1479.0, 76.8, 1600.0))
    assert describe_differences(both, [POINT, both]) == "mode 2c/1479/76.8/1600 MHz"
    assert describe_differences(POINT, [POINT, POINT]) == ""


def test_repeats_count_from_one_and_the_first_is_not_told():
    words = describe_point(SweepPoint("here", "net"))
    assert words.startswith("here, net: training")
    assert "repeat" not in words
    assert describe_point(SweepPoint("here", "net", repeat=1)) == f"{words}, repeat 2"


def test_every_point_of_a_plan_has_its_own_words(project_root):
    for name in ("emulated-quick", "modes", "loader", "xavier-nx", "over-time"):
        points = read_resolved_plan(
            project_root / "experiments" / "configs" / "characterisation" / f"{name}.yaml"
        ).plan.points
        assert len({describe_point(point) for point in points}) == len(points), name
