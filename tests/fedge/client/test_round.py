"""One client's round: trials, a part in a slower mode and the rest share its steps, training and deadline."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from contracts.rounds import (
    ALL,
    IDLE_W,
    LINK_S,
    LOW,
    MAXN,
    MODES,
    SOME,
    SURE,
    TRUTH,
    WITHOUT_SLACK,
    Bench,
    Doubtful,
    Noted,
    cheapest_known,
    ended_s,
    explorations,
    goal_of,
    histories,
    kept_slowdowns,
    parts_of,
    policies,
    seen,
    slowdowns,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.client.round import TRIAL_REASON
from fedge.decisions import probe_choice
from fedge.decisions.policies import load_policy
from fedge.experiment import ExplorationSpec
from fedge.types import Measurement, ModeMix, Modes, PowerMode, Predictions, RoundGoal


@given(steps, slowdowns, explorations, histories, st.sampled_from([0.0, 0.05, 0.3]), policies)
def test_trials_the_slower_part_and_the_rest_add_up_to_the_round_and_are_what_was_trained(
    n, slowdown, exploration, history, time_sd, policy
):
    bench = Bench(predictor=Doubtful(time_sd), exploration=exploration, policy=Noted(policy))

    played = bench.play(goal_of(n, slowdown), history)

    parts = parts_of(played)
    done = bench.device.measured
    assert sum(part.steps for part in parts) == n == sum(bench.training.parts)
    assert min(part.steps for part in parts) >= 1
    assert bench.training.parts == [part.steps for part in done]
    assert played.trained.arrays["w"] == n
    assert _modes_in_turn(parts) == _modes_in_turn(done)
    assert sum(part.work_s for part in parts) == pytest.approx(sum(part.work_s for part in done))
    assert sum(part.work_j for part in parts) == pytest.approx(sum(part.work_j for part in done))


def _modes_in_turn(parts: Sequence[Measurement]) -> list[PowerMode]:
    return [part.mode for i, part in enumerate(parts) if i == 0 or part.mode != parts[i - 1].mode]


def test_a_deadline_between_two_known_modes_is_met_by_a_part_in_each_the_slower_first():
    bench = Bench(exploration=WITHOUT_SLACK)
    played = bench.play(goal_of(60, 1.5), ALL)

    assert (played.mixed.mode, played.measured.mode) == (LOW, SOME)
    assert played.mixed.steps + played.measured.steps == 60
    assert played.decision.mix == ModeMix(LOW, played.mixed.steps)
    assert played.decision.mode == SOME
    assert bench.device.measured[0].mode == LOW
    ended = ended_s(played)
    assert 1.45 * (60 + LINK_S) <= ended <= 1.5 * (60 + LINK_S) * (1 + 1e-9), "little of the time is left over"


@given(steps, kept_slowdowns, st.sampled_from([None, *MODES]))
def test_with_two_modes_a_round_takes_no_more_energy_than_in_the_best_single_one(n, slowdown, only):
    """One of them at full margin; ``only`` bounds what the board knows to two modes, and with None to all."""
    history = ALL if only is None else [seen(MAXN), seen(only)]
    known = {m.mode for m in history}
    goal = goal_of(n, slowdown)

    played = Bench(exploration=ExplorationSpec(modes=len(known))).play(goal, history)

    safe_s = (goal.deadline_s - LINK_S) / n / 1.02
    singles = [m for m in history if m.step_s <= safe_s] or [seen(MAXN)]
    best_j = min(n * m.step_s * (m.power_w - IDLE_W[LOW]) for m in singles)
    assert {part.mode for part in parts_of(played)} <= known
    assert sum(part.work_j - IDLE_W[LOW] * part.work_s for part in parts_of(played)) <= best_j * (1 + 1e-6) + 2.0


@given(st.floats(1.0, 60.0))
def test_a_board_that_must_stop_reports_the_mode_it_stopped_in(stop_s):
    played = Bench().play(dataclasses.replace(goal_of(60, 1.5), stop_s=stop_s), ALL)

    assert played.decision.mode == played.measured.mode
    if played.measured.mode == LOW:
        assert not played.decision.feasible
        assert played.decision.mix is None


def test_without_a_deadline_a_board_leaves_a_mode_that_turned_out_to_break_the_limit():
    """Nothing is tried without a deadline, and only known modes are chosen from."""
    bench = Bench(policy=Noted(load_policy("fastest-within-power")))
    played = bench.play(RoundGoal("fastest-within-power", 40, limits={"power_w": 15.0}), [seen(MAXN)])

    assert played.measured.power_w <= 15.0


@given(steps, slowdowns, explorations, histories, policies)
def test_trials_keep_to_their_number_their_share_of_the_round_and_new_modes(n, slowdown, exploration, history, policy):
    """The very first trial, of the fastest mode, may be longer: without it nothing is known."""
    probes = Bench(exploration=exploration, policy=Noted(policy)).play(goal_of(n, slowdown), history).probes

    tried = [p.mode for p in probes]
    first = probes[0].steps if probes and not history else 0
    assert len(probes) <= exploration.probes
    assert sum(p.steps for p in probes) <= max(exploration.share * n, first)
    assert len(set(tried)) == len(tried)
    assert not set(tried) & {m.mode for m in history}
    assert history or tried[:1] in ([], [MAXN])


def test_a_board_finds_the_cheap_mode_while_it_trains_and_works_the_rest_in_it():
    bench = Bench(policy=Noted(cheapest_known))
    played = bench.play(goal_of(40, 3.0), [seen(MAXN)])

    assert played.probes
    assert played.decision.mode == played.measured.mode == LOW
    assert played.predicted.mode == LOW
    assert played.predicted.power_w_sd_log < SURE, "predicted with the trials learnt"
    assert bench.device.mode == MAXN


@given(st.integers(0, 99), st.integers(1, 3), st.lists(st.tuples(steps, kept_slowdowns), min_size=3, max_size=6))
@settings(max_examples=50)
def test_over_many_rounds_no_more_modes_than_the_limit_are_worked_in_and_none_is_late(probe_tenths, limit, asked):
    """Once the fastest mode is known: rounds too short for its trial come without it."""
    exploration = ExplorationSpec(share=0.9, probe_s=probe_tenths / 10, slack=0.0, modes=limit, foresight=6.0)
    history = [seen(MAXN)]
    for n, slowdown in asked:
        goal = goal_of(n, slowdown)
        played = Bench(exploration=exploration).play(goal, history)
        history += parts_of(played)

        assert len({m.mode for m in history}) <= limit
        assert ended_s(played) <= (goal.deadline_s or 0.0) * (1 + 1e-6)


def test_at_the_limit_a_board_works_in_modes_that_it_knows_or_that_others_told_it_of_and_tries_no_more():
    told = [dataclasses.replace(seen(mode), board="nano-2") for mode in list(MODES)[::2]]
    exploration = ExplorationSpec(modes=1)
    history, trials = [seen(MAXN)], 0
    for slowdown in (3.0, 1.4, 1.15):
        played = Bench(exploration=exploration).play(goal_of(60, slowdown), history, told)
        history += parts_of(played)
        trials += len(played.probes)

    assert trials == 0
    assert {m.mode for m in history} <= {MAXN, *(m.mode for m in told)}


def test_modes_that_other_boards_tried_need_no_trial_where_they_are_predicted_surely():
    told = [dataclasses.replace(seen(mode), board="nano-2") for mode in MODES]

    assert Bench().play(goal_of(60, 3.0), [seen(MAXN)]).probes
    assert Bench().play(goal_of(60, 3.0), [seen(MAXN)], told).probes == ()


class Sure(Doubtful):
    """As sure of every mode, whatever was measured."""

    def predict(self, modes: Modes) -> Predictions:
        spread = np.full(len(modes), 0.02)
        return dataclasses.replace(super().predict(modes), step_s_sd_log=spread, power_w_sd_log=spread)


def test_a_mode_measured_better_than_can_be_believed_is_measured_again_and_then_used_also_at_the_limit():
    dear = dataclasses.replace(TRUTH, power_w=np.array([20.0, 14.0, 10.0, 30.0]))
    history = [seen(MAXN), seen(LOW)]

    bench = Bench(predictor=Sure(truth=dear), exploration=ExplorationSpec(modes=2))
    played = bench.play(goal_of(60, 3.0), history)

    assert [part.mode for part in played.probes] == [LOW]
    assert played.measured.mode == LOW


def test_a_doubted_mode_whose_repeat_was_throttled_is_not_measured_again_and_again():
    dear = dataclasses.replace(TRUTH, power_w=np.array([20.0, 14.0, 10.0, 30.0]))
    history = [seen(MAXN), seen(LOW), dataclasses.replace(seen(LOW), throttled=True)]

    played = Bench(predictor=Sure(truth=dear), exploration=ExplorationSpec(modes=2)).play(goal_of(60, 3.0), history)

    assert played.probes == ()


SHORT = ExplorationSpec(probe_s=1000.0)
"""With it every probe takes longer than the round."""


def test_a_board_that_knows_nothing_and_has_no_time_for_a_probe_works_in_the_fastest_mode():
    played = Bench(policy=Noted(cheapest_known), exploration=SHORT).play(goal_of(2, 3.0))

    assert played.probes == ()
    assert played.measured.mode == MAXN
    assert (played.measured.steps, played.decision.mode) == (2, MAXN)


def test_in_a_round_too_short_for_a_probe_a_board_tries_a_mode_as_a_whole():
    played = Bench(exploration=SHORT).play(goal_of(2, 1.6), [seen(MAXN)])

    assert played.probes == ()
    assert played.measured.mode == played.decision.mode != MAXN
    assert played.decision.why == TRIAL_REASON
    assert played.measured.steps == 2


def test_a_round_too_short_for_any_probe_weighs_none(monkeypatch):
    for name in ("find_mode_to_repeat", "list_informative_modes", "find_most_saving_mode"):
        monkeypatch.setattr(probe_choice, name, None)

    assert Bench(exploration=SHORT).play(goal_of(2, 1.6), [seen(MAXN)]).decision.why == TRIAL_REASON


def test_a_goal_that_no_known_mode_meets_says_that_only_known_modes_count():
    played = Bench(exploration=WITHOUT_SLACK).play(goal_of(40, 0.5), [seen(MAXN)])

    assert played.decision.mode == MAXN
    assert played.decision.why.startswith("Fastest mode: 41.0 s expected, later than the 20.5 s left.")
    assert played.decision.why.endswith(" Only known modes count: 1 of 4.")


@given(
    st.integers(30, 120),
    st.floats(1.05, 2.5),
    st.lists(st.floats(-0.4, 0.4), min_size=2 * len(MODES), max_size=2 * len(MODES)),
)
@settings(max_examples=60)
def test_steps_of_two_modes_are_never_one_measurement(number, slowdown, off):
    wrong = [
        dataclasses.replace(
            seen(mode), step_s=seen(mode).step_s * math.exp(t), power_w=seen(mode).power_w * math.exp(p)
        )
        for mode, t, p in zip(MODES, off[::2], off[1::2], strict=True)
    ]
    played = Bench().play(goal_of(number, slowdown), recalled=wrong)

    for part in parts_of(played):
        assert (part.step_s, part.power_w) == pytest.approx((seen(part.mode).step_s, seen(part.mode).power_w))
