"""A policy's decision for two modes keeps the deadline with its margin and costs no more than the best single mode."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.limits import LIMIT_ROUNDING, mask_within
from fedge.decisions.policies import load_policy
from fedge.decisions.policies.mode_policies import ModeFigures, decide_least_energy
from fedge.devices import catalogue
from fedge.errors import FedgeError
from fedge.pareto import build_front
from fedge.types import Decision, Floats, Front, Modes, Predictions, RoundGoal

GRID = Modes(np.array([[c, 1000.0, g, 1600.0] for c in (4, 2) for g in (900.0, 600.0, 300.0)]))
SPEC = catalogue.find("nano")
IDLE_W, LINK_S = 2.0, 1.5


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Predictions, and a round of so many steps with its deadline and what a change of mode takes."""

    predictions: Predictions
    steps: float
    deadline_s: float
    switch_s: float
    confidence: float

    @property
    def front(self) -> Front:
        front = build_front(self.predictions, self.steps, IDLE_W, LINK_S, GRID[0])
        return dataclasses.replace(front, switch_s=self.switch_s)

    @property
    def switch_j(self) -> float:
        """At the power of the fastest mode above idling."""
        return self.switch_s * max(0.0, self.front.maxn.work_j / self.front.maxn.work_s - IDLE_W)

    def decide(self, policy: str) -> Decision:
        goal = RoundGoal(policy, self.steps, self.deadline_s, {"confidence": self.confidence})
        return load_policy(policy)(self.predictions, self.front, goal, SPEC)

    def parts(self, decision: Decision) -> list[tuple[int, float]]:
        """Rows and steps of what was decided, in their order."""
        row, mix = list(GRID).index(decision.mode), decision.mix
        if mix is None:
            return [(row, self.steps)]
        return [(list(GRID).index(mix.mode), mix.steps), (row, self.steps - mix.steps)]

    def busy_s(self, parts: list[tuple[int, float]], z: float) -> float:
        """When the round ends if every mode is ``z`` spreads slower than expected."""
        slow_s = self.predictions.step_s * np.exp(z * self.predictions.step_s_sd_log)
        return LINK_S + self.switch_s * (len(parts) - 1) + sum(steps * float(slow_s[row]) for row, steps in parts)

    def above_j(self, parts: list[tuple[int, float]], step_j: Floats) -> float:
        return self.switch_j * (len(parts) - 1) + sum(steps * float(step_j[row]) for row, steps in parts)


@st.composite
def cases(draw: st.DrawFn, spreads: tuple[float, ...] = (0.0, 0.02, 0.1, 0.3)) -> Case:
    n = draw(st.integers(2, len(GRID)))

    def column(of: st.SearchStrategy[float]) -> Floats:
        return np.array(draw(st.lists(of, min_size=n, max_size=n)))

    sds = st.sampled_from(spreads)
    times, powers = column(st.floats(0.5, 3.0)), column(st.floats(3.0, 30.0))
    predictions = Predictions(Modes(GRID.knobs[:n]), times, powers, column(sds), column(sds))
    steps = draw(st.one_of(st.integers(1, 60).map(float), st.floats(1.0, 60.0)))
    deadline_s = LINK_S + draw(st.floats(0.5, 3.0)) * steps * float(times.min())
    return Case(
        predictions, steps, deadline_s, draw(st.sampled_from([0.0, 0.1, 2.0])), draw(st.sampled_from([0.5, 0.84, 0.95]))
    )


Z = {confidence: NormalDist().inv_cdf(confidence) for confidence in (0.5, 0.84, 0.95)}
exactly = cases((0.0,))


@pytest.mark.parametrize("policy", ["least-energy-within-deadline", "balanced"])
@given(case=cases())
def test_a_decision_for_two_modes_keeps_the_deadline_with_the_margin(policy, case):
    """``balanced`` goes without the margin only where nothing keeps the deadline with it."""
    decision = case.decide(policy)
    if decision.mix is None:
        return
    parts = case.parts(decision)
    limit_s = case.deadline_s * (1 + 1e-6)
    alone = [case.busy_s([(row, case.steps)], Z[case.confidence]) for row in range(len(case.predictions.modes))]

    assert case.busy_s(parts, 0.0) <= limit_s
    assert case.busy_s(parts, Z[case.confidence]) <= limit_s or (policy == "balanced" and min(alone) > case.deadline_s)
    assert decision.feasible


