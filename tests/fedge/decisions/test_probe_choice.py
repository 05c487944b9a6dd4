"""A trial never makes the rest of a round late, and goes where it is expected to save most."""

from __future__ import annotations

import dataclasses
import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, grid
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.decisions import probe_choice
from fedge.decisions.mode_mix import least_energy_per_step
from fedge.decisions.probe_choice import (
    MIN_EXPECTED_SAVING,
    SPREAD_FACTOR,
    TEACHING_SLOWDOWN,
    ProbeBudget,
    count_probe_steps,
    find_anchor_mode,
    find_mode_to_repeat,
    find_most_saving_mode,
    find_trial_mode,
    is_probe_worthwhile,
    list_informative_modes,
    scale_slack,
)
from fedge.pareto import front_mask
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

GRID = Modes(np.array([[c, 1000.0, g, 1600.0] for c in (2, 4) for g in (300.0, 600.0, 900.0)]))
IDLE_W = 2.0
PLENTY = ProbeBudget(steps=200.0, left_s=1000.0, probe_s=0.5, margin_z=1.0, allowed_s=(2.0,), foresight=1.0)


def table(times: list[float], powers: list[float], sds: list[float]) -> Predictions:
    """The first modes of the toy board, times and powers each with the same spread."""
    return Predictions(
        Modes(GRID.knobs[: len(times)]), np.array(times), np.array(powers), np.array(sds), np.array(sds)
    )  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> Predictions:
    n = draw(st.integers(2, len(GRID)))

    def column(of: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(of, min_size=n, max_size=n))

    return table(
        column(st.floats(0.2, 3.0)), column(st.floats(3.0, 30.0)), column(st.sampled_from([0.0, 0.02, 0.1, 0.3]))
    )


rooms = st.builds(
    ProbeBudget,
    steps=st.integers(1, 60).map(float),
    left_s=st.floats(0.5, 120.0),
    probe_s=st.sampled_from([0.0, 0.5, 2.5]),
    margin_z=st.sampled_from([0.0, 1.0, 2.0]),
    allowed_s=st.lists(st.floats(0.1, 4.0), min_size=1, max_size=3).map(tuple),
    foresight=st.sampled_from([0.0, 0.5, 6.0]),
    switch_s=st.sampled_from([0.0, 0.3]),
    warm_up=st.sampled_from([0.0, 1.0]),
)


def proposals(predictions: Predictions, known: int, room: ProbeBudget) -> list[int]:
    """The rows that may be tried next, where those before ``known`` are known."""
    modes = [predictions.modes[row] for row in range(known)]
    best = find_most_saving_mode(predictions, IDLE_W, modes, room)
    rows = list(predictions.modes)
    return [
        rows.index(mode)
        for mode in (*list_informative_modes(predictions, IDLE_W, modes, room), *([best] if best else []))
    ]


def worst_end_s(predictions: Predictions, row: int, room: ProbeBudget) -> float:
    """The latest end over all outcomes within the margin: the trial in ``row``, the rest in whatever is fastest then.

    Brute force: every mode is as slow as its margin allows, as expected, or as fast as it allows, the rest goes to the
    mode that is fastest if all are at their slowest. The trial is warmed up to, and the mode is changed twice.
    """
    steps = max(1, math.ceil(room.probe_s / predictions.step_s[row]))
    slowest = predictions.step_s * np.exp(room.margin_z * predictions.step_s_sd_log)
    rest = int(np.argmin(slowest))
    ends = []
    for signs in itertools.product((-1.0, 0.0, 1.0), repeat=2):
        off = dict(zip((row, rest), signs, strict=True))
        trial_s, rest_s = (
            predictions.step_s[r] * math.exp(off[r] * room.margin_z * predictions.step_s_sd_log[r]) for r in (row, rest)
        )
        rest_steps = room.steps - room.warm_up - steps
        ends.append((steps + room.warm_up) * trial_s + rest_steps * rest_s + 2 * room.switch_s)
    return max(ends)


