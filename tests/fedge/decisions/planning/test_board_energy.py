"""One front at a deadline, against brute force over its points."""

from __future__ import annotations

import dataclasses

import pytest
from contracts.fronts import a_front, certain_front, quarters
from hypothesis import given

from fedge.decisions.planning.board_energy import board_maxn_energy_j, board_round_energy_j, find_least_energy_point
from fedge.types import Front


@given(certain_front, quarters)
def test_least_energy_at_a_deadline_is_what_brute_force_finds(front: Front, deadline_s: float) -> None:
    point = find_least_energy_point(front, deadline_s)
    in_time = [p for p in front.points if front.link_s + p.work_s <= deadline_s]
    if in_time:
        assert point in in_time
        assert board_round_energy_j(front, point, deadline_s) == pytest.approx(
            min(board_round_energy_j(front, p, deadline_s) for p in in_time)
        )
    else:
        assert point.work_s == min(p.work_s for p in front.points)


def test_a_deadline_that_rounding_alone_would_miss_is_met() -> None:
    front = a_front([(0.2, 20.0), (0.3, 10.0)], 0.0, 0.1 + 0.2)
    assert 0.1 + 0.2 + 0.3 > 0.6
    assert find_least_energy_point(front, 0.6).work_s == 0.3


def test_a_front_without_points_is_its_maxn() -> None:
    front = dataclasses.replace(a_front([(10.0, 4.0)], 1.0, 2.0), points=())
    assert find_least_energy_point(front, 99.0) == front.maxn


def test_a_board_done_after_the_round_is_counted_until_it_is_done() -> None:
    front = a_front([(10.0, 4.0)], 1.0, 2.0)
    assert board_round_energy_j(front, front.maxn, 5.0) == 40.0 + 2.0
    assert board_round_energy_j(front, front.maxn, 20.0) == 40.0 + 10.0


def test_a_board_at_maxn_works_and_waits_at_maxn() -> None:
    front = dataclasses.replace(a_front([(10.0, 4.0), (20.0, 1.0)], 1.0, 2.0), maxn_idle_w=3.0)
    assert board_maxn_energy_j(front, 30.0) == 10.0 * 4.0 + 20.0 * 3.0
    assert board_maxn_energy_j(front, 5.0) == 10.0 * 4.0 + 2.0 * 3.0  # until its own end, the link included


@given(certain_front, quarters)
def test_maxn_that_waits_in_the_mode_of_all_others_is_one_of_the_points(front: Front, round_s: float) -> None:
    alike = dataclasses.replace(front, maxn_idle_w=front.idle_w)
    assert board_maxn_energy_j(alike, round_s) == pytest.approx(board_round_energy_j(alike, alike.maxn, round_s))