@pytest.mark.parametrize("policy", ["least-energy-within-deadline", "balanced"])
@given(case=exactly)
def test_where_all_is_known_no_single_mode_in_time_costs_less(policy, case):
    step_j = case.predictions.step_s * (case.predictions.power_w - IDLE_W)
    singles = [[(row, case.steps)] for row in range(len(case.predictions.modes))]
    kept_j = [case.above_j(one, step_j) for one in singles if case.busy_s(one, 0.0) <= case.deadline_s]
    decision = case.decide(policy)

    assert decision.feasible == bool(kept_j)
    if kept_j:
        assert case.above_j(case.parts(decision), step_j) <= min(kept_j) * (1 + 1e-9)
        assert case.busy_s(case.parts(decision), 0.0) <= case.deadline_s * (1 + 1e-6)


@given(case=cases())
def test_with_the_margin_s_figures_no_single_mode_in_time_costs_less(case):
    policy = "least-energy-within-deadline"
    decision = case.decide(policy)
    step_j = case.predictions.step_s * (case.predictions.power_w - IDLE_W)
    z = Z[case.confidence]
    singles = [[(row, case.steps)] for row in range(len(case.predictions.modes))]
    kept_j = [case.above_j(one, step_j) for one in singles if case.busy_s(one, z) <= case.deadline_s]
    if kept_j:
        assert case.above_j(case.parts(decision), step_j) <= min(kept_j) * (1 + 1e-9)


@pytest.mark.parametrize("policy", ["least-energy-within-deadline", "balanced"])
@given(case=cases())
def test_the_slower_and_cheaper_mode_comes_first_and_neither_part_is_empty(policy, case):
    decision = case.decide(policy)
    if decision.mix is None:
        return
    (slow, first), (fast, rest) = case.parts(decision)
    careful = case.predictions.step_s * np.exp(Z[case.confidence] * case.predictions.step_s_sd_log)
    expected = case.predictions.step_s

    assert careful[slow] > careful[fast] or expected[slow] > expected[fast]
    assert first >= 1
    assert first == int(first)
    assert rest > 0


def figures_of(time_s: list[float], energy_j: list[float]) -> ModeFigures:
    t, e = np.array(time_s), np.array(energy_j)
    return ModeFigures(Modes(GRID.knobs[: len(t)]), t, e, t, e)


def some_front(switch_s: float = 0.0) -> Front:
    predictions = Predictions(Modes(GRID.knobs[:1]), np.ones(1), np.full(1, 12.0), np.zeros(1), np.zeros(1))
    return dataclasses.replace(build_front(predictions, 10.0, IDLE_W, LINK_S, GRID[0]), switch_s=switch_s)


def test_a_mode_that_may_not_be_used_is_part_of_no_decision():
    figures = figures_of([LINK_S + 10.0, LINK_S + 20.0], [100.0, 60.0])

    decision = decide_least_energy(
        figures, some_front(), RoundGoal("x", 10), LINK_S + 15.0, np.array([True, False]), "for sure"
    )

    assert (decision.mode, decision.mix) == (GRID[0], None)


def test_a_deadline_that_no_mode_keeps_alone_is_an_error():
    figures = figures_of([LINK_S + 10.0, math.inf], [100.0, 60.0])

    with pytest.raises(FedgeError, match="no mode ends within"):
        decide_least_energy(figures, some_front(), RoundGoal("x", 10), LINK_S + 9.0, np.array([True, True]), "for sure")


def test_a_rounding_that_the_deadline_allows_is_allowed_beside_a_long_transfer_too():
    deadline_s, link_s = 100.0, 95.0
    figures = figures_of([deadline_s * (1.0 + 0.9 * LIMIT_ROUNDING), math.inf], [100.0, 60.0])
    assert mask_within(figures.safe_s, deadline_s)[0]
    front = dataclasses.replace(some_front(), link_s=link_s)

    decision = decide_least_energy(figures, front, RoundGoal("x", 10), deadline_s, np.array([True, True]), "for sure")
    assert decision.mode == GRID[0]
