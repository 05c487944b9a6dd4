"""The plan of a round in columns is that of every client by itself."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.planning.fleet_planners import plan_balanced, plan_least_energy
from fedge.experiment import PolicySpec
from fedge.studies.fleet.column_rounds import (
    CLASS_WIDTH,
    build_group_columns,
    build_planned_front,
    group_clients,
    plan_deadline,
    plan_margin_z,
)
from fedge.studies.fleet.kind_table import build_curve
from fedge.types import Front, FrontPoint, PowerMode, RoundGoal

IDLE_OF_KIND_W, MAXN_IDLE_W, LINK_S = (2.0, 3.0), (2.5, 4.0), np.array([0.5, 1.5])
RADIO_W = np.array([0.8, 5.0])
MODE = PowerMode(4, 1000.0, 500.0, 1600.0)


def draw_fleet(seed: int, clients: int, spread: float) -> tuple[Any, list[Front], Any]:
    """Two entries of two kinds, and each client's front."""
    rng = np.random.default_rng(seed)
    step_s = [np.sort(rng.uniform(0.1, 0.5, 6)) for _ in IDLE_OF_KIND_W]
    power_w = [idle_w + 0.5 / t**1.5 for t, idle_w in zip(step_s, IDLE_OF_KIND_W, strict=True)]
    entry = rng.integers(0, 2, clients)
    entry[:2] = 0, 1
    scale, power = 100.0 * np.exp(rng.uniform(0, spread, clients)), rng.uniform(0.9, 1.1, clients)
    fronts, planned = [], []
    for place in range(clients):
        kind = entry[place]
        points = tuple(
            FrontPoint(MODE, float(scale[place] * t), float(scale[place] * power[place] * t * p), 0.03)
            for t, p in zip(step_s[kind], power_w[kind], strict=True)
        )
        idle_w, top_idle_w = IDLE_OF_KIND_W[kind] * power[place], MAXN_IDLE_W[kind] * power[place]
        link = {"link_s": float(LINK_S[kind]), "radio_j": float(RADIO_W[kind] * LINK_S[kind])}
        fronts.append(Front(points, points[0], float(idle_w), maxn_idle_w=float(top_idle_w), **link))
    for kind in (0, 1):
        curve = build_curve(step_s[kind], step_s[kind] * (power_w[kind] - IDLE_OF_KIND_W[kind]))
        at_top = float(step_s[kind][0]), 0.03, float(power_w[kind][0])
        planned.append((curve, at_top, (IDLE_OF_KIND_W[kind], MAXN_IDLE_W[kind])))
    return planned, fronts, group_clients(entry, scale, power)


@pytest.mark.parametrize("policy", [PolicySpec(name="balanced", max_slowdown=1.5), PolicySpec(name="least-energy")])
@given(seed=st.integers(0, 1000), clients=st.integers(2, 40), spread=st.sampled_from([0.5, 0.001]))
def test_the_plan_is_that_of_every_client_by_itself(policy, seed, clients, spread):
    planned, fronts, groups = draw_fleet(seed, clients, spread)
    z = plan_margin_z(policy)
    built = [
        build_planned_front(curve, np.full(len(curve.rows), 0.03), z, top=top, idle_w=idle_w)
        for curve, top, idle_w in planned
    ]
    columns: Any = SimpleNamespace(kind_of=np.array([0, 1]), link_s=LINK_S, radio_w=RADIO_W)
    found = plan_deadline(policy, build_group_columns(columns, groups, built))
    named = {f"b{place:02}": front for place, front in enumerate(fronts)}
    plan = plan_balanced if policy.name == "balanced" else plan_least_energy
    expected = plan(named, tuple(named), RoundGoal(policy.name, 8, None, policy.limits))

    assert expected.deadline_s is not None
    assert found.energy_j == pytest.approx(expected.energy_j, rel=2 * CLASS_WIDTH)
    assert found.deadline_s == pytest.approx(expected.deadline_s, rel=5 * CLASS_WIDTH) or (policy.name == "balanced"), (
        "deadlines of about equal worth may be apart"
    )
    assert found.feasible == expected.feasible
    assert groups.power.sum() == pytest.approx(sum(f.idle_w / IDLE_OF_KIND_W[f.link_s > 1] for f in fronts))
