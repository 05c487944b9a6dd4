"""A sweep is the cross product of its values; the order is the seed's alone, and every repeat holds every point."""

from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.plan_reader import read_resolved_plan
from fedge.characterisation.sweep_plan import (
    SweepPoint,
    cross_knobs,
    describe_differences,
    describe_other_knobs,
    describe_point,
    describe_setting,
    get_knob_value,
    order_points,
    without_knob,
)
from fedge.types import PowerMode

VALUES = {
    "workload": st.sampled_from(["a", "b"]),
    "kind": st.sampled_from(["train", "infer"]),
    "batch_size": st.sampled_from([1, 8, 16]),
    "workers": st.sampled_from([0, 1, 2]),
    "pinned": st.booleans(),
    "prefetch": st.sampled_from([1, 2]),
}
sweeps = st.lists(
    st.fixed_dictionaries({}, optional={k: st.lists(v, min_size=1, max_size=3) for k, v in VALUES.items()}), max_size=3
)
BASE = {"workload": "a", "workers": 1}


def brute(sweeps) -> set[SweepPoint]:
    """Every setting there is, kept where some sweep has all of its values; without workers one prefetch."""
    every = product(["a", "b"], ["train", "infer"], [1, 8, 16], [0, 1, 2], [False, True], [1, 2])
    found = set()
    for values in every:
        setting = dict(zip(VALUES, values, strict=True))
        base = {"kind": "train", "batch_size": 16, "pinned": False, "prefetch": 2, **BASE}
        for sweep in sweeps:
            if all(setting[knob] in sweep.get(knob, [base[knob]]) for knob in VALUES):
                found.add(
                    SweepPoint(
                        board="here", **{**setting, "prefetch": setting["prefetch"] if setting["workers"] else 2}
                    )
                )
    return found


@given(sweeps)
def test_the_points_are_those_of_the_brute_force_cross_product_each_once(sweeps):
    points = cross_knobs("here", BASE, sweeps)

    assert set(points) == brute(sweeps)
    assert len(set(points)) == len(points)


@given(sweeps, st.integers(0, 5), st.integers(1, 3), st.randoms())
def test_the_order_depends_on_the_seed_alone_and_repeats_follow_each_other(sweeps, seed, repeats, random):
    points = list(cross_knobs("here", BASE, sweeps))
    shuffled = points + points[:2]
    random.shuffle(shuffled)

    found = order_points(points, repeats, seed)

    assert found == order_points(shuffled, repeats, seed)
    assert [point.repeat for point in found] == [r for r in range(repeats) for _ in points]
    for r in range(repeats):
        assert {replace(point, repeat=0) for point in found if point.repeat == r} == set(points)


@given(sweeps, st.integers(0, 5))
def test_points_that_are_gained_leave_the_others_in_their_order(sweeps, seed):
    points = cross_knobs("here", BASE, sweeps)
    more = order_points((*points, SweepPoint("here", "c"), SweepPoint("here", "d")), 1, seed)

    assert [point for point in more if point.workload in "ab"] == list(order_points(points, 1, seed))


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
