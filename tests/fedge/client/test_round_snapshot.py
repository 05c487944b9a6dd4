"""Which modes the policy decides among, and what a change of mode is worth to it."""

from __future__ import annotations

import dataclasses

from contracts.rounds import ALL, MAXN, MID, Bench, Noted, goal_of, seen

from fedge.decisions.policies import load_policy
from fedge.experiment import ExplorationSpec
from fedge.types import RoundGoal


def test_without_a_deadline_a_board_leaves_a_mode_that_turned_out_to_break_the_limit() -> None:
    """Nothing is tried without a deadline, and only known modes are chosen from."""
    bench = Bench(policy=Noted(load_policy("fastest-within-power")))
    played = bench.play(RoundGoal("fastest-within-power", 40, limits={"power_w": 15.0}), [seen(MAXN)])

    assert played.measured.power_w <= 15.0


def test_with_a_limit_on_modes_a_policy_chooses_among_the_known_ones_alone() -> None:
    bench = Bench(exploration=ExplorationSpec(modes=2))
    bench.play(goal_of(40, 3.0), [seen(MAXN), seen(MID)])

    assert [set(modes) for modes in bench.policy.modes] == [{MAXN, MID}]


def test_a_change_of_mode_that_takes_longer_than_it_saves_is_not_made() -> None:
    slow = [dataclasses.replace(m, switch_s=25.0) for m in ALL]
    assert Bench().play(goal_of(60, 1.5), ALL).mixed is not None
    assert Bench().play(goal_of(60, 1.5), slow).mixed is None
