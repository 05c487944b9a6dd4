"""A sweep is the cross product of its values; the order is the seed's alone, and every repeat holds every point."""

from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.sweep_plan import SweepPoint, cross_knobs, order_points

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
