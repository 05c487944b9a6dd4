"""The time-energy plane against brute force."""

from __future__ import annotations

import pytest
from contracts.characterised_points import Noise, Truth, sweep, varied
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.characterisation.point_statistics import pool_repeats
from fedge.characterisation.sweep_findings import compute_plane
from fedge.characterisation.sweep_plan import SweepPoint

POINT = SweepPoint("here", "net")


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.001, 0.1), st.floats(1.0, 50.0)), min_size=2, max_size=8))
def test_front_and_beaten_settings_are_those_of_brute_force(costs):
    points = varied(POINT, "workers", range(len(costs)))
    truth = [Truth(compute_s=seconds, power_w=watts) for seconds, watts in costs]
    settings_seen = pool_repeats(
        sweep(points, lambda p: truth[p.workers], Noise(step=0.01, power=0.01), steps=20, epochs=2)
    )
    found = compute_plane(settings_seen)
    both = [(one.stats.e2e_s.value, one.stats.energy_j.value) for one in settings_seen if one.stats.energy_j]
    unbeaten = {
        i for i, a in enumerate(both) if not any(b[0] <= a[0] and b[1] <= a[1] for j, b in enumerate(both) if j != i)
    }
    assert set(found.front) == unbeaten
    assert [both[i][0] for i in found.front] == sorted(both[i][0] for i in found.front)
    assert found.knee in found.front
    for worse, better in found.dominated:
        assert both[better][0] < both[worse][0]
        assert both[better][1] < both[worse][1]


def test_settings_of_which_none_is_certainly_worse_are_not_beaten():
    found = compute_plane(pool_repeats(sweep(varied(POINT, "workers", range(6)), lambda _: Truth(), Noise(step=0.2))))
    assert found.dominated == ()


def test_the_knee_is_where_little_energy_more_saves_much_time():
    truth = [
        Truth(compute_s=0.010, power_w=20.0),
        Truth(compute_s=0.011, power_w=9.0),
        Truth(compute_s=0.04, power_w=2.3),
    ]
    found = compute_plane(pool_repeats(sweep(varied(POINT, "workers", range(3)), lambda p: truth[p.workers])))
    assert (found.front, found.knee) == ((0, 1, 2), 1)


@pytest.mark.parametrize("metered", [True, False])
def test_a_plane_needs_two_settings_with_known_energy(metered):
    points = varied(POINT, "workers", range(1 if metered else 3))
    assert compute_plane(pool_repeats(sweep(points, lambda _: Truth(), metered=metered))) is None
