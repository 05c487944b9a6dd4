"""The choice of many clients at once, against the search of a single board and the policy that a board runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.mode_mix import find_best_split
from fedge.decisions.policies.mode_policies import choose_balanced
from fedge.devices import catalogue
from fedge.studies.fleet.kind_table import (
    WorkRoom,
    build_curve,
    choose_predicted_work,
    choose_work,
    compute_offset,
    compute_offset_sd,
)
from fedge.types import Floats, Front, FrontPoint, Modes, PowerMode, Predictions, RoundGoal

SEEDS = st.integers(0, 10_000)
SWITCH_S, SWITCH_W = 0.05, 8.0


def draw_modes(rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
    """Seconds and joules per step: slower modes mostly draw less."""
    step_s = rng.uniform(0.1, 0.5, count)
    return step_s, step_s * (3.0 + 0.6 / step_s**1.5) * rng.lognormal(0.0, 0.1, count)


def room_of(steps: Floats, left_s: Floats, switch_s: float = SWITCH_S) -> WorkRoom:
    return WorkRoom(steps, left_s, np.full(len(steps), switch_s), SWITCH_W)


@given(SEEDS, st.integers(1, 30))
def test_no_split_of_a_single_board_is_better_by_more_than_a_step(seed, count):
    rng = np.random.default_rng(seed)
    step_s, step_j = draw_modes(rng, count)
    steps = np.round(rng.uniform(20, 200, 12))
    left_s = steps * rng.uniform(0.08, 0.6, 12)
    chosen = choose_work(build_curve(step_s, step_j), room_of(steps, left_s))

    for client in range(12):
        best = find_best_split(
            step_s, step_j, steps[client], left_s[client], switch_s=SWITCH_S, switch_j=SWITCH_S * SWITCH_W
        )
        slow, fast, slow_steps = chosen.slow[client], chosen.fast[client], chosen.slow_steps[client]
        mixed = slow_steps > 0
        time_s = slow_steps * step_s[slow] + (steps[client] - slow_steps) * step_s[fast] + SWITCH_S * mixed
        joules = slow_steps * step_j[slow] + (steps[client] - slow_steps) * step_j[fast] + SWITCH_S * SWITCH_W * mixed
        assert chosen.in_time[client] == (best is not None)
        if best is None:
            assert step_s[fast] == step_s.min()
        else:
            assert time_s <= left_s[client] * (1.0 + 1e-8)
            assert best.work_j - 1e-9 <= joules <= best.work_j + step_j.max()


@given(SEEDS)
def test_each_client_chooses_as_a_board_with_these_predictions_would(seed):
    rng = np.random.default_rng(seed)
    count, idle_w, offset_sd, z = 8, 2.0, 0.03, 0.9944578832097532  # of a confidence of 0.84
    step_s, step_j = draw_modes(rng, count)
    sd_s, sd_w = rng.uniform(0.005, 0.08, count), rng.uniform(0.005, 0.05, count)
    knobs = np.stack(
        [np.full(count, 4.0), np.linspace(500, 1400, count), np.full(count, 900.0), np.full(count, 1600.0)]
    )
    modes = Modes(knobs.T.copy())
    known = Predictions(modes, step_s=step_s, power_w=step_j / step_s, step_s_sd_log=sd_s, power_w_sd_log=sd_w)
    steps = np.round(rng.uniform(20, 200, 6))
    left_s, factor = steps * rng.uniform(0.08, 0.6, 6), np.exp(rng.normal(0.0, 0.05, 6))
    chosen = choose_predicted_work(
        known, idle_w, room=WorkRoom(steps, left_s / factor, np.zeros(6), 0.0), z=z, offset_sd=np.full(6, offset_sd)
    )

    for client in range(6):
        own = Predictions(
            modes, step_s=step_s * factor[client], power_w=known.power_w,
            step_s_sd_log=np.hypot(sd_s, offset_sd), power_w_sd_log=sd_w,
        )  # fmt: skip
        point = FrontPoint(modes[0], 10.0, 90.0)
        offer = Front((point,), point, idle_w, 0.0, 3.0)
        goal = RoundGoal("balanced", float(steps[client]), float(left_s[client]), {"confidence": 0.84})
        decision = choose_balanced(own, offer, goal, catalogue.find("nano"))
        expected = sum_energy(own, idle_w, decision.mode, decision.mix, steps[client])
        slow_steps = float(chosen.slow_steps[client])
        above_j = own.step_s * (own.power_w - idle_w)
        found = slow_steps * above_j[chosen.slow[client]] + (steps[client] - slow_steps) * above_j[chosen.fast[client]]
        assert chosen.in_time[client] == decision.feasible or "too uncertain" in decision.why
        assert found == pytest.approx(expected, abs=2.0 * above_j.max())


def sum_energy(own: Predictions, idle_w: float, mode: PowerMode, mix: object, steps: float) -> float:
    rows = {own.modes[row]: row for row in range(len(own.modes))}
    above_j = own.step_s * (own.power_w - idle_w)
    if mix is None:
        return float(steps * above_j[rows[mode]])
    return float(mix.steps * above_j[rows[mix.mode]] + (steps - mix.steps) * above_j[rows[mode]])


@given(st.lists(st.floats(-0.2, 0.2), max_size=30))
def test_an_offset_is_the_mean_of_a_normal_posterior(ratios):
    prior_sd, noise_sd = 0.05, 0.012
    precision = 1.0 / prior_sd**2 + len(ratios) / noise_sd**2
    count = np.array([len(ratios)])

    assert compute_offset(np.array([sum(ratios)]), count, prior_sd, noise_sd)[0] == pytest.approx(
        sum(ratios) / noise_sd**2 / precision
    )
    assert compute_offset_sd(count, prior_sd, noise_sd)[0] == pytest.approx(precision**-0.5)