@given(tables(), st.integers(1, 3), rooms, st.floats(0.95, 1.3))
@settings(max_examples=300)
def test_whatever_comes_out_within_the_margin_the_rest_of_the_round_ends_in_time(predictions, known, room, tight):
    """With about as much time as the round takes at full speed."""
    left_s = tight * room.steps * float((predictions.step_s * np.exp(predictions.step_s_sd_log)).min())
    room = dataclasses.replace(room, left_s=left_s)
    for row in proposals(predictions, min(known, len(predictions.modes)), room):
        assert worst_end_s(predictions, row, room) <= room.left_s * (1 + 1e-9)


@given(tables(), st.integers(0, 5), rooms, st.sampled_from([0.999, 1.001]))
def test_a_probe_is_worthwhile_only_if_it_ends_in_time_at_worst_and_is_at_most_half_of_what_is_left(
    predictions, place, room, tight
):
    row = place % len(predictions.modes)
    room = dataclasses.replace(room, left_s=tight * worst_end_s(predictions, row, room))
    half = 2 * count_probe_steps(predictions.step_s, room)[row] <= room.steps
    known = [predictions.modes[(row + 1) % len(predictions.modes)]]

    if is_probe_worthwhile(predictions, IDLE_W, mode=predictions.modes[row], known=known, room=room):
        assert tight > 1
        assert half
    absent = PowerMode(6, 1000.0, 300.0, 1600.0)
    assert not is_probe_worthwhile(predictions, IDLE_W, mode=absent, known=known, room=PLENTY)


def test_a_probe_is_made_only_if_the_rounds_that_are_left_can_pay_it_back():
    """A probe of 40 of the 100 steps in a mode that takes 14 J per step instead of 10 J, and at its worst 21 J."""
    predictions = table([1.0, 1.0], [12.0, 16.0], [0.01, 0.2])
    known, mode = [predictions.modes[0]], predictions.modes[1]
    room = ProbeBudget(steps=100.0, left_s=1000.0, probe_s=40.0, margin_z=1.0, allowed_s=(1.5,))

    def pays(rounds_left: int) -> bool:
        left = dataclasses.replace(room, rounds_left=rounds_left)
        return is_probe_worthwhile(predictions, IDLE_W, mode=mode, known=known, room=left)

    saved = 1.0 - math.exp(-0.2) * (16.0 * math.exp(-0.2) - IDLE_W) / 10.0
    careful_j = math.exp(0.2) * (16.0 * math.exp(0.2) - IDLE_W)
    rounds = math.ceil(0.4 * (careful_j - 10.0) / 10.0 / saved)
    assert 1 < rounds < 20
    assert [pays(left) for left in (0, rounds - 1, rounds)] == [False, False, True]


def test_with_few_rounds_left_no_slow_mode_is_probed():
    predictions = table([1.0, 1.7], [12.0, 4.0], [0.01, 0.1])
    room = dataclasses.replace(PLENTY, allowed_s=(3.0,), rounds_left=5)
    known = [predictions.modes[0]]

    assert find_most_saving_mode(predictions, IDLE_W, known, room) == predictions.modes[1]
    assert find_most_saving_mode(predictions, IDLE_W, known, dataclasses.replace(room, rounds_left=4)) is None


def test_in_the_last_round_no_mode_is_probed_for_what_it_teaches():
    predictions, known = board(1), [MAXN]
    room = ProbeBudget(steps=500.0, left_s=1e6, probe_s=0.5, margin_z=1.0, allowed_s=(1.0,))

    assert len(list_informative_modes(predictions, 3.0, known, room)) > 0
    assert len(list_informative_modes(predictions, 3.0, known, dataclasses.replace(room, rounds_left=0))) == 0


