"""Every policy runs the same contract; each is held against brute force over small random tables."""

from __future__ import annotations

import copy
import dataclasses
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.decisions.limits import compute_margin_z
from fedge.decisions.policies import POLICIES, choose_waiting_mode, load_policy
from fedge.decisions.policies.mode_policies import ENERGY_MARGIN_SHARE, KNOWN_SD_LOG
from fedge.errors import BadInput
from fedge.pareto import build_front
from fedge.protocols import Policy
from fedge.types import Decision, DeviceSpec, Front, LabelledValue, Modes, PowerMode, Predictions, RoundGoal

GUESS = LabelledValue(10.0, "estimated", "test")
SPEC = DeviceSpec(
    name="toy",
    title="Toy board",
    cores=(1, 2, 4),
    cpu_mhz=(400.0, 800.0, 1200.0),
    gpu_mhz=(300.0, 600.0),
    mem_mhz=(1600.0,),
    presets={"SMALL": PowerMode(1, 400.0, 300.0, 1600.0), "MAXN": PowerMode(4, 1200.0, 600.0, 1600.0)},
    default_preset="SMALL",
    ram_gb=GUESS,
    idle_w=GUESS,
    max_w=GUESS,
    gpu_gflops=GUESS,
    mem_gbps=GUESS,
    cpu_score=GUESS,
    rails=("VDD_IN",),
    total_power="VDD_IN",
    accelerators=(),
    jetpacks=(),
)
GRID = np.array([[c, f, g, 1600.0] for c in SPEC.cores for f in SPEC.cpu_mhz for g in SPEC.gpu_mhz])
STEPS, LINK_S, IDLE_W = 8, 1.5, 2.0


def table(step_s: list[float], power_w: list[float], sd: list[float] | None = None) -> Predictions:
    """The last ``len(step_s)`` modes of the toy board, so that MAXN is always the last row."""
    n = len(step_s)
    spread = np.array(sd if sd is not None else [0.0] * n)
    return Predictions(Modes(GRID[-n:]), np.array(step_s), np.array(power_w), spread, spread)


def front_of(predictions: Predictions) -> Front:
    return build_front(predictions, STEPS, IDLE_W, LINK_S, SPEC.maxn)


def goal_of(policy: str, planned_s: float | None = None, **limits: float) -> RoundGoal:
    return RoundGoal(policy, STEPS, planned_s, limits)


def decide(policy: str, predictions: Predictions, planned_s: float | None = None, **limits: float) -> Decision:
    return load_policy(policy)(predictions, front_of(predictions), goal_of(policy, planned_s, **limits), SPEC)


@st.composite
def some_table(draw: st.DrawFn) -> Predictions:
    n = draw(st.integers(1, len(GRID)))

    def column(low: int, high: int, unit: float) -> list[float]:
        return [v * unit for v in draw(st.lists(st.integers(low, high), min_size=n, max_size=n))]

    return table(column(1, 8, 0.25), column(8, 40, 0.5), column(0, 6, 0.05))


def ends_s(predictions: Predictions, z: float = 0.0) -> list[float]:
    """Literal: when each mode's upload ends."""
    pairs = zip(predictions.step_s, predictions.step_s_sd_log, strict=True)
    return [LINK_S + STEPS * t * math.exp(z * sd) for t, sd in pairs]


def above_j(predictions: Predictions, z: float = 0.0) -> list[float]:
    """Literal: joules of each mode beyond idling, time and power each overestimated by ``z`` spreads."""
    return [
        STEPS * t * math.exp(z * sd_t) * (p * math.exp(z * sd_p) - IDLE_W)
        for t, p, sd_t, sd_p in zip(
            predictions.step_s,
            predictions.power_w,
            predictions.step_s_sd_log,
            predictions.power_w_sd_log,
            strict=True,
        )
    ]


def row_of(predictions: Predictions, mode: PowerMode) -> int:
    return list(predictions.modes).index(mode)


