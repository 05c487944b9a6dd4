"""What is measured is learnt at once, other boards' measurements stay theirs, and the next offer knows it all."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from contracts.rounds import (
    ALL,
    LINK,
    MAXN,
    MID,
    MODES,
    TRUTH,
    Bench,
    Doubtful,
    Noted,
    Truth,
    ended_s,
    explorations,
    goal_of,
    histories,
    parts_of,
    seen,
    slowdowns,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedge.client.evidence import (
    KNOWN_MODE_SD_LOG,
    PEER_DISAGREEMENT_LOG,
    build_offer,
    find_known_modes,
    select_consistent_peers,
)
from fedge.client.prediction_requests import run_alone
from fedge.decisions.planning import load_planner
from fedge.decisions.policies import load_policy
from fedge.experiment import ExplorationSpec
from fedge.types import Front, Measurement, Modes, Predictions, RoundGoal


@given(steps, slowdowns, explorations, histories)
@settings(max_examples=50)
def test_what_a_trial_measured_is_learnt_at_once_and_the_whole_round_for_the_next_offer(
    n, slowdown, exploration, history
):
    bench = Bench(exploration=exploration)

    played = bench.play(goal_of(n, slowdown), history)

    probes = played.probes
    expected = [(*history, *probes[:i]) for i in range(len(probes) + 1)]
    assert bench.predictor.learnt == [*expected, (*history, *parts_of(played))]
    assert played.own_samples == len(history) + len(probes)


class Frugal(Doubtful):
    """Says how sure it is of the chosen modes only, and remembers how many they were."""

    def predict_chosen(
        self, modes: Modes, choose_rows: Callable[[Predictions], NDArray[np.intp] | None]
    ) -> Predictions:
        full, unknown = self.predict(modes), np.full(len(modes), np.nan)
        rows = choose_rows(dataclasses.replace(full, step_s_sd_log=unknown, power_w_sd_log=unknown))
        self.chosen = np.arange(len(modes)) if rows is None else rows
        kept = np.isin(np.arange(len(modes)), self.chosen)
        time_sd, power_sd = (np.where(kept, sd, np.nan) for sd in (full.step_s_sd_log, full.power_w_sd_log))
        return dataclasses.replace(full, step_s_sd_log=time_sd, power_w_sd_log=power_sd)


watts = st.floats(2.0, 40.0)


@given(
    st.lists(st.floats(0.5, 4.0), min_size=4, max_size=4),
    st.lists(watts, min_size=4, max_size=4),
    st.lists(st.tuples(st.sampled_from(list(MODES)), st.floats(0.5, 4.0), watts), max_size=6),
    st.booleans(),
)
def test_an_offer_is_the_same_when_only_the_spreads_of_its_own_modes_are_predicted(step_s, power_w, own, low_power):
    truth = Truth(np.array(step_s), np.array(power_w))
    measured = [dataclasses.replace(seen(mode), step_s=seconds, power_w=w) for mode, seconds, w in own]
    peer = dataclasses.replace(seen(MAXN), board="nano-2")

    def offer(predictor: Doubtful, *, again: bool) -> Front:
        player = dataclasses.replace(Bench(predictor=predictor).player, includes_low_power=low_power)
        return run_alone(build_offer(player, measured, [peer], 40, LINK, used_again=again))

    predictor = Frugal(time_sd=0.2, truth=truth)
    assert offer(predictor, again=False) == offer(Doubtful(time_sd=0.2, truth=truth), again=True)


def test_spreads_of_other_modes_are_not_asked_for_unless_the_next_round_may_use_the_same_predictions():
    truth = Truth(np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 10.0, 3.0, 10.0]))
    asked = [Frugal(truth=truth) for _ in range(2)]

    for predictor, again in zip(asked, (False, True), strict=True):
        player = Bench(predictor=predictor).player
        run_alone(build_offer(player, [seen(MAXN)], [], 40, LINK, used_again=again))

    assert asked[0].chosen.tolist() == [0, 1, 2], "not the mode that is slower and dearer than others"
    assert not hasattr(asked[1], "chosen")


class Optimist(Doubtful):
    """Knows what was measured; takes one other mode for twice as fast as the fastest mode is."""

    def predict(self, modes: Modes) -> Predictions:
        known = super().predict(modes)
        seen = [modes.knobs.tolist().index([m.mode.cores, m.mode.cpu_mhz, m.mode.gpu_mhz, m.mode.mem_mhz])
                for m in self.learnt[-1]]  # fmt: skip
        hoped = np.array([1.0, 0.5, 1.3, 2.0])
        hoped[seen] = known.step_s[seen]
        return dataclasses.replace(known, step_s=hoped)


@pytest.mark.parametrize("slack", [0.0, 0.02])
@pytest.mark.parametrize("policy", ["balanced", "least-energy"])
def test_a_plan_does_not_stay_with_a_deadline_that_needs_a_mode_that_is_never_tried(policy, slack):
    """The board promised what it would not choose untried, so that the plan left it no time to try it either."""
    exploration = ExplorationSpec(slack=slack)
    measurements: list[Measurement] = []
    planner, late = load_planner(policy), []
    front = run_alone(
        build_offer(Bench(predictor=Optimist(0.05), exploration=exploration).player, [], [], 40, LINK, used_again=False)
    )

    for left in range(7, -1, -1):
        goal = RoundGoal(policy, 40, rounds_left=left)
        plan = planner({"nano-1": front}, ["nano-1"], goal)
        bench = Bench(predictor=Optimist(0.05), exploration=exploration, policy=Noted(load_policy(policy)))
        played = bench.play(plan.goals["nano-1"], measurements)
        measurements += parts_of(played)
        front = played.front
        late.append(ended_s(played) > 1.02 * plan.deadline_s)

    assert not any(late[2:])


def test_an_untried_mode_is_offered_as_faster_than_the_measured_ones_only_where_it_may_be_chosen_untried():
    def least_s(exploration: ExplorationSpec, measured: list[Measurement]) -> float:
        player = Bench(predictor=Optimist(0.05), exploration=exploration).player
        return run_alone(build_offer(player, measured, [], 40, LINK, used_again=False)).points[0].work_s

    assert least_s(ExplorationSpec(), [seen(MAXN)]) == pytest.approx(40.0)
    assert least_s(ExplorationSpec(), []) == pytest.approx(20.0)
    assert least_s(ExplorationSpec(modes=None), [seen(MAXN)]) == pytest.approx(20.0)


def test_what_other_boards_measured_never_counts_as_one_s_own():
    told = [dataclasses.replace(seen(mode, 9.0, 7.0), board="nano-2") for mode in MODES]
    bench, tight = Bench(), goal_of(40, 1.2)

    played = bench.play(tight, [seen(MAXN, 1.5)], told)

    assert played.shared_samples == len(told)
    assert played.own_samples == 1 + len(played.probes)
    assert bench.policy.goals[0].steps == 40 + 1.5, "the warm-up is the board's own"
    assert played.front.switch_s == Bench().play(tight, [seen(MAXN, 1.5)]).front.switch_s
    tried = {MAXN, *(part.mode for part in parts_of(played))}
    rows = [i for i, mode in enumerate(MODES) if mode not in tried]
    assert rows
    np.testing.assert_array_equal(played.predictions.power_w_sd_log[rows], 0.0)
    assert (played.predictions.power_w_sd_log[[i for i in range(4) if i not in rows]] > 0).any()


off = st.lists(st.sampled_from([-0.3, -0.07, -0.04, 0.0, 0.04, 0.07, 0.3]), min_size=4, max_size=4)


@given(off, off, st.lists(st.booleans(), min_size=4, max_size=4))
def test_other_boards_are_believed_unless_half_of_the_own_measurements_lie_off_with_them(time_off, power_off, hot):
    """Throttled measurements do not judge; ``*_off`` is in log units."""
    own = [
        dataclasses.replace(m, step_s=m.step_s * np.exp(t), power_w=m.power_w * np.exp(w), throttled=h)
        for m, t, w, h in zip(ALL, time_off, power_off, hot, strict=True)
    ]
    told = [dataclasses.replace(seen(MID), board="nano-2")]
    kept = [(abs(t), abs(w)) for t, w, h in zip(time_off, power_off, hot, strict=True) if not h]
    miss = np.median(kept, axis=0).max() if kept else 0.0

    peers = run_alone(select_consistent_peers(Bench().player, own, told))

    assert peers == (() if miss > PEER_DISAGREEMENT_LOG else tuple(told))


def test_a_mode_of_another_board_is_known_when_both_its_figures_are_sure_and_an_own_one_always():
    sure, unsure = 0.9 * KNOWN_MODE_SD_LOG, 1.1 * KNOWN_MODE_SD_LOG
    time_sd, power_sd = np.array([unsure, sure, sure, unsure]), np.array([unsure, sure, unsure, sure])
    predictions = Predictions(MODES, TRUTH.step_s, TRUTH.power_w, time_sd, power_sd)

    assert find_known_modes(predictions, [seen(MAXN)], ALL) == {MAXN, MID}
    assert find_known_modes(predictions, [seen(MAXN)], []) == {MAXN}
