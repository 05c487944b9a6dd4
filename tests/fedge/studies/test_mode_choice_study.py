"""The game of deadlines on made-up boards: the bounds that its oracle and top mode set, and what a board learns."""

import dataclasses
import math

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, grid
from contracts.device import DeviceContract
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.devices import catalogue
from fedge.errors import UnknownName
from fedge.modes import build_grid as catalogue_grid
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.studies.mode_choice_study import (
    POLICIES,
    STUDY_MODES,
    ModeChoiceJob,
    ModeChoiceResult,
    TableDevice,
    run_mode_choice,
)
from fedge.types import Modes, ProfileTable

STEPS = 100


def run_choice(*job):
    return run_mode_choice(ModeChoiceJob(*job))


def made_up(seed: int, every: int = 3) -> ProfileTable:
    """Every so many modes of a made-up board, its top mode among them, a workload of its own per seed."""
    modes = Modes(grid().knobs[::-1][::every])
    truth = another_workload(np.random.default_rng(seed))
    seconds, watts = compute_step_s(truth, MAXN, modes), compute_power_w(truth, MAXN, modes)
    return ProfileTable("board", "net", 16, modes, seconds, watts, f"{seed:064d}", "board/train/net.csv")


@pytest.fixture(scope="module", params=[1, 2])
def learnt(request: pytest.FixtureRequest) -> ModeChoiceResult:
    """A board that plays on its own, 40 rounds."""
    return run_choice(made_up(request.param), 2.0, 40, STEPS, "fedge", 1)


NANO = catalogue_grid(catalogue.find("nano"))


class TestTableDevice(DeviceContract):
    """Of a board that the catalogue has."""

    modes = (NANO[len(NANO) - 1], NANO[0])

    @pytest.fixture
    def device(self) -> TableDevice:
        n = len(NANO)
        ones = np.ones(n)
        return TableDevice(ProfileTable("nano", "net", 16, NANO, ones, 5 * ones, "0" * 64, "t.csv"))

    def test_idling_draws_less_than_working(self, device):
        """Nothing at all: in this game waiting is free."""
        assert [device.idle_w(mode) for mode in self.modes] == [0.0, 0.0]


@given(st.integers(0, 99), st.sampled_from([1.0, 1.5, 4.0]), st.integers(1, 12), st.integers(1, 200))
@settings(max_examples=25)
def test_the_oracle_has_no_regret_and_the_top_mode_saves_nothing(seed, ratio, rounds, steps):
    table = made_up(seed, 20)
    oracle, top = (run_choice(table, ratio, rounds, steps, policy, seed) for policy in ("oracle", "maxn"))

    assert oracle.regret_pct == oracle.regret_after10_pct == pytest.approx(0.0, abs=1e-9)
    assert oracle.deadlines_missed == 0
    assert top.energy_saved_pct == pytest.approx(0.0, abs=1e-9)
    assert top.regret_pct >= -1e-9
    assert top.modes_explored == 1


@given(st.integers(0, 99), st.integers(1, 12), st.integers(1, 200))
@settings(max_examples=25)
def test_deadlines_are_the_seed_s_alone_and_lie_between_once_and_the_ratio(seed, rounds, steps):
    table, ratio = made_up(1, 20), 2.5
    games = [run_choice(table, ratio, rounds, steps, policy, seed) for policy in ("oracle", "maxn")]

    first, second = ([one.deadline_s for one in game.rounds] for game in games)
    fastest_s = steps * float(table.step_s.min())
    assert first == second
    assert [one.round for one in games[0].rounds] == list(range(1, rounds + 1))
    assert all(fastest_s * (1 - 1e-9) <= deadline_s <= ratio * fastest_s * (1 + 1e-9) for deadline_s in first)