def test_a_round_that_is_too_short_for_a_probe_may_try_one_mode_as_a_whole():
    """Two steps; the second mode takes 8.2 J above idling instead of 10 J, the third is too slow."""
    predictions = table([1.0, 1.2, 3.0], [12.0, 8.8, 3.0], [0.01, 0.1, 0.1])
    known = [predictions.modes[0]]
    room = ProbeBudget(steps=2.0, left_s=4.0, probe_s=0.5, margin_z=1.0, allowed_s=(2.0,), rounds_left=3)

    def trial(**changes: float) -> PowerMode | None:
        return find_trial_mode(predictions, IDLE_W, known, dataclasses.replace(room, **changes))

    assert find_most_saving_mode(predictions, IDLE_W, known, room) == predictions.modes[1]
    assert find_most_saving_mode(predictions, IDLE_W, known, dataclasses.replace(room, steps=1.0)) is None
    assert trial(steps=1.0) == trial() == predictions.modes[1]
    assert trial(left_s=2.0 * 1.2 * math.exp(0.1) - 0.01) is None
    assert trial(rounds_left=0) is None, "with the margin it takes 1.33 s at 9.7 W, more than the first"


def test_in_the_last_round_a_mode_is_tried_as_a_whole_only_if_it_saves_at_its_worst_too():
    predictions = table([1.0, 1.2, 1.3], [12.0, 8.0, 7.0], [0.01, 0.02, 0.2])
    room = ProbeBudget(steps=2.0, left_s=9.0, probe_s=0.5, margin_z=1.0, allowed_s=(4.0,), rounds_left=0)

    assert find_trial_mode(predictions, IDLE_W, [predictions.modes[0]], room) == predictions.modes[1]
    assert find_trial_mode(predictions, IDLE_W, [predictions.modes[1]], room) is None


def test_probes_extend_the_first_of_few_rounds_by_less():
    assert [scale_slack(0.02, left) for left in (0, 1, 5, 14)] == [0.0, pytest.approx(0.004), 0.02, 0.02]


@given(tables(), st.integers(1, 3), rooms)
def test_a_probe_is_of_a_new_mode_and_at_most_half_of_what_is_left(predictions, known, room):
    known = min(known, len(predictions.modes))
    lengths = count_probe_steps(predictions.step_s, room)
    for row in proposals(predictions, known, room):
        assert row >= known
        assert 2 * lengths[row] <= room.steps


@given(st.floats(0.01, 5.0), st.floats(0.0, 3.0))
def test_a_probe_lasts_as_long_as_asked_in_as_few_whole_steps_as_that_takes(step, probe_s):
    count = float(count_probe_steps(np.array([step]), dataclasses.replace(PLENTY, probe_s=probe_s))[0])

    assert count == int(count) >= 1
    assert count * step >= probe_s * (1 - 1e-9)
    assert count == 1 or (count - 1) * step < probe_s


def least_j(times: Floats, powers: Floats, rows: list[int], allowed_s: float) -> float:
    """Joules above idling per minibatch of the best mix of two of ``rows``."""
    t, e = times[rows], times[rows] * (powers[rows] - IDLE_W)
    return float(least_energy_per_step(t, e, t, e, np.array([allowed_s])).min())


@given(tables(), st.integers(1, 3), rooms)
def test_where_everything_is_known_exactly_a_mode_is_proposed_only_if_it_saves(predictions, known, room):
    known = min(known, len(predictions.modes))
    none = np.zeros(len(predictions.modes))
    exact = dataclasses.replace(predictions, step_s_sd_log=none, power_w_sd_log=none)
    modes = [exact.modes[row] for row in range(known)]

    found = find_most_saving_mode(exact, IDLE_W, modes, room)

    if found is None:
        return
    row = list(exact.modes).index(found)
    before, fastest_s = list(range(known)), float(exact.step_s[:known].min())
    levels = [*(max(s, fastest_s) for s in room.allowed_s), *(fastest_s * np.linspace(1.0, 5.0, 400))]
    assert any(
        least_j(exact.step_s, exact.power_w, [*before, row], s) < least_j(exact.step_s, exact.power_w, before, s)
        for s in levels
    )


def test_nothing_is_proposed_where_nothing_can_be_better():
    """Both others are slower and dearer, by far more than their spread."""
    hopeless = table([1.0, 1.5, 1.2], [10.0, 20.0, 30.0], [0.0, 0.02, 0.02])

    assert find_most_saving_mode(hopeless, IDLE_W, [GRID[0]], PLENTY) is None


