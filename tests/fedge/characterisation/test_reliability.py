"""Repeats that differ by more than their minibatches explain are told, and those that do not are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contracts.characterised_points import PLAN, Noise, Truth, sweep

from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.reliability import add_repeat_notes, find_differing_repeats
from fedge.characterisation.sweep_findings import compute_findings
from fedge.characterisation.sweep_plan import SweepPoint

POINT = SweepPoint("here", "net")


def _repeated(by: float, count: int = 2, noise: Noise | None = None, seed: int = 0) -> tuple[PointStats, ...]:
    """Each repeat computes for so much more than the one before it."""
    points = [replace(POINT, repeat=repeat) for repeat in range(count)]
    return sweep(points, lambda p: Truth(compute_s=0.007 * (1 + by) ** p.repeat), noise, seed=seed)


def test_repeats_that_are_a_third_apart_are_told_with_a_note_at_each() -> None:
    stats = (*_repeated(0.6), *sweep([replace(POINT, workers=2)], lambda _: Truth()))
    (found,) = find_differing_repeats(stats)
    assert found.spread == pytest.approx(0.35, abs=0.02)
    assert set(found.points) == {one.key for one in stats[:2]}
    assert [one.notes for one in add_repeat_notes(stats)] == [(found.note,), (found.note,), ()]
    assert found.note == "repeats differ by 35 %, more than their minibatches explain"
    assert all(one.settled for one in stats)


def test_the_finding_about_repeats_says_in_how_many_settings() -> None:
    other = [replace(POINT, workers=2, repeat=repeat) for repeat in range(2)]
    titles = [one.title for one in compute_findings((*_repeated(0.6), *sweep(other, lambda _: Truth())), PLAN)]
    assert any("in 1 of 2 settings more than the minibatches explain" in title for title in titles)


@pytest.mark.parametrize("noise", [Noise(), Noise(step=0.3), Noise(step=0.2, phi=0.5)])
def test_of_minibatches_that_scatter_no_repeats_are_told_but_by_chance(noise: Noise) -> None:
    told = sum(len(find_differing_repeats(_repeated(0.0, 3, noise, seed))) for seed in range(20))
    assert told <= 2


def test_one_look_has_nothing_to_differ_from() -> None:
    assert find_differing_repeats(_repeated(0.6, 1)) == ()
    assert find_differing_repeats(()) == ()
