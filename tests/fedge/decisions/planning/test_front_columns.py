"""Fronts as columns: every figure is the front's, a broken front is left out and harms nobody else."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from contracts.fronts import MODE, a_front, above_j, certain_front, end_s, fleets, quarters, some_front
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.decisions.planning.front_columns import (
    board_maxn_energy_j,
    board_round_energy_j,
    build_columns,
    find_least_energy_point,
    running_minimum,
)
from fedge.types import Front, FrontPoint

SOUND = a_front([(1.0, 8.0), (2.0, 3.0)], 1.0, 0.5)


@given(fleets(some_front), st.sampled_from([-1.0, 0.0, 1.0, 2.5]))
@settings(deadline=None)
def test_every_board_s_points_are_there_by_their_end_with_the_margin(fronts, z):
    columns = build_columns(fronts, z)
    assert columns.boards == tuple(sorted(fronts))
    for i, board in enumerate(columns.boards):
        front, mine = fronts[board], slice(columns.offsets[i], columns.offsets[i + 1])
        points = (*front.points, front.maxn)
        found = zip(columns.safe_ends_s[mine], columns.above_idle_j[mine], columns.ends_s[mine], strict=True)
        wanted = sorted((end_s(front, p, z), above_j(front, p), end_s(front, p)) for p in points)
        assert sorted(found) == [pytest.approx(row) for row in wanted]
        assert (np.diff(columns.safe_ends_s[mine]) >= 0).all()
        assert columns.maxn_s[i] == end_s(front, front.maxn)


@given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=6), min_size=1, max_size=6))
def test_the_lowest_so_far_starts_anew_with_every_board(boards):
    offsets = np.concatenate([[0], np.cumsum([len(values) for values in boards])])
    expected = [min(values[: k + 1]) for values in boards for k in range(len(values))]
    assert running_minimum(np.concatenate(boards).astype(float), offsets).tolist() == expected


def with_point(**change: float) -> Front:
    return dataclasses.replace(SOUND, points=(SOUND.points[0], dataclasses.replace(SOUND.points[1], **change)))


BROKEN = {
    "no points": dataclasses.replace(SOUND, points=()),
    "time is not a number": with_point(work_s=math.nan),
    "time is infinite": with_point(work_s=math.inf),
    "time is zero": with_point(work_s=0.0),
    "time is negative": with_point(work_s=-1.0),
    "energy is negative": with_point(work_j=-1.0),
    "energy is not a number": with_point(work_j=math.nan),
    "spread is not a number": with_point(time_sd_log=math.nan),
    "spread is beyond all measure": with_point(time_sd_log=1e6),
    "figures beyond all measure": with_point(work_s=1e300, work_j=1e300),
    "MAXN is broken": dataclasses.replace(SOUND, maxn=FrontPoint(MODE, math.nan, 1.0)),
    "link is negative": dataclasses.replace(SOUND, link_s=-1.0),
    "idle power is infinite": dataclasses.replace(SOUND, idle_w=math.inf),
    "idle power at MAXN is negative": dataclasses.replace(SOUND, maxn_idle_w=-0.1),
    "upload is not a number": dataclasses.replace(SOUND, up_s=math.nan),
    "upload is longer than both transfers": dataclasses.replace(SOUND, up_s=SOUND.link_s + 1.0),
    "upload has no bytes": dataclasses.replace(SOUND, up_share=0.0),
    "upload has hardly any bytes": dataclasses.replace(SOUND, link_s=2.0, up_s=1.0, up_share=5e-324),
    "share of bytes is not a number": dataclasses.replace(SOUND, up_share=math.nan),
    "share of bytes is infinite": dataclasses.replace(SOUND, up_share=math.inf),
    "latency is not a number": dataclasses.replace(SOUND, latency_s=math.nan),
    "encoding takes negative time": dataclasses.replace(SOUND, encode_s=-1.0),
    "encoding takes infinite energy": dataclasses.replace(SOUND, encode_j=math.inf),
    "fixed share is more than all": dataclasses.replace(SOUND, fixed_share=1.5),
    "fixed share is not a number": dataclasses.replace(SOUND, fixed_share=math.nan),
}


@pytest.mark.parametrize("front", BROKEN.values(), ids=BROKEN)
def test_a_broken_front_is_left_out_and_the_others_stay_as_they_are(front):
    alone, both = build_columns({"a": SOUND}, 1.0), build_columns({"a": SOUND, "broken": front}, 1.0)
    assert (both.boards, both.left_out) == (("a",), ("broken",))
    for field in dataclasses.fields(alone):
        if field.name not in {"boards", "left_out"}:
            assert np.array_equal(getattr(alone, field.name), getattr(both, field.name))


def test_no_board_at_all_gives_empty_columns():
    assert len(build_columns({})) == 0
    assert build_columns({"a": BROKEN["no points"]}).left_out == ("a",)


@given(certain_front, quarters)
def test_least_energy_at_a_deadline_is_what_brute_force_finds(front, deadline_s):
    point = find_least_energy_point(front, deadline_s)
    in_time = [p for p in front.points if front.link_s + p.work_s <= deadline_s]
    if in_time:
        assert point in in_time
        assert board_round_energy_j(front, point, deadline_s) == pytest.approx(
            min(board_round_energy_j(front, p, deadline_s) for p in in_time)
        )
    else:
        assert point.work_s == min(p.work_s for p in front.points)


def test_a_deadline_that_rounding_alone_would_miss_is_met():
    front = a_front([(0.2, 20.0), (0.3, 10.0)], 0.0, 0.1 + 0.2)
    assert 0.1 + 0.2 + 0.3 > 0.6
    assert find_least_energy_point(front, 0.6).work_s == 0.3


def test_a_front_without_points_is_its_maxn():
    front = dataclasses.replace(a_front([(10.0, 4.0)], 1.0, 2.0), points=())
    assert find_least_energy_point(front, 99.0) == front.maxn


def test_a_board_done_after_the_round_is_counted_until_it_is_done():
    front = a_front([(10.0, 4.0)], 1.0, 2.0)
    assert board_round_energy_j(front, front.maxn, 5.0) == 40.0 + 2.0
    assert board_round_energy_j(front, front.maxn, 20.0) == 40.0 + 10.0


def test_a_board_at_maxn_works_and_waits_at_maxn():
    front = dataclasses.replace(a_front([(10.0, 4.0), (20.0, 1.0)], 1.0, 2.0), maxn_idle_w=3.0)
    assert board_maxn_energy_j(front, 30.0) == 10.0 * 4.0 + 20.0 * 3.0
    assert board_maxn_energy_j(front, 5.0) == 10.0 * 4.0 + 2.0 * 3.0  # until its own end, the link included