def test_a_mode_that_may_be_better_is_proposed_though_it_is_expected_to_be_worse():
    doubtful = table([1.0, 1.2], [10.0, 9.5], [0.0, 0.3])
    sure = dataclasses.replace(doubtful, step_s_sd_log=np.zeros(2), power_w_sd_log=np.zeros(2))

    assert find_most_saving_mode(doubtful, IDLE_W, [GRID[0]], PLENTY) == GRID[1]
    assert find_most_saving_mode(sure, IDLE_W, [GRID[0]], PLENTY) is None


@given(st.floats(1.05, 1.9), st.floats(0.4, 0.8), st.integers(1, 5))
def test_the_mode_that_is_better_for_sure_is_proposed(slower, cheaper, place):
    """It saves ``1 - cheaper`` of the joules in the time that is allowed; all the others save nothing."""
    times, powers = np.full(6, 1.0), np.full(6, 12.0)
    powers[1:], times[1:] = 13.0, 1.05
    times[place], powers[place] = slower, IDLE_W + cheaper * 10.0 / slower
    exact = table(list(times), list(powers), [0.0] * 6)

    assert find_most_saving_mode(exact, IDLE_W, [GRID[0]], PLENTY) == GRID[place]


def test_a_mode_is_measured_again_if_it_would_save_were_its_doubted_measurement_true():
    known, dear = [GRID[0], GRID[1], GRID[2]], table([1.0, 1.2, 1.2, 1.2], [20.0, 30.0, 30.0, 1.0], [0.01] * 4)

    def repeated(*powers: float) -> PowerMode | None:
        doubted = [Measurement(GRID[row], 9, 1.2, power_w) for row, power_w in enumerate(powers, start=1)]
        return find_mode_to_repeat(dear, IDLE_W, known, doubted, PLENTY)

    assert repeated(10.0) == GRID[1]
    assert repeated(10.0, 8.0) == GRID[2], "it would save more"
    assert repeated(19.0, 40.0) is None, "neither would save"
    assert repeated() is None


@pytest.mark.parametrize(("left_s", "found"), [(205.0, GRID[1]), (195.0, None)])
def test_a_doubted_time_leaves_no_less_time_for_the_rest_of_the_round(left_s, found):
    """A measurement says ten times as fast; at the predicted speed the 200 steps take 200 s."""
    predictions = table([1.0, 1.0], [20.0, 20.0], [0.0, 0.0])
    doubted = [Measurement(GRID[1], 9, 0.1, 20.0)]
    room = dataclasses.replace(PLENTY, left_s=left_s)

    assert find_mode_to_repeat(predictions, IDLE_W, [GRID[0], GRID[1]], doubted, room) == found


def test_a_doubted_measurement_is_not_repeated_where_no_mode_is_known_to_be_relied_on():
    only = [Measurement(GRID[0], 9, 1.0, 5.0)]

    assert find_mode_to_repeat(table([1.0, 1.2], [20.0, 10.0], [0.01] * 2), IDLE_W, [GRID[0]], only, PLENTY) is None


@given(st.sampled_from([0.9, 1.1]), st.integers(1, 6), st.sampled_from([0.0, 0.5, 6.0]))
def test_the_least_saving_that_is_worth_a_probe_is_a_share_of_one_round_however_many_are_seen(least, rounds, foresight):
    saving = least * MIN_EXPECTED_SAVING
    exact = table([1.0, 1.0], [IDLE_W + 10.0, IDLE_W + 10.0 * (1.0 - saving)], [0.0, 0.0])
    room = dataclasses.replace(PLENTY, allowed_s=(2.0,) * rounds, foresight=foresight)

    assert (find_most_saving_mode(exact, IDLE_W, [GRID[0]], room) is not None) == (least > 1.0)


@given(st.floats(0.05, 0.3))
def test_an_unsure_power_is_worth_the_mean_of_what_it_may_save(sd):
    """Against a mode that saves a little less for sure, and one that saves a little more."""
    normal = NormalDist()
    drawn_w = [12.0 * math.exp(SPREAD_FACTOR * sd * normal.inv_cdf((i + 0.5) / 1000)) for i in range(1000)]
    saving = float(np.mean([max(0.0, 1.0 - (watts - IDLE_W) / 10.0) for watts in drawn_w]))

    for factor, row in ((0.7, 1), (1.3, 2)):
        unsure = dataclasses.replace(
            table([1.0, 1.0, 1.0], [12.0, 12.0, 12.0 - 10.0 * factor * saving], [0.0, 0.0, 0.0]),
            power_w_sd_log=np.array([0.0, sd, 0.0]),
        )
        assert find_most_saving_mode(unsure, IDLE_W, [GRID[0]], PLENTY) == GRID[row]