def random_tables(count: int) -> tuple[Predictions, ...]:
    """Tables of 1 to 18 modes on coarse grids, so that ties are common."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, len(GRID) + 1, count)
    return tuple(
        table(list(rng.integers(1, 9, n) / 4), list(rng.integers(8, 41, n) / 2), list(rng.integers(0, 7, n) / 20))
        for n in sizes
    )


TABLES = random_tables(100)


class PolicyContract:
    """What every policy keeps to; a subclass names the policy and goals that are easy, hard and hopeless."""

    name: str
    goals: tuple[RoundGoal, ...]

    def choose(self, predictions: Predictions, goal: RoundGoal) -> Decision:
        policy: Policy = load_policy(self.name)
        return policy(predictions, front_of(predictions), goal, SPEC)

    def kept(self, predictions: Predictions, goal: RoundGoal, row: int) -> bool:
        """The goal's limit holds for ``row`` by the board's own predictions, spread aside."""
        return True

    def test_a_choice_is_a_candidate_keeps_the_limit_if_feasible_and_says_why_in_one_sentence(self):
        for predictions, goal in product(TABLES, self.goals):
            decision = self.choose(predictions, goal)
            row, why = row_of(predictions, decision.mode), decision.why
            assert not decision.feasible or self.kept(predictions, goal, row)
            assert why.endswith(".")
            assert why[0].isupper()
            assert "\n" not in why
            assert " W" in why or " s" in why
            assert len(why) <= 160

    def test_the_same_question_gets_the_same_answer_and_changes_nothing(self):
        for predictions, goal in product(TABLES, self.goals):
            before = copy.deepcopy(predictions)
            assert self.choose(predictions, goal) == self.choose(predictions, goal)
            for column in ("step_s", "power_w", "step_s_sd_log", "power_w_sd_log"):
                assert np.array_equal(getattr(predictions, column), getattr(before, column))

    def test_a_table_of_one_mode_is_always_answered_with_it(self):
        predictions = table([0.5], [12.0], [0.3])
        for goal in self.goals:
            assert self.choose(predictions, goal).mode == predictions.modes[0]


class TestMaxn(PolicyContract):
    name = "maxn"
    goals = (goal_of("maxn"), goal_of("maxn", 3.0))

    def kept(self, predictions: Predictions, goal: RoundGoal, row: int) -> bool:
        return predictions.modes[row] == SPEC.maxn


class TestPreset(PolicyContract):
    name = "preset:SMALL"
    goals = (goal_of("preset:SMALL"), goal_of("preset:MAXN"))

    def kept(self, predictions: Predictions, goal: RoundGoal, row: int) -> bool:
        return predictions.modes[row] == SPEC.presets[goal.policy.removeprefix("preset:")]


class TestFastestWithinPower(PolicyContract):
    name = "fastest-within-power"
    goals = tuple(
        goal_of("fastest-within-power", None, power_w=watts, confidence=confidence)
        for watts in (2.0, 6.0, 12.5, 99.0)
        for confidence in (0.5, 0.9)
    )

    def kept(self, predictions: Predictions, goal: RoundGoal, row: int) -> bool:
        return bool(predictions.power_w[row] <= goal.limits["power_w"])


class TestLeastEnergyWithinDeadline(PolicyContract):
    name = "least-energy-within-deadline"
    goals = (
        *(goal_of("least-energy-within-deadline", None, deadline_s=d) for d in (1.0, 6.0, 99.0)),
        goal_of("least-energy-within-deadline", 9.5),
        goal_of("least-energy-within-deadline", 9.5, deadline_s=8.0, confidence=0.5),
    )

    def kept(self, predictions: Predictions, goal: RoundGoal, row: int) -> bool:
        deadline_s = min(goal.deadline_s or math.inf, goal.limits.get("deadline_s", math.inf))
        return ends_s(predictions)[row] <= deadline_s


class TestBalanced(PolicyContract):
    name = "balanced"
    goals = (
        *(goal_of("balanced", d) for d in (1.0, 5.5, 9.5, 99.0)),
        goal_of("balanced"),
        goal_of("balanced", None, time_weight=0.0),
        goal_of("balanced", None, time_weight=1.0, max_slowdown=1.05),
    )

    def kept(self, predictions: Predictions, goal: RoundGoal, row: int) -> bool:
        if goal.deadline_s is not None:
            return ends_s(predictions)[row] <= goal.deadline_s
        longest = goal.limits.get("max_slowdown", math.inf) * (LINK_S + front_of(predictions).maxn.work_s)
        return ends_s(predictions)[row] <= longest


class TestLeastEnergy(PolicyContract):
    name = "least-energy"
    goals = (
        *(goal_of("least-energy", d) for d in (1.0, 5.5, 99.0)),
        goal_of("least-energy", None, deadline_s=6.0),
        goal_of("least-energy"),
        goal_of("least-energy", None, max_slowdown=2.0, confidence=0.5),
    )

    def kept(self, predictions: Predictions, goal: RoundGoal, row: int) -> bool:
        own_s = goal.limits.get("max_slowdown", 1.05) * (LINK_S + front_of(predictions).maxn.work_s)
        given = [d for d in (goal.deadline_s, goal.limits.get("deadline_s")) if d is not None]
        return ends_s(predictions)[row] <= min(given, default=own_s) * (1 + 1e-9)


class TestEnergyBudget(PolicyContract):
    name = "energy-budget"
    goals = (*(goal_of("energy-budget", d) for d in (1.0, 9.5)), goal_of("energy-budget", None, budget_j=100.0))

    def kept(self, predictions: Predictions, goal: RoundGoal, row: int) -> bool:
        return goal.deadline_s is None or ends_s(predictions)[row] <= goal.deadline_s


class TestFastest(PolicyContract):
    name = "fastest"
    goals = tuple(goal_of("fastest", d, power_w=w) for d in (None, 1.0, 9.5) for w in (2.0, 6.0, 12.5, 99.0))

    def kept(self, predictions: Predictions, goal: RoundGoal, row: int) -> bool:
        in_time = goal.deadline_s is None or ends_s(predictions)[row] <= goal.deadline_s
        return bool(in_time and predictions.power_w[row] <= goal.limits["power_w"])


class TestJoint(TestFastest):
    name = "joint"
    goals = tuple(goal_of("joint", d, power_w=w) for d in (None, 9.5) for w in (6.0, 99.0))


def test_every_policy_of_the_table_runs_the_contract():
    assert {contract.name.partition(":")[0] for contract in (TestJoint, *PolicyContract.__subclasses__())} == set(
        POLICIES
    )


@given(some_table(), st.integers(8, 60), st.sampled_from([0.5, 0.84, 0.99]))
@settings(deadline=None)
def test_fastest_within_power_is_what_brute_force_finds(predictions, half_watts, confidence):
    limit_w = half_watts / 2 + 0.1
    decision = decide("fastest-within-power", predictions, power_w=limit_w, confidence=confidence)
    row = row_of(predictions, decision.mode)
    pairs = zip(predictions.power_w, predictions.power_w_sd_log, strict=True)
    cautious_w = [p * math.exp(compute_margin_z(confidence) * sd) for p, sd in pairs]
    allowed = [i for i, watts in enumerate(cautious_w) if watts <= limit_w]
    assert decision.feasible == bool(allowed)
    if allowed:
        assert row in allowed
        assert predictions.step_s[row] == min(predictions.step_s[i] for i in allowed)
    else:
        assert cautious_w[row] == pytest.approx(min(cautious_w))


@given(some_table(), st.integers(4, 80), st.sampled_from([0.5, 0.84, 0.99]))
@settings(deadline=None)
def test_least_energy_within_a_deadline_is_what_brute_force_finds(predictions, quarters, confidence):
    deadline_s = quarters / 4 + 0.1
    decision = decide("least-energy-within-deadline", predictions, deadline_s=deadline_s, confidence=confidence)
    row = row_of(predictions, decision.mode)
    cautious_s = ends_s(predictions, compute_margin_z(confidence))
    allowed = [i for i, end_s in enumerate(cautious_s) if end_s <= deadline_s]
    assert decision.feasible == bool(allowed)
    if allowed:
        assert row in allowed
        assert above_j(predictions)[row] == pytest.approx(min(above_j(predictions)[i] for i in allowed))
    else:
        assert predictions.step_s[row] == predictions.step_s.min()


@given(some_table(), st.integers(4, 80))
@settings(deadline=None)
def test_balanced_with_a_planned_deadline_saves_energy_where_the_margin_allows_and_hurries_where_not(
    predictions, quarters
):
    deadline_s = quarters / 4 + 0.1
    decision = decide("balanced", predictions, deadline_s)
    row = row_of(predictions, decision.mode)
    z = compute_margin_z(0.84)
    safe = [i for i, end_s in enumerate(ends_s(predictions, z)) if end_s <= deadline_s]
    known = [i for i, sd in enumerate(predictions.step_s_sd_log) if sd <= KNOWN_SD_LOG]
    allowed = safe or [i for i in known if ends_s(predictions)[i] <= deadline_s]
    careful_j = above_j(predictions, ENERGY_MARGIN_SHARE * z)
    if allowed:
        assert row in allowed
        assert careful_j[row] == pytest.approx(min(careful_j[i] for i in allowed))
    else:
        assert predictions.step_s[row] == predictions.step_s.min()
    assert decision.feasible == (min(ends_s(predictions)) <= deadline_s)


@given(some_table(), st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.sampled_from([None, 1.0, 1.3]))
@settings(deadline=None)
def test_balanced_without_a_deadline_is_what_brute_force_finds(predictions, weight, max_slowdown):
    limits = {"time_weight": weight} | ({} if max_slowdown is None else {"max_slowdown": max_slowdown})
    decision = decide("balanced", predictions, **limits)
    row, time_s = row_of(predictions, decision.mode), ends_s(predictions)
    own_j = [IDLE_W * LINK_S + STEPS * t * p for t, p in zip(predictions.step_s, predictions.power_w, strict=True)]
    score = [weight * t / time_s[-1] + (1 - weight) * e / own_j[-1] for t, e in zip(time_s, own_j, strict=True)]
    longest_s = math.inf if max_slowdown is None else max_slowdown * time_s[-1]
    assert decision.feasible
    assert time_s[row] <= longest_s
    assert score[row] == pytest.approx(min(s for s, t in zip(score, time_s, strict=True) if t <= longest_s))


def test_balanced_takes_the_fastest_mode_where_none_keeps_the_slowdown():
    predictions = table([2.5, 1.5, 2.0], [5.0, 9.0, 10.0])
    decision = decide("balanced", predictions, max_slowdown=0.5)
    assert (row_of(predictions, decision.mode), decision.feasible) == (1, False)
    assert decision.why == "No mode ends within 0.5 times MAXN's 17.5 s; the fastest takes 13.5 s."


def test_without_a_round_to_wait_for_a_board_s_idling_counts_until_its_own_end():
    """The slow mode has fewer joules above idling (56 to 64) but more in all (88 to 80)."""
    predictions = table([2.0, 1.0], [5.5, 10.0])
    assert decide("balanced", predictions, time_weight=0.0).mode == SPEC.maxn
    assert decide("balanced", predictions, 99.0).mode == predictions.modes[0]


def test_a_board_that_knows_its_times_needs_no_margin_for_the_cheapest_mode_in_time():
    """The slower mode takes the whole round, so nothing has room for a margin."""
    power_w, deadline_s = [8.0, 20.0], LINK_S + STEPS * 1.0
    known = table([1.0, 0.99], power_w, [KNOWN_SD_LOG, KNOWN_SD_LOG])
    unknown = table([1.0, 0.99], power_w, [1.01 * KNOWN_SD_LOG, 1.01 * KNOWN_SD_LOG])

    assert decide("balanced", known, deadline_s).mode == known.modes[0]
    assert "without margin" in decide("balanced", known, deadline_s).why
    assert decide("balanced", unknown, deadline_s).mode == SPEC.maxn


def test_own_balance_is_measured_against_a_board_that_waits_at_maxn_too():
    """MAXN's link time counts at MAXN's idle power, so its joules are more and a slow mode's share of them is less."""
    predictions = table([1.2, 1.0], [8.0, 10.0])
    front = front_of(predictions)
    shares = [
        load_policy("balanced")(
            predictions, dataclasses.replace(front, maxn_idle_w=idle_w), goal_of("balanced", time_weight=0.0), SPEC
        ).why
        for idle_w in (IDLE_W, 2 * IDLE_W)
    ]
    own_j = IDLE_W * LINK_S + STEPS * 1.2 * 8.0
    for why, idle_w in zip(shares, (IDLE_W, 2 * IDLE_W), strict=True):
        assert f"{own_j / (idle_w * LINK_S + STEPS * 10.0):.0%} of its" in why


