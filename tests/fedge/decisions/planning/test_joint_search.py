"""The joint plan against every choice of every client, and its bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.planning import joint_search
from fedge.decisions.planning.joint_search import JointLimits, JointProblem, solve_joint

SLACK = 1.0 + 1e-9


def draw_problem(
    seed: int,
    clients: int,
    modes: int,
    options: int,
    time_weight: float = 0.5,
    *,
    priced: bool = False,
    on_batteries: float = 0.0,
) -> JointProblem:
    """Clients of unlike speed, whose slower modes save energy, with options that do less work or send less.

    Their joules may have unlike prices, some of them 0, and a part of them may have batteries with little charge.
    """
    rng = np.random.default_rng(seed)
    slowdown = np.sort(rng.uniform(1.0, 4.0, (clients, modes)), axis=1)
    idle_w = rng.uniform(1.0, 6.0, clients)
    work_s = rng.choice([5.0, 20.0, 60.0], (clients, 1)) * slowdown
    above_w = rng.uniform(8.0, 30.0, (clients, 1)) / slowdown**2 * rng.lognormal(0.0, 0.1, work_s.shape)
    share = rng.uniform(0.2, 2.0, (clients, options))
    fixed_s = rng.uniform(0.5, 20.0, (clients, options))
    value = rng.dirichlet(np.ones(clients))[:, None] * share / (0.2 + 0.8 * share) * (rng.random(share.shape) < 0.9)
    whole_s, whole_j = float((fixed_s + work_s[:, :1]).max()), float((work_s * above_w)[:, 0].sum())
    prices = time_weight / whole_s, (1.0 - time_weight) / (whole_j + idle_w.sum() * whole_s)
    watts = idle_w[:, None] + above_w
    price = rng.choice([0.0, 0.3, 1.0, 2.5], clients) if priced else np.ones(clients)
    spare_j = whole_j / clients * rng.uniform(0.0, 2.0, clients)
    has_battery = rng.random(clients) < on_batteries
    return JointProblem(
        *(work_s, work_s * above_w, watts, fixed_s, 0.8 * fixed_s, share, value, price),
        spare_j=np.where(has_battery, spare_j, np.inf),
        drain_w=np.where(has_battery, idle_w, 0.0),
        idle_w=float(idle_w.sum()),
        priced_idle_w=float((price * idle_w).sum()),
        time_price=prices[0],
        energy_price=prices[1],
    )


def list_choices(problem: JointProblem, client: int) -> Iterator[tuple[float, float, float, float]]:
    """End, joules above idling, watts and value of every option in every mode, and of resting."""
    yield (0.0, 0.0, 0.0, 0.0)
    options, modes = problem.value.shape[1], problem.work_s.shape[1]
    for k, j in product(range(options), range(modes)):
        if problem.value[client, k] > 0.0 and np.isfinite(problem.work_s[client, j]):
            scale = problem.scale[client, k]
            yield (
                float(problem.fixed_s[client, k] + scale * problem.work_s[client, j]),
                float(problem.fixed_j[client, k] + scale * problem.above_j[client, j]),
                float(problem.power_w[client, j]),
                float(problem.value[client, k]),
            )


def find_least_cost(problem: JointProblem, limits: JointLimits) -> float | None:
    """The least cost of all choices of all clients that keep the limits."""
    least = np.inf
    for chosen in product(*(list(list_choices(problem, i)) for i in range(len(problem.value)))):
        ends_s, joules, watts, values = zip(*chosen, strict=True)
        end_s, value = max(ends_s), sum(values)
        energy_j = problem.idle_w * end_s + sum(joules)
        kept = end_s <= limits.deadline_s * SLACK and energy_j <= limits.energy_j * SLACK
        kept &= not find_empty(problem, values, joules, end_s)
        if value > 0.0 and kept and sum(watts) <= limits.power_w * SLACK and value * SLACK >= limits.min_value:
            priced_j = problem.priced_idle_w * end_s + float(np.dot(problem.price, joules))
            least = min(least, (problem.time_price * end_s + problem.energy_price * priced_j) / value)
    return least if np.isfinite(least) else None


def find_empty(problem: JointProblem, values: Sequence[float], joules: Sequence[float], end_s: float) -> list[int]:
    """The working clients whose joules until the round's end are more than their batteries have above the floor."""
    return [
        i
        for i, value in enumerate(values)
        if value > 0.0 and joules[i] + problem.drain_w[i] * end_s > problem.spare_j[i] * SLACK
    ]


@st.composite
def problems_with_limits(draw: st.DrawFn) -> tuple[JointProblem, JointLimits]:
    sizes = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    problem = draw_problem(
        draw(st.integers(0, 10**6)),
        *sizes,
        time_weight=draw(st.sampled_from([0.0, 0.5, 1.0])),
        priced=draw(st.booleans()),
        on_batteries=draw(st.sampled_from([0.0, 0.7, 1.0])),
    )
    some = st.none() | st.floats(0.2, 1.0)
    whole = replace_limits(problem)
    share = [draw(some) for _ in range(4)]
    kept = [np.inf if part is None else part * full for part, full in zip(share[:3], whole, strict=True)]
    return problem, JointLimits(*kept, min_value=share[3] or 0.0)


def replace_limits(problem: JointProblem) -> tuple[float, float, float]:
    """Seconds, joules and watts of a round in which every client does all in its fastest mode."""
    end_s = float((problem.fixed_s + problem.scale * problem.work_s[:, :1]).max())
    return end_s, problem.idle_w * end_s + float(problem.above_j[:, 0].sum()), float(problem.power_w[:, 0].sum())


