"""Whatever befalls a process, nothing acknowledged is lost, and what its user does next leads to the same end."""

from __future__ import annotations

import pytest
from faults.fault_points import KILL, NotHeld, require, try_point
from faults.subjects import SUBJECTS

POINTS = {"store": 4, "characterise": 2, "profile": 2, "powerd": 4, "ingest": 2, "local": 5}
"""Of the subjects that are quick; `make test-faults` tries them all."""
MOST_FAULTS = 4
"""Of each other subject."""
BY_HAND = {"fleet"}
"""Subjects of `make test-faults` alone: a fault takes a minute, and under load Flower's own limits end runs."""


@pytest.mark.slow
@pytest.mark.parametrize("name", POINTS)
def test_a_fault_at_a_random_instant_loses_nothing(name, tmp_path):
    subject = SUBJECTS[name]
    with subject.open(tmp_path) as attack:
        outcomes = [try_point(attack, subject.faults[n % len(subject.faults)], n) for n in range(POINTS[name])]

    assert [f"point {one.number} ({one.fault}): {one.failure}" for one in outcomes if one.failure] == []


@pytest.mark.long
@pytest.mark.xdist_group("simulations")
@pytest.mark.parametrize("name", [name for name in SUBJECTS if name not in {*POINTS, *BY_HAND}])
def test_faults_of_the_first_kinds_lose_nothing(name, tmp_path):
    subject = SUBJECTS[name]
    with subject.open(tmp_path) as attack:
        outcomes = [
            try_point(attack, fault, n) for n, fault in enumerate([*dict.fromkeys(subject.faults)][:MOST_FAULTS])
        ]

    assert [f"point {one.number} ({one.fault}): {one.failure}" for one in outcomes if one.failure] == []


def test_what_does_not_hold_and_what_breaks_the_attack_are_failures():
    def lose(*_: object) -> bool:
        require(False, "a row is lost")
        return True

    def break_off(*_: object) -> bool:
        raise KeyError("x")

    assert try_point(lose, KILL, 1).failure == "a row is lost"
    assert "KeyError" in try_point(break_off, KILL, 1).failure
    assert try_point(lambda *_: False, KILL, 1).hit is False
    with pytest.raises(NotHeld):
        require([], "nothing")