@pytest.mark.parametrize("name", ["maxn", *(f"preset:{preset}" for preset in SPEC.presets)])
def test_a_board_whose_mode_is_pinned_waits_in_the_mode_it_works_in(name):
    predictions = table([1.0] * len(GRID), [9.0] * len(GRID))
    decision = load_policy(name)(predictions, front_of(predictions), goal_of(name), SPEC)

    assert choose_waiting_mode(name, SPEC, Modes(GRID)) == decision.mode


@pytest.mark.parametrize("name", ["balanced", "fastest-within-power", "least-energy-within-deadline", "mine:policy"])
def test_every_other_board_waits_in_its_lowest_mode(name):
    assert choose_waiting_mode(name, SPEC, Modes(GRID)) == PowerMode(1, 400.0, 300.0, 1600.0)


@given(st.permutations(range(len(GRID))), st.integers(1, len(GRID)))
def test_no_candidate_has_every_knob_below_the_mode_waited_in(order, count):
    candidates = Modes(GRID[order[:count]])
    waiting = choose_waiting_mode("balanced", SPEC, candidates)
    knobs = np.array([waiting.cores, waiting.cpu_mhz, waiting.gpu_mhz, waiting.mem_mhz])
    below = (candidates.knobs <= knobs).all(axis=1) & (candidates.knobs < knobs).any(axis=1)
    assert waiting in list(candidates)
    assert not below.any()


