"""What a round tries: within its number, its share of the round, the deadline and the limit on modes."""

from __future__ import annotations

import dataclasses

import pytest
from contracts.rounds import (
    LOW,
    MAXN,
    MID,
    MODES,
    SURE,
    Bench,
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
from fedge.experiment import ExplorationSpec
from fedge.protocols import Policy
from fedge.types import Measurement, RoundGoal


@given(steps, slowdowns, explorations, histories, policies)
def test_trials_keep_to_their_number_their_share_of_the_round_and_new_modes(
    n: int, slowdown: float | None, exploration: ExplorationSpec, history: list[Measurement], policy: Policy
) -> None:
    """The very first trial, of the fastest mode, may be longer: without it nothing is known."""
    probes = Bench(exploration=exploration, policy=Noted(policy)).play(goal_of(n, slowdown), history).probes

    tried = [p.mode for p in probes]
    first = probes[0].steps if probes and not history else 0
    assert len(probes) <= exploration.probes
    assert sum(p.steps for p in probes) <= max(exploration.share * n, first)
    assert len(set(tried)) == len(tried)
    assert not set(tried) & {m.mode for m in history}
    assert history or tried[:1] in ([], [MAXN])


def test_a_board_finds_the_cheap_mode_while_it_trains_and_works_the_rest_in_it() -> None:
    bench = Bench(policy=Noted(cheapest_known))
    played = bench.play(goal_of(40, 3.0), [seen(MAXN)])

    assert played.probes
    assert played.decision.mode == played.measured.mode == LOW
    assert played.predicted.mode == LOW
    assert played.predicted.power_w_sd_log < SURE, "predicted with the trials learnt"
    assert bench.device.mode == MAXN


def test_a_board_that_knows_nothing_tries_the_fastest_mode_first() -> None:
    assert Bench().play(goal_of(40, 3.0)).probes[0].mode == MAXN


def test_without_a_deadline_nothing_is_tried() -> None:
    played = Bench().play(goal_of(40, None))
    assert played.probes == ()
    assert played.measured.steps == 40


@pytest.mark.parametrize("off", [ExplorationSpec(share=0.0), ExplorationSpec(probes=0)])
@pytest.mark.parametrize("history", [[], [seen(MAXN)]])
def test_no_share_or_no_probes_turn_trying_off(off: ExplorationSpec, history: list[Measurement]) -> None:
    assert Bench(exploration=off).play(goal_of(40, 3.0), history).probes == ()


def test_a_deadline_of_one_s_own_that_is_shorter_than_the_planned_one_bounds_the_trials() -> None:
    tight, wide = goal_of(40, 1.001), goal_of(40, 3.0)
    own = dataclasses.replace(wide, limits={"deadline_s": tight.deadline_s or 0.0})
    still = ExplorationSpec(slack=0.0)

    def tried(goal: RoundGoal) -> tuple[Measurement, ...]:
        return Bench(exploration=still).play(goal, [seen(MAXN)]).probes

    assert tried(own) == tried(tight)
    assert tried(own) != tried(wide)


@given(st.integers(0, 99), st.integers(1, 3), st.lists(st.tuples(steps, kept_slowdowns), min_size=3, max_size=6))
@settings(max_examples=50)
def test_over_many_rounds_no_more_modes_than_the_limit_are_worked_in_and_none_is_late(
    probe_tenths: int, limit: int, asked: list[tuple[int, float]]
) -> None:
    """Once the fastest mode is known: rounds too short for its trial come without it."""
    exploration = ExplorationSpec(share=0.9, probe_s=probe_tenths / 10, slack=0.0, modes=limit, foresight=6.0)
    history = [seen(MAXN)]
    for n, slowdown in asked:
        goal = goal_of(n, slowdown)
        played = Bench(exploration=exploration).play(goal, history)
        history += parts_of(played)

        assert len({m.mode for m in history}) <= limit
        assert ended_s(played) <= (goal.deadline_s or 0.0) * (1 + 1e-6)


def test_at_the_limit_a_board_works_in_modes_that_it_knows_or_that_others_told_it_of_and_tries_no_more() -> None:
    told = [dataclasses.replace(seen(mode), board="nano-2") for mode in list(MODES)[::2]]
    exploration = ExplorationSpec(modes=1)
    history, trials = [seen(MAXN)], 0
    for slowdown in (3.0, 1.4, 1.15):
        played = Bench(exploration=exploration).play(goal_of(60, slowdown), history, told)
        history += parts_of(played)
        trials += len(played.probes)

    assert trials == 0
    assert {m.mode for m in history} <= {MAXN, *(m.mode for m in told)}


def test_at_the_limit_of_modes_nothing_is_tried_any_more() -> None:
    limited = ExplorationSpec(modes=2)
    assert Bench(exploration=limited).play(goal_of(60, 3.0), [seen(MAXN)]).probes
    assert Bench(exploration=limited).play(goal_of(60, 3.0), [seen(MAXN), seen(MID)]).probes == ()


def test_modes_that_other_boards_tried_need_no_trial_where_they_are_predicted_surely() -> None:
    told = [dataclasses.replace(seen(mode), board="nano-2") for mode in MODES]

    assert Bench().play(goal_of(60, 3.0), [seen(MAXN)]).probes
    assert Bench().play(goal_of(60, 3.0), [seen(MAXN)], told).probes == ()


SHORT = ExplorationSpec(probe_s=1000.0)
"""With it every probe takes longer than the round."""


def test_a_board_that_knows_nothing_and_has_no_time_for_a_probe_works_in_the_fastest_mode() -> None:
    played = Bench(policy=Noted(cheapest_known), exploration=SHORT).play(goal_of(2, 3.0))

    assert played.probes == ()
    assert played.measured.mode == MAXN
    assert (played.measured.steps, played.decision.mode) == (2, MAXN)


def test_in_a_round_too_short_for_a_probe_a_board_tries_a_mode_as_a_whole() -> None:
    played = Bench(exploration=SHORT).play(goal_of(2, 1.6), [seen(MAXN)])

    assert played.probes == ()
    assert played.measured.mode == played.decision.mode != MAXN
    assert played.decision.why == TRIAL_REASON
    assert played.measured.steps == 2


def test_in_the_last_round_nothing_is_probed() -> None:
    last = dataclasses.replace(goal_of(40, 3.0), rounds_left=0)
    played = Bench(policy=Noted(cheapest_known)).play(last, [seen(MAXN)])
    assert played.probes == ()
    assert played.decision.mode == MAXN