@given(tables(), st.integers(1, 3), rooms, st.sampled_from([0.5, IDLE_W, 8.0]), st.integers(0, 30))
def test_ruling_rows_out_by_their_best_case_changes_no_choice(predictions, known, room, idle_w, rounds_left):
    room = dataclasses.replace(room, rounds_left=rounds_left)
    rows = list(range(min(known, len(predictions.modes))))
    modes = [predictions.modes[row] for row in rows]
    if predictions.power_w[rows].min() <= idle_w:
        return  # a known mode below idle power: nothing is a share of its energy
    costs = probe_choice._compute_round_costs(predictions, idle_w, rows, room)
    every = np.arange(len(predictions.modes))
    cases = [(SPREAD_FACTOR * a, SPREAD_FACTOR * b) for a in probe_choice.QUANTILES for b in probe_choice.QUANTILES]
    worth = np.mean([costs.compute_savings(every, *case) for case in cases], axis=0)
    spent = probe_choice._probe_cost(predictions, idle_w, every, float(costs.now_j[-1]), room)
    safe = probe_choice._mask_safe(predictions, room, rows)
    net = np.where(safe, worth - spent / max(1, min(rounds_left, probe_choice.MAX_ROUNDS_AHEAD)), -np.inf)
    most = float(net.max())

    found = find_most_saving_mode(predictions, idle_w, modes, room)

    if found is None:
        assert most <= MIN_EXPECTED_SAVING + 1e-12 or rounds_left == 0
    else:
        assert net[list(predictions.modes).index(found)] == pytest.approx(most, abs=1e-12)


def test_where_not_all_modes_are_evaluated_those_are_that_may_save_most(monkeypatch):
    unsure = dataclasses.replace(
        table([1.0, 1.0, 1.0], [20.0, 18.0, 17.5], [0.0, 0.0, 0.0]), power_w_sd_log=np.array([0.0, 0.3, 0.0])
    )

    for limit in (2, 1):
        monkeypatch.setattr(probe_choice, "MAX_CANDIDATES", limit)
        assert find_most_saving_mode(unsure, IDLE_W, [GRID[0]], PLENTY) == GRID[1]


def test_the_deadlines_that_a_board_has_decide_what_is_worth_trying():
    """The faster one saves little, the slower one saves much, but only where there is time for it."""
    exact = table([1.0, 1.1, 1.9], [20.0, 14.0, 4.0], [0.0, 0.0, 0.0])
    tight, wide = (
        dataclasses.replace(PLENTY, allowed_s=(allowed_s,), foresight=0.0, left_s=200 * allowed_s)
        for allowed_s in (1.1, 1.9)
    )

    assert find_most_saving_mode(exact, IDLE_W, [GRID[0]], tight) == GRID[1]
    assert find_most_saving_mode(exact, IDLE_W, [GRID[0]], wide) == GRID[2]


def test_a_change_of_mode_that_costs_more_than_the_rounds_left_can_save_is_not_made():
    exact = table([1.0, 1.2], [20.0, 10.0], [0.0, 0.3])

    assert find_most_saving_mode(exact, IDLE_W, [GRID[0]], dataclasses.replace(PLENTY, switch_j=1.0)) == GRID[1]
    assert find_most_saving_mode(exact, IDLE_W, [GRID[0]], dataclasses.replace(PLENTY, switch_j=1e9)) is None


def test_a_mode_without_a_finite_prediction_is_never_proposed_and_keeps_no_other_from_it():
    broken = table([1.0, math.nan, 1.2], [20.0, 5.0, 10.0], [0.0, 0.1, 0.1])

    assert find_most_saving_mode(broken, IDLE_W, [GRID[0]], PLENTY) == GRID[2]
    assert GRID[1] not in list_informative_modes(broken, IDLE_W, [GRID[0]], PLENTY)