def test_equally_fast_modes_are_told_apart_by_power():
    predictions = table([0.5, 0.5, 0.5], [9.0, 7.0, 8.0])
    assert decide("fastest-within-power", predictions, power_w=10.0).mode == predictions.modes[1]


def test_a_preset_within_a_percent_of_a_clock_step_is_that_mode():
    spec = dataclasses.replace(SPEC, presets={"CAP": PowerMode(4, 1205.0, 600.0, 1600.0)})
    predictions = table([1.0, 0.5], [8.0, 20.0])
    decision = load_policy("preset:CAP")(predictions, front_of(predictions), goal_of("preset:CAP"), spec)
    assert (decision.mode, decision.feasible) == (SPEC.maxn, True)


def test_a_preset_that_is_no_candidate_gives_the_nearest_and_says_so():
    predictions = table([1.0, 0.5], [8.0, 20.0])
    decision = decide("preset:SMALL", predictions)
    assert (decision.mode, decision.feasible) == (predictions.modes[0], False)
    assert "Preset SMALL (1c/400/300/1600 MHz) is not among the 2 candidates" in decision.why


def test_a_policy_of_the_user_s_own_is_loaded_by_module_and_function():
    predictions = table([1.0, 0.5], [8.0, 20.0])
    assert decide("fedge.decisions.policies.mode_policies:choose_maxn", predictions) == decide("maxn", predictions)