@given(st.integers(0, 99), st.floats(1.0, 3.0))
@settings(max_examples=15)
def test_no_split_over_two_modes_beats_the_oracle(seed, ratio):
    table, steps = made_up(seed, 40), 7
    t, e = table.step_s, table.step_s * table.power_w

    for one in run_choice(table, ratio, 2, steps, "oracle", seed).rounds:
        least_j = min(
            k * e[a] + (steps - k) * e[b]
            for a in range(len(t))
            for b in range(len(t))
            for k in range(steps + 1)
            if k * t[a] + (steps - k) * t[b] <= one.deadline_s * (1 + 1e-9)
        )
        assert one.energy_j == pytest.approx(least_j)
        assert one.oracle_j == pytest.approx(least_j)


@pytest.fixture(scope="module")
def lucky() -> ProfileTable:
    """A board on which the power of one mode, 5 % above the least energy, was measured 15 % too low."""
    table = made_up(3, 1)
    power_w = table.power_w.copy()
    step_j = table.step_s * power_w
    power_w[np.argmin(np.abs(step_j / step_j.min() - 1.05))] *= 0.85
    return dataclasses.replace(table, power_w=power_w)


def test_neighbours_tell_the_optimum_of_a_smooth_table_but_no_single_row_that_deviates(lucky):
    smooth = run_choice(made_up(3, 1), 3.0, 10, STEPS, "neighbours", 1)
    deviating = run_choice(lucky, 3.0, 10, STEPS, "neighbours", 1)

    assert 0.0 <= smooth.regret_pct < 1.0
    assert smooth.deadlines_missed == deviating.deadlines_missed == 0
    assert deviating.regret_pct > 4.0


def test_a_board_misses_no_deadline_and_tries_few_modes(learnt):
    assert learnt.deadlines_missed == 0
    assert 2 <= learnt.modes_explored <= STUDY_MODES


def test_a_board_s_regret_falls_to_a_few_percent_and_it_saves_against_the_top_mode(learnt):
    def regret(rounds: slice) -> float:
        played = learnt.rounds[rounds]
        return sum(r.energy_j for r in played) / sum(r.oracle_j for r in played) - 1.0

    assert regret(slice(0, None)) >= -1e-9
    assert regret(slice(25, None)) < regret(slice(0, 5))
    assert regret(slice(25, None)) < 0.05
    assert learnt.regret_after10_pct <= learnt.regret_pct
    assert learnt.energy_saved_pct > 0


def test_a_board_s_rows_tell_what_it_worked_in(learnt):
    """The modes' steps add up to the round's, and what was explored never gets less."""
    explored = [one.explored for one in learnt.rounds]
    for one in learnt.rounds:
        assert sum(int(part.split(" in ")[0]) for part in one.modes.split(", ")) == STEPS
        assert one.missed == (one.time_s > 1.01 * one.deadline_s)
    assert explored == sorted(explored)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(policy):
    table = made_up(3, 9)
    one, again, other = (run_choice(table, 2.0, 4, STEPS, policy, seed) for seed in (1, 1, 2))

    assert one == again
    assert [r.deadline_s for r in one.rounds] != [r.deadline_s for r in other.rounds]


def test_figures_are_sums_over_the_run_and_after_ten_leaves_the_first_nine_out():
    game = run_choice(made_up(1, 9), 3.0, 12, STEPS, "maxn", 1)
    late = game.rounds[9:]

    assert game.regret_pct == pytest.approx(
        100 * (sum(r.energy_j for r in game.rounds) / sum(r.oracle_j for r in game.rounds) - 1)
    )
    assert game.regret_after10_pct == pytest.approx(
        100 * (sum(r.energy_j for r in late) / sum(r.oracle_j for r in late) - 1)
    )
    assert math.isclose(
        run_choice(made_up(1, 9), 3.0, 5, STEPS, "maxn", 1).regret_after10_pct,
        run_choice(made_up(1, 9), 3.0, 5, STEPS, "maxn", 1).regret_pct,
    )


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match="oracle"):
        run_choice(made_up(1, 40), 2.0, 1, 5, "fastest", 1)
