"""What a board measured in earlier runs counts as its own until the board itself contradicts it."""

import dataclasses

import numpy as np
import pytest
from contracts.rounds import ALL, MAXN, MID, MODES, Bench, goal_of, parts_of, seen, slowdowns, steps
from hypothesis import given
from hypothesis import strategies as st

from fedge.client.evidence import ONE_TIME_ERROR_LOG, PEER_DISAGREEMENT_LOG, select_recalled
from fedge.client.prediction_requests import run_alone
from fedge.types import Measurement, PowerMode


def off(mode: PowerMode, time: float = 0.0, power: float = 0.0, **more: object) -> Measurement:
    """A measurement that differs from the truth by these log units."""
    true = seen(mode)
    wrong = {"step_s": true.step_s * float(np.exp(time)), "power_w": true.power_w * float(np.exp(power))}
    return dataclasses.replace(true, **wrong, **more)


WRONG = [off(mode, 0.7, -0.2) for mode in MODES]
"""Another workload's measurements under this one's name."""


@given(steps, slowdowns)
def test_a_board_that_recalls_all_modes_probes_none_and_runs_all_its_steps(n, slowdown):
    played = Bench().play(goal_of(n, slowdown), recalled=ALL)

    assert played.probes == ()
    assert sum(part.steps for part in parts_of(played)) == n
    assert (played.own_samples, played.recalled_samples, played.contradicts_recalled) == (0, len(ALL), False)


@given(steps, slowdowns)
def test_the_first_steps_are_part_of_what_follows_in_the_same_mode(n, slowdown):
    warm, known = Bench().play(goal_of(n, slowdown), recalled=ALL), Bench().play(goal_of(n, slowdown), ALL)

    assert warm.measured.mode == known.measured.mode
    assert len(parts_of(warm)) <= max(2, len(parts_of(known)))
    assert sum(part.steps for part in parts_of(warm)) == n


@pytest.mark.parametrize("slowdown", [1.05, 1.5, 3.0])
def test_wrong_knowledge_is_found_out_in_the_first_steps_and_the_round_goes_on_without_it(slowdown):
    bench = Bench()
    played = bench.play(goal_of(60, slowdown), recalled=WRONG)

    assert played.contradicts_recalled
    assert played.recalled_samples == 0
    assert sum(part.steps for part in parts_of(played)) == 60
    before, *after = bench.predictor.learnt
    assert before == tuple(WRONG)
    assert all(not set(WRONG) & set(learnt) for learnt in after)


errors = st.sampled_from([-0.6, -0.3, -0.04, 0.0, 0.04, 0.3, 0.6])


@given(errors, errors)
def test_one_measurement_contradicts_only_with_both_figures_or_with_a_time_that_no_other_process_explains(time, power):
    kept = run_alone(select_recalled(Bench().player, [off(MAXN, time, power)], ALL))

    wrong = min(abs(time), abs(power)) > PEER_DISAGREEMENT_LOG or abs(time) > ONE_TIME_ERROR_LOG
    assert kept == (() if wrong else tuple(ALL))


def test_of_several_measurements_the_usual_one_decides():
    slow, right = off(MAXN, 0.3), seen(MAXN)
    context = Bench().player

    assert run_alone(select_recalled(context, [slow, right, right], ALL)) == tuple(ALL)
    assert run_alone(select_recalled(context, [slow, slow, right], ALL)) == ()
    assert run_alone(select_recalled(context, [off(MAXN, 0.3, throttled=True), right], ALL)) == tuple(ALL)


def test_a_mode_that_was_not_measured_before_is_compared_with_a_prediction():
    bench = Bench()
    others = [one for one in ALL if one.mode != MID]
    predicted = bench.predictor.fit(others).predict(MODES)
    row = list(MODES).index(MID)
    like = dataclasses.replace(seen(MID), step_s=float(predicted.step_s[row]), power_w=float(predicted.power_w[row]))
    unlike = dataclasses.replace(like, step_s=2 * like.step_s, power_w=2 * like.power_w)

    assert run_alone(select_recalled(bench.player, [like], others)) == tuple(others)
    assert run_alone(select_recalled(bench.player, [unlike], others)) == ()


def test_a_pinned_mode_needs_no_knowledge_and_contradicts_none():
    context = dataclasses.replace(Bench().player, learns=False)

    assert run_alone(select_recalled(context, [seen(MAXN)], WRONG)) == ()