@pytest.mark.parametrize(
    ("policy", "field"),
    [("fastest-within-power", "policy.power_w"), ("least-energy-within-deadline", "policy.deadline_s")],
)
def test_a_missing_limit_is_named(policy, field):
    with pytest.raises(BadInput, match=field):
        decide(policy, table([1.0], [8.0]))


@pytest.mark.parametrize("confidence", [0.0, 1.0, 84.0])
def test_a_confidence_outside_0_and_1_is_refused(confidence):
    with pytest.raises(BadInput, match=r"policy\.confidence"):
        decide("balanced", table([1.0], [8.0]), 9.0, confidence=confidence)


@given(some_table(), st.integers(8, 60), st.integers(8, 40), st.sampled_from([0.5, 0.84, 0.99]))
@settings(deadline=None)
def test_fastest_takes_the_least_energy_within_its_deadline_and_its_watts(predictions, quarters, halves, confidence):
    deadline_s, cap_w, z = quarters / 4, halves / 2, compute_margin_z(confidence)
    row = row_of(predictions, decide("fastest", predictions, deadline_s, power_w=cap_w, confidence=confidence).mode)
    allowed = [i for i, w in enumerate(predictions.power_w) if w <= cap_w]
    if not allowed:
        assert predictions.power_w[row] == predictions.power_w.min()
        return
    assert row in allowed
    latest_s = deadline_s * (1 + 1e-9)
    safe = [i for i in allowed if ends_s(predictions, z)[i] <= latest_s]
    known = [i for i in allowed if ends_s(predictions)[i] <= latest_s and predictions.step_s_sd_log[i] <= KNOWN_SD_LOG]
    careful_j = above_j(predictions, ENERGY_MARGIN_SHARE * z)
    if safe or known:
        assert careful_j[row] <= min(careful_j[i] for i in safe or known) + 1e-9
    else:
        assert ends_s(predictions)[row] == min(ends_s(predictions)[i] for i in allowed)


