"""What one knob does: which pairs are compared, how sure the ratios are, and that noise is no effect."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import combinations

import numpy as np
import pytest
from contracts.characterised_points import Noise, Truth, sweep, varied
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.characterisation.knob_effects import (
    MIN_CHANGE,
    KnobEffect,
    compute_effects_from_first,
    compute_pooled_effects,
)
from fedge.characterisation.point_statistics import PointStats, pool_repeats
from fedge.characterisation.sweep_plan import MODE_KNOBS, ORDERED_KNOBS, SweepPoint, get_knob_value
from fedge.types import PowerMode

POINT = SweepPoint("here", "net", mode=PowerMode(8, 2000.0, 1300.0, 2133.0))
QUIET = Noise(step=0.002, power=0.002)


def compute_effects(stats: Sequence[PointStats]) -> tuple[KnobEffect, ...]:
    return compute_pooled_effects(pool_repeats(stats))


def _named(found: tuple[KnobEffect, ...], knob: str, quantity: str = "e2e_s") -> list[KnobEffect]:
    return [one for one in found if (one.knob, one.quantity) == (knob, quantity)]


points = st.builds(
    SweepPoint,
    board=st.just("here"),
    workload=st.sampled_from(["a", "b"]),
    mode=st.sampled_from([PowerMode(4, 1.0, 1.0, 1.0), PowerMode(8, 1.0, 1.0, 1.0), PowerMode(8, 2.0, 1.0, 1.0)]),
    kind=st.sampled_from(["train", "infer"]),
    workers=st.integers(1, 4),
    storage=st.sampled_from(["x", "y", "z"]),
    pinned=st.booleans(),
)


def _knobs(point: SweepPoint) -> dict[str, object]:
    held = {name: value for name, value in asdict(point).items() if name != "mode"}
    return held | {name: get_knob_value(point, name) for name in MODE_KNOBS}


def _by_brute_force(many: set[SweepPoint]) -> set[tuple[str, frozenset[str]]]:
    """Every pair that differs in one knob; of an ordered one without another setting between the two."""
    found = set()
    for one, other in combinations(many, 2):
        a, b = _knobs(one), _knobs(other)
        differs = [name for name in a if a[name] != b[name]]
        if len(differs) != 1 or differs[0] == "workload":
            continue
        (knob,) = differs
        low, high = sorted([a[knob], b[knob]])
        between = [
            third
            for third in many
            if {n: v for n, v in _knobs(third).items() if n != knob} == {n: v for n, v in a.items() if n != knob}
            and low < _knobs(third)[knob] < high
        ]
        if knob not in ORDERED_KNOBS or not between:
            found.add((knob, frozenset((one.key, other.key))))
    return found


@settings(max_examples=25)
@given(st.sets(points, min_size=2, max_size=14))
def test_the_pairs_are_those_that_brute_force_finds(many):
    ordered = sorted(many, key=lambda point: point.key)
    found = compute_effects(sweep(ordered, lambda _: Truth(), steps=20, epochs=2))
    own = [(one.knob, frozenset(one.points)) for one in found if one.quantity == "e2e_s"]
    assert len(own) == len(set(own))
    assert set(own) == _by_brute_force(many)


@settings(max_examples=30)
@given(st.floats(0.1, 5.0), st.integers(0, 1000))
def test_a_ratio_that_was_put_in_comes_out(ratio, seed):
    found = compute_effects(
        sweep(
            varied(POINT, "workers", [1, 2]),
            lambda p: Truth(compute_s=0.007 * (ratio if p.workers == 2 else 1)),
            seed=seed,
        )
    )
    (effect,) = _named(found, "workers", "compute_s")
    assert effect.ratio.value == pytest.approx(ratio, rel=0.03)
    assert effect.certain == (
        abs(effect.ratio.value - 1) >= MIN_CHANGE and not effect.ratio.low <= 1 <= effect.ratio.high
    )
    if abs(ratio - 1) > 0.1:
        assert effect.certain
        assert effect.share == pytest.approx((ratio - 1) * 0.007 / 0.012, abs=0.05 * max(ratio, 1))


@pytest.mark.parametrize("noise", [Noise(), Noise(step=0.2, phi=0.5), Noise(epoch=0.02)])
def test_of_pure_noise_no_more_than_one_comparison_in_twenty_is_called_certain(noise):
    wrong = [
        effect.certain
        for seed in range(25)
        for effect in compute_effects(
            sweep(
                varied(POINT, "workers", range(4)) + varied(POINT, "storage", "abc"),
                lambda _: Truth(),
                noise,
                seed=seed,
            )
        )
    ]
    assert np.mean(wrong) <= 0.05


def test_without_workers_the_prefetch_does_not_count():
    found = compute_effects(sweep(varied(POINT, "prefetch", [1, 2]), lambda _: Truth()))
    assert not found


def test_batch_sizes_are_compared_by_sample_and_by_minibatch():
    found = compute_effects(
        sweep(varied(POINT, "batch_size", [1, 16]), lambda p: Truth(compute_s=0.01 * p.batch_size**0.5), QUIET)
    )
    (compute,), (sample,) = _named(found, "batch_size", "step_compute_s"), _named(found, "batch_size", "sample_s")
    assert compute.ratio.value == pytest.approx(4.0, rel=0.01)
    assert sample.ratio.value == pytest.approx(0.045 / 16 / 0.015, rel=0.01)
    assert not _named(found, "batch_size", "e2e_s")


def test_boards_of_a_kind_are_each_compared_with_themselves():
    """One board is twice as slow; the knob's effect on both is the same, and that alone is seen."""
    points = [replace(POINT, board=board, workers=w) for board in ("nano-1", "nano-2") for w in (0, 1)]

    def truth(point: SweepPoint) -> Truth:
        slow = 2.0 if point.board == "nano-2" else 1.0
        return Truth(
            compute_s=slow * 0.01, stall_s=slow * (0.01 if point.workers == 0 else 0.005), copy_s=0.0, overhead_s=0.0
        )

    (effect,) = _named(compute_effects(sweep(points, truth, QUIET)), "workers")
    assert effect.board == "nano"
    assert effect.ratio.value == pytest.approx(0.75, rel=0.005)
    assert effect.ratio.high - effect.ratio.low < 0.02
    assert len(effect.points) == 4


def test_the_worst_label_is_the_effects():
    points = varied(POINT, "workers", [0, 1])
    own = (*sweep(points[:1], lambda _: Truth()), *sweep(points[1:], lambda _: Truth(), label="estimated"))
    assert {one.label for one in compute_effects(own)} == {"estimated"}


def test_later_values_are_told_against_the_first_where_that_is_certain():
    sizes = varied(POINT, "batch_size", [1, 4, 16])
    found = compute_effects_from_first(
        pool_repeats(sweep(sizes, lambda p: Truth(compute_s=0.01 * p.batch_size**0.5), QUIET))
    )
    assert {(one.before, one.after) for one in found} == {(1, 16)}
    (compute,) = _named(found, "batch_size", "step_compute_s")
    assert compute.ratio.value == pytest.approx(4.0, rel=0.01)
    alike = varied(POINT, "workers", [0, 1, 2, 4])
    assert not compute_effects_from_first(pool_repeats(sweep(alike, lambda _: Truth(), QUIET)))
