"""What is measured is learnt at once, other boards' measurements stay theirs, and the next offer knows it all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from contracts.rounds import (
    ALL,
    LINK,
    MAXN,
    MID,
    MODES,
    TRUTH,
    Bench,
    Doubtful,
    Truth,
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
from fedge.experiment import ExplorationSpec
from fedge.types import Front, Measurement, Modes, PowerMode, Predictions


@given(steps, slowdowns, explorations, histories)
@settings(max_examples=50)
def test_what_a_trial_measured_is_learnt_at_once_and_the_whole_round_for_the_next_offer(
    n: int, slowdown: float | None, exploration: ExplorationSpec, history: list[Measurement]
) -> None:
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
def test_an_offer_is_the_same_when_only_the_spreads_of_its_own_modes_are_predicted(
    step_s: list[float], power_w: list[float], own: list[tuple[PowerMode, float, float]], low_power: bool
) -> None:
    truth = Truth(np.array(step_s), np.array(power_w))
    measured = [dataclasses.replace(seen(mode), step_s=seconds, power_w=w) for mode, seconds, w in own]
    peer = dataclasses.replace(seen(MAXN), board="nano-2")

    def offer(predictor: Doubtful, *, again: bool) -> Front:
        player = dataclasses.replace(Bench(predictor=predictor).player, includes_low_power=low_power)
        return run_alone(build_offer(player, measured, [peer], 40, LINK, used_again=again))

    predictor = Frugal(time_sd=0.2, truth=truth)
    assert offer(predictor, again=False) == offer(Doubtful(time_sd=0.2, truth=truth), again=True)


def test_spreads_of_other_modes_are_not_asked_for_unless_the_next_round_may_use_the_same_predictions() -> None:
    truth = Truth(np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 10.0, 3.0, 10.0]))
    asked = [Frugal(truth=truth) for _ in range(2)]

    for predictor, again in zip(asked, (False, True), strict=True):
        player = Bench(predictor=predictor).player
        run_alone(build_offer(player, [seen(MAXN)], [], 40, LINK, used_again=again))

    assert asked[0].chosen.tolist() == [0, 1, 2], "not the mode that is slower and dearer than others"
    assert not hasattr(asked[1], "chosen")


def test_what_other_boards_measured_never_counts_as_one_s_own() -> None:
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
def test_other_boards_are_believed_unless_half_of_the_own_measurements_lie_off_with_them(
    time_off: list[float], power_off: list[float], hot: list[bool]
) -> None:
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


def test_a_mode_of_another_board_is_known_when_both_its_figures_are_sure_and_an_own_one_always() -> None:
    sure, unsure = 0.9 * KNOWN_MODE_SD_LOG, 1.1 * KNOWN_MODE_SD_LOG
    time_sd, power_sd = np.array([unsure, sure, sure, unsure]), np.array([unsure, sure, unsure, sure])
    predictions = Predictions(MODES, TRUTH.step_s, TRUTH.power_w, time_sd, power_sd)

    assert find_known_modes(predictions, [seen(MAXN)], ALL) == {MAXN, MID}
    assert find_known_modes(predictions, [seen(MAXN)], []) == {MAXN}