@given(some_table(), st.integers(8, 60), st.sampled_from([0.5, 0.84, 0.99]))
@settings(deadline=None)
def test_with_a_planned_deadline_least_energy_and_energy_budget_choose_like_balanced(predictions, quarters, confidence):
    rows = {decide(p, predictions, quarters / 4, confidence=confidence) for p in ("least-energy", "energy-budget")}
    assert rows == {decide("balanced", predictions, quarters / 4, confidence=confidence)}


def test_without_a_deadline_least_energy_is_hardly_slower_than_maxn():
    predictions = table([1.0, 0.52, 0.5], [3.0, 8.0, 20.0])
    maxn_s = LINK_S + STEPS * 0.5
    assert row_of(predictions, decide("least-energy", predictions).mode) == 1
    assert row_of(predictions, decide("least-energy", predictions, max_slowdown=1.0).mode) == 2
    assert row_of(predictions, decide("least-energy", predictions, deadline_s=3 * maxn_s).mode) == 0


def test_without_a_deadline_a_budget_is_spent_as_slowly_as_possible():
    predictions = table([1.0, 0.52, 0.5], [3.0, 8.0, 20.0])
    assert row_of(predictions, decide("energy-budget", predictions, budget_j=1e6).mode) == 0
    assert row_of(predictions, decide("energy-budget", predictions, budget_j=1e6, time_weight=1.0).mode) == 2


def test_fastest_without_a_deadline_or_a_share_is_the_fastest_mode():
    predictions = table([1.0, 0.52, 0.5], [3.0, 8.0, 20.0])
    assert row_of(predictions, decide("fastest", predictions).mode) == 2
    assert row_of(predictions, decide("fastest", predictions, power_w=9.0).mode) == 1


def test_a_share_below_every_mode_is_the_lowest_mode_and_not_feasible():
    predictions = table([1.0, 0.52, 0.5], [3.0, 8.0, 20.0])
    decision = decide("fastest", predictions, 99.0, power_w=0.0)
    assert row_of(predictions, decision.mode) == int(np.argmin(predictions.power_w))
    assert not decision.feasible
