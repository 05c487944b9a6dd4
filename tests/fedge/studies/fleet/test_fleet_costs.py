"""Every policy is judged by what it minimises, and by nothing where it minimises nothing."""

from __future__ import annotations

import pytest

from fedge.experiment import PolicySpec
from fedge.studies.fleet.fleet_costs import FleetCost, compute_objective, max_round_s

SPENT, MAXN = FleetCost(30.0, {"a": 60.0, "b": 40.0}, {}), FleetCost(20.0, {"a": 100.0, "b": 100.0}, {})


@pytest.mark.parametrize(
    ("policy", "aim"),
    [
        (PolicySpec(name="balanced"), 0.5 * 1.5 + 0.5 * 0.5),
        (PolicySpec(name="balanced", time_weight=0.25), 0.25 * 1.5 + 0.75 * 0.5),
        (PolicySpec(name="least-energy"), 100.0),
        (PolicySpec(name="fastest"), 30.0),
        (PolicySpec(name="maxn"), None),
    ],
)
def test_a_policy_is_judged_by_what_it_minimises(policy: PolicySpec, aim: float | None) -> None:
    assert compute_objective(policy, SPENT, MAXN) == aim


def test_a_round_may_be_as_long_as_the_deadline_and_the_slowdown_allow() -> None:
    assert max_round_s(PolicySpec(max_slowdown=1.5), 20.0) == 30.0
    assert max_round_s(PolicySpec(max_slowdown=1.5, deadline_s=25.0), 20.0) == 25.0