def board(seed: int) -> Predictions:
    """A made-up board's whole grid, spread 10 %."""
    truth, modes = another_workload(np.random.default_rng(seed)), grid()
    spread = np.full(len(modes), 0.1)
    return Predictions(modes, compute_step_s(truth, MAXN, modes), compute_power_w(truth, MAXN, modes), spread, spread)


@pytest.mark.parametrize("seed", range(5))
def test_informative_modes_are_those_of_the_front_and_near_it_that_are_quick_and_are_few(seed):
    """Of each there is a mode no slower that is not much cheaper; idle 3 W."""
    predictions, known = board(seed), [MAXN]
    fastest_s = float(predictions.step_s.min())
    room = ProbeBudget(500.0, 5000.0 * fastest_s, probe_s=0.5, margin_z=1.0, allowed_s=(1.5 * fastest_s,))

    told = list_informative_modes(predictions, 3.0, known, room)

    joules = predictions.step_s * (predictions.power_w - 3.0)
    front = front_mask(predictions.step_s, joules)
    rows = [list(predictions.modes).index(mode) for mode in told]
    assert 0 < len(rows) < len(predictions.modes) / 2
    quick = front & (predictions.step_s <= TEACHING_SLOWDOWN * fastest_s)
    assert {int(row) for row in np.flatnonzero(quick) if predictions.modes[int(row)] != MAXN} <= set(rows)
    for row in rows:
        no_slower = predictions.step_s <= predictions.step_s[row]
        assert joules[row] <= 1.25 * joules[no_slower].min()
        assert predictions.step_s[row] <= 2.0 * fastest_s


@pytest.mark.parametrize("seed", range(3))
def test_few_modes_are_tried_for_what_they_teach_alone(seed):
    predictions = board(seed)
    room = ProbeBudget(steps=500.0, left_s=1e6, probe_s=0.5, margin_z=1.0)
    several = [predictions.modes[row] for row in (0, 50, 100, 150, 200, 250)]

    assert len(list_informative_modes(predictions, 3.0, [*several, MAXN], room)) == 0


@pytest.mark.parametrize(
    ("rounds_left", "measured_mhz", "chosen"),
    [
        (40, 900.0, (450.0, 400.0)),
        (7, 900.0, (450.0, 1600.0)),
        (3, 900.0, None),
        (0, 900.0, None),
        (40, 600.0, (450.0, 400.0)),
        (40, 450.0, None),
    ],
)
def test_a_run_that_is_kept_measures_one_mode_of_low_clocks_that_takes_little_of_its_time(
    rounds_left, measured_mhz, chosen
):
    """Rounds of 100 s at work; a step takes as long as the clocks are low."""
    grid = [(c, 1000.0, g, m) for c in (4, 2) for g in (900.0, 600.0, 450.0, 300.0) for m in (1600.0, 400.0)]
    modes, flat = Modes(np.array(grid)), np.full(len(grid), 0.1)
    step_s = 3.0 * 900.0 * 1600.0 / (modes.knobs[:, 2] * modes.knobs[:, 3])
    room = ProbeBudget(steps=100.0, left_s=100.0, probe_s=0.5, margin_z=1.0, rounds_left=rounds_left)
    measured = {modes[0], dataclasses.replace(modes[0], gpu_mhz=measured_mhz)}

    found = find_anchor_mode(Predictions(modes, step_s, 9.0 * flat, flat, flat), modes[0], measured, room)

    gpu_mhz, mem_mhz = chosen or (0.0, 0.0)
    assert found == (dataclasses.replace(modes[0], gpu_mhz=gpu_mhz, mem_mhz=mem_mhz) if chosen else None)


def test_where_no_probe_is_safe_none_is_proposed():
    predictions = board(1)
    hurried = ProbeBudget(steps=500.0, left_s=499.0 * float(predictions.step_s.min()), probe_s=0.5, margin_z=1.0)

    assert len(list_informative_modes(predictions, 3.0, [MAXN], hurried)) == 0
    assert find_most_saving_mode(predictions, 3.0, [MAXN], hurried) is None
