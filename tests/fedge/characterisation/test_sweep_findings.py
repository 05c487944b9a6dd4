"""Repeats that differ by more than their minibatches explain are told, and those that do not are not."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.characterised_points import Noise, Truth, sweep, varied

from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.sweep_findings import (
    add_repeat_notes,
    compute_variability,
    find_differing_repeats,
    find_variability,
)
from fedge.characterisation.sweep_plan import SweepPoint

POINT = SweepPoint("here", "net")


def _repeated(by: float, count: int = 2, noise: Noise | None = None, seed: int = 0) -> tuple[PointStats, ...]:
    """Each repeat computes for so much more than the one before it."""
    points = [replace(POINT, repeat=repeat) for repeat in range(count)]
    return sweep(points, lambda p: Truth(compute_s=0.007 * (1 + by) ** p.repeat), noise, seed=seed)


def test_repeats_that_are_a_third_apart_are_told_with_a_note_at_each():
    stats = (*_repeated(0.6), *sweep([replace(POINT, workers=2)], lambda _: Truth()))
    ((points, spread),) = find_differing_repeats(stats).items()
    assert spread == pytest.approx(0.35, abs=0.02)
    assert set(points) == {one.key for one in stats[:2]}
    note = "repeats differ by 35 %, more than their minibatches explain"
    assert [one.notes for one in add_repeat_notes(stats)] == [(note,), (note,), ()]
    assert all(one.settled for one in stats)


def test_the_finding_about_repeats_says_in_how_many_settings():
    other = [replace(POINT, workers=2, repeat=repeat) for repeat in range(2)]
    (found,) = find_variability((*_repeated(0.6), *sweep(other, lambda _: Truth())))
    assert found.statements[0].remark == "in 1 of 2 settings more than the minibatches explain"


@pytest.mark.parametrize("noise", [Noise(), Noise(step=0.3), Noise(step=0.2, phi=0.5)])
def test_of_minibatches_that_scatter_no_repeats_are_told_but_by_chance(noise):
    told = sum(len(find_differing_repeats(_repeated(0.0, 3, noise, seed))) for seed in range(20))
    assert told <= 2


def test_one_look_has_nothing_to_differ_from():
    assert find_differing_repeats(_repeated(0.6, 1)) == {}
    assert find_differing_repeats(()) == {}


NANO = SweepPoint("nano-1", "net")


def _truth(point: SweepPoint) -> Truth:
    return Truth(
        compute_s=0.01 + 0.001 * point.repeat + (0.005 if point.board == "nano-2" else 0.0),
        stall_s=0.0,
        copy_s=0.0,
        overhead_s=0.0,
    )


def test_repeats_and_boards_vary_as_the_formulas_say():
    points = [replace(one, board=board) for board in ("nano-1", "nano-2") for one in varied(NANO, "repeat", range(3))]
    found = {
        (one.scope, one.board, one.quantity): one
        for one in compute_variability(sweep(points, _truth, Noise(step=0.0, power=0.0)))
    }
    assert set(found) == {
        (*who, quantity)
        for who in (("within", "nano-1"), ("within", "nano-2"), ("between", "nano"))
        for quantity in ("e2e_s", "energy_j")
    }
    within, between = found["within", "nano-1", "e2e_s"], found["between", "nano", "e2e_s"]
    assert within.values == pytest.approx((1.0, 1.1, 1.2))
    assert within.spread == pytest.approx(0.2)
    assert within.cv == pytest.approx(np.std([1.0, 1.1, 1.2], ddof=1) / 1.1)
    assert (between.names, between.values) == (("nano-1", "nano-2"), pytest.approx((1.1, 1.6)))
    assert between.spread == pytest.approx(0.5 / 1.1)
    assert len(between.points) == 6


def test_a_setting_measured_once_does_not_vary():
    assert compute_variability(sweep(varied(NANO, "workers", [0, 1]), _truth)) == ()


def test_boards_of_different_kinds_are_not_compared():
    assert compute_variability(sweep([NANO, replace(NANO, board="tx2-1")], _truth)) == ()