@given(problems_with_limits())
def test_a_small_fleets_plan_is_within_half_a_percent_of_the_best_of_all_choices(
    drawn,
):
    problem, limits = drawn
    best, found = find_least_cost(problem, limits), solve_joint(problem, limits)
    if best is None:
        assert found is None or not found.feasible
    else:
        assert found.feasible
        assert best <= found.cost * SLACK
        assert found.cost <= best * 1.005 + 1e-12
        assert found.bound <= best * SLACK + 1e-12


@given(problems_with_limits())
def test_rounding_the_relaxed_optimum_keeps_the_limits_and_its_bound_holds(
    drawn,
):
    problem, limits = drawn
    best = find_least_cost(problem, limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint_search, "EXACT_CLIENTS", 0)
        patch.setattr(joint_search, "MAX_CANDIDATES", 20)
        found = solve_joint(problem, limits)
    if found is not None and found.feasible:
        assert found.bound <= best * SLACK
        assert best <= found.cost * SLACK


@pytest.mark.parametrize(("seed", "power_share", "min_value"), [(10, np.inf, 0.8), (22, 0.5, 0.0), (39, np.inf, 0.5)])
def test_a_few_clients_get_the_best_of_all_choices_where_the_rounded_optimum_is_not(seed, power_share, min_value):
    problem = draw_problem(seed, clients=4, modes=3, options=3)
    limits = JointLimits(power_w=power_share * replace_limits(problem)[2], min_value=min_value)
    found = solve_joint(problem, limits)
    assert found.cost == pytest.approx(find_least_cost(problem, limits), rel=1e-9)
    assert found.gap <= joint_search.EXACT_GAP


@pytest.mark.parametrize("seed", range(30))
def test_clients_with_fewer_modes_than_others_get_the_best_of_all_choices(seed):
    whole = draw_problem(seed, clients=4, modes=4, options=2)
    lacking = np.arange(4) >= np.random.default_rng(seed).integers(1, 5, 4)[:, None]
    problem = replace(
        whole,
        work_s=np.where(lacking, np.inf, whole.work_s),
        above_j=np.where(lacking, np.inf, whole.above_j),
    )
    for limits in (JointLimits(), JointLimits(min_value=0.6)):
        best, found = find_least_cost(problem, limits), solve_joint(problem, limits)
        assert (found.cost if found.feasible else None) == pytest.approx(best, rel=1e-9)


def test_a_large_fleets_plan_is_within_a_percent_of_its_bound():
    problem = draw_problem(3, clients=400, modes=16, options=6)
    most_w, most_value = replace_limits(problem)[2], float(problem.value.max(axis=1).sum())
    for limits in (
        JointLimits(),
        JointLimits(power_w=0.15 * most_w, min_value=0.5 * most_value),
        JointLimits(min_value=0.7),
        JointLimits(min_value=0.3, deadline_s=25.0),
    ):
        found = solve_joint(problem, limits)
        assert found.feasible
        assert found.gap <= 0.01


def test_a_fleet_of_too_many_ends_of_options_is_planned_as_well_on_a_grid_of_deadlines(monkeypatch):
    monkeypatch.setattr(joint_search, "MAX_CANDIDATES", 0)
    problem = draw_problem(3, clients=100, modes=16, options=6)
    found = solve_joint(problem, JointLimits(min_value=0.9 * float(problem.value.max(axis=1).sum())))
    assert found.feasible
    assert found.gap <= 0.01


@given(problems_with_limits(), st.booleans())
def test_no_battery_is_emptied_below_its_floor_whatever_limits_are_given_up(drawn, exact):
    problem, limits = drawn
    with pytest.MonkeyPatch.context() as patch:
        if not exact:
            patch.setattr(joint_search, "EXACT_CLIENTS", 0)
        found = solve_joint(problem, replace(limits, min_value=5.0))
    possible = find_least_cost(problem, JointLimits()) is not None
    assert (found is not None) == possible
    if found is not None:
        k, i = np.maximum(found.option, 0), np.arange(len(found.option))
        values = np.where(found.option >= 0, problem.value[i, k], 0.0)
        joules = problem.fixed_j[i, k] + problem.scale[i, k] * problem.above_j[i, found.mode]
        assert not find_empty(problem, values, joules, found.deadline_s)


def test_clients_of_dear_energy_do_less_and_the_reported_energy_has_no_price():
    plain = draw_problem(5, clients=4, modes=3, options=3, time_weight=0.0)
    before = solve_joint(plain, JointLimits())
    dear = np.where(np.arange(4) == np.flatnonzero(before.option >= 0)[0], 50.0, 1.0)
    after = solve_joint(replace(plain, price=dear), JointLimits())
    assert after.option[dear > 1.0] < 0
    working, k = np.flatnonzero(after.option >= 0), after.option[after.option >= 0]
    above_j = plain.fixed_j[working, k] + plain.scale[working, k] * plain.above_j[working, after.mode[working]]
    assert after.energy_j == pytest.approx(plain.idle_w * after.deadline_s + above_j.sum())


def test_limits_that_cannot_be_kept_are_dropped_before_the_one_on_watts():
    problem = draw_problem(2, clients=3, modes=3, options=2)
    power_w = 1.05 * float(problem.power_w.min())
    found = solve_joint(problem, JointLimits(deadline_s=0.1, energy_j=1.0, power_w=power_w, min_value=0.9))
    assert not found.feasible
    working = np.flatnonzero(found.option >= 0)
    assert 0.0 < problem.power_w[working, found.mode[working]].sum() <= power_w


def test_without_an_option_of_any_worth_there_is_no_plan():
    problem = draw_problem(1, clients=2, modes=1, options=2)
    assert solve_joint(replace(problem, value=np.zeros((2, 2))), JointLimits()) is None
