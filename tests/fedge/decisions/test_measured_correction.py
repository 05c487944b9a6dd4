"""A board's own measurements correct what is predicted of its own modes, and of no others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.measured_correction import (
    correct_relative_to_row,
    correct_with_measurements,
    find_doubted_measurements,
    find_rows,
)
from fedge.types import Measurement, Modes, PowerMode, Predictions

MODES = Modes(np.array([[4, 1400.0, 900.0, 1600.0], [4, 1400.0, 600.0, 1600.0], [2, 1000.0, 900.0, 1600.0]]))
STEP_S, POWER_W = np.array([1.0, 1.5, 2.0]), np.array([20.0, 14.0, 10.0])
SD = 0.2


def predicted(sd: float = SD) -> Predictions:
    return Predictions(MODES, STEP_S, POWER_W, np.full(3, sd), np.full(3, sd))


def seen(row: int, off: float = 1.0, steps: int = 100) -> Measurement:
    """Of a row, ``off`` times what is predicted in both time and power."""
    return Measurement(MODES[row], steps, off * float(STEP_S[row]), off * float(POWER_W[row]))


def columns(predictions: Predictions) -> np.ndarray:
    """Shape (4, modes)."""
    return np.stack(
        [predictions.step_s, predictions.power_w, predictions.step_s_sd_log, predictions.power_w_sd_log]
    )  # fmt: skip


measurements = st.lists(st.builds(seen, st.integers(0, 2), st.floats(0.7, 1.4), st.integers(1, 300)), max_size=6)


@given(measurements)
def test_only_modes_that_were_measured_change(own):
    found = columns(correct_with_measurements(predicted(), own))

    rows = [row for row, mode in enumerate(MODES) if mode not in {m.mode for m in own}]
    np.testing.assert_array_equal(found[:, rows], columns(predicted())[:, rows])


@given(measurements)
def test_nothing_becomes_less_sure_and_what_is_given_stays_as_it_is(own):
    before = predicted()

    found = columns(correct_with_measurements(before, own))

    assert (found[2:] <= SD * (1 + 1e-9)).all()
    assert (found > 0).all()
    np.testing.assert_array_equal(columns(before), columns(predicted()))


@given(measurements, st.floats(0.7, 1.4))
def test_neither_other_boards_nor_throttled_measurements_count(own, off):
    foreign = [dataclasses.replace(seen(row, off), board="nano-2") for row in range(3)]
    hot = [dataclasses.replace(seen(row, off), throttled=True) for row in range(3)]

    np.testing.assert_array_equal(
        columns(correct_with_measurements(predicted(), [*foreign, *own, *hot])),
        columns(correct_with_measurements(predicted(), own)),
    )


@pytest.mark.parametrize("off", [0.8, 1.25])
def test_a_measured_mode_is_expected_as_it_was_measured(off):
    found = correct_with_measurements(predicted(), [seen(1, off)])

    assert found.step_s[1] == pytest.approx(off * STEP_S[1], rel=0.01)
    assert found.power_w[1] == pytest.approx(off * POWER_W[1], rel=0.01)
    assert max(found.step_s_sd_log[1], found.power_w_sd_log[1]) < SD / 5


@given(st.lists(st.floats(0.95, 1.05), min_size=1, max_size=8))
def test_what_is_expected_lies_between_the_prediction_and_the_measurements(offs):
    found = correct_with_measurements(predicted(0.05), [seen(0, off) for off in offs])

    assert min(1.0, *offs) * (1 - 1e-9) <= found.step_s[0] / STEP_S[0] <= max(1.0, *offs) * (1 + 1e-9)
    assert min(1.0, *offs) * (1 - 1e-9) <= found.power_w[0] / POWER_W[0] <= max(1.0, *offs) * (1 + 1e-9)


@given(st.integers(1, 12), st.floats(0.8, 1.2))
def test_the_spread_shrinks_with_every_repeat_that_agrees(repeats, off):
    fewer, more = (correct_with_measurements(predicted(), [seen(2, off)] * count) for count in (repeats, repeats + 1))

    assert more.step_s_sd_log[2] < fewer.step_s_sd_log[2]
    assert more.power_w_sd_log[2] < fewer.power_w_sd_log[2]


@pytest.mark.parametrize("surer", [0.97, 1.03])
def test_the_measurement_with_the_smaller_standard_error_counts_more(surer):
    own = [
        dataclasses.replace(seen(0, off), time_se_log=error, power_se_log=error)
        for off, error in ((surer, 0.001), (2.0 - surer, 0.05))
    ]

    found = correct_with_measurements(predicted(), own)

    assert abs(found.step_s[0] / STEP_S[0] - surer) < 0.01
    assert abs(found.power_w[0] / POWER_W[0] - surer) < 0.01


def test_repeats_that_disagree_leave_more_spread_in_every_mode_than_those_that_agree():
    """How far one measurement may be off is a matter of the board, not of the mode."""
    single = [seen(0)]
    agreeing, scattered = ([seen(1, off) for off in offs] for offs in ((1.0, 1.0, 1.0), (0.97, 1.0, 1.03)))
    sure, unsure = (correct_with_measurements(predicted(), [*single, *repeats]) for repeats in (agreeing, scattered))

    for row in (0, 1):
        assert unsure.step_s_sd_log[row] > sure.step_s_sd_log[row]
        assert unsure.power_w_sd_log[row] > sure.power_w_sd_log[row]


@pytest.mark.parametrize("off", [0.2, 5.0])
def test_a_single_measurement_far_off_its_prediction_does_not_count(off):
    sure = predicted(0.02)

    np.testing.assert_array_equal(columns(correct_with_measurements(sure, [seen(1, off)]))[:, 1], columns(sure)[:, 1])


def test_a_single_measurement_is_doubted_where_a_predictor_foretells_nothing():
    nothing = dataclasses.replace(predicted(), step_s=np.array([0.0, 1.5, 2.0]))

    assert correct_with_measurements(nothing, [seen(0)]).step_s[0] == 0.0
    assert find_doubted_measurements(nothing, [seen(0)]) == (seen(0),)


def test_a_single_measurement_far_off_counts_where_little_was_known():
    assert correct_with_measurements(predicted(2.0), [seen(1, 3.0)]).step_s[1] == pytest.approx(
        3.0 * STEP_S[1], rel=0.01
    )


def test_what_is_far_off_its_prediction_counts_once_it_is_seen_again():
    found = correct_with_measurements(predicted(0.1), [seen(1, 1.8)] * 2)

    assert found.step_s[1] == pytest.approx(1.8 * STEP_S[1], rel=0.02)


@given(measurements, st.sampled_from([0.02, 0.1, SD]))
def test_a_measurement_is_doubted_if_it_is_the_only_one_of_its_mode_and_makes_nothing_surer(own, sd):
    """Unless a repeat of it was throttled."""
    foreign = [dataclasses.replace(m, board="nano-2") for m in own]
    hot = [dataclasses.replace(m, throttled=True) for m in own]
    before, after = columns(predicted(sd)), columns(correct_with_measurements(predicted(sd), own))

    found = find_doubted_measurements(predicted(sd), [*hot, *foreign, *own])

    assert {m.mode for m in found} == {
        m.mode
        for m in own
        if [o.mode for o in own].count(m.mode) == 1 and (before == after)[2:, list(MODES).index(m.mode)].any()
    }
    assert all(m.board is None and not m.throttled for m in found)
    assert find_doubted_measurements(predicted(sd), [*own, *hot]) == ()


def test_one_wild_repeat_among_many_changes_little_and_no_more_the_wilder_it_is():
    calm, wild, wilder = (
        correct_with_measurements(predicted(), [*[seen(1, 1.1)] * 6, seen(1, off)]) for off in (1.1, 1.3, 1.6)
    )

    assert wild.step_s[1] == pytest.approx(calm.step_s[1], rel=0.02)
    assert wild.power_w[1] == pytest.approx(calm.power_w[1], rel=0.02)
    np.testing.assert_allclose(columns(wilder), columns(wild))


def test_a_mode_outside_the_table_and_no_measurement_change_nothing():
    stranger = Measurement(PowerMode(1, 400.0, 300.0, 800.0), 10, 9.0, 3.0)

    for own in ([], [stranger]):
        np.testing.assert_array_equal(columns(correct_with_measurements(predicted(), own)), columns(predicted()))
    np.testing.assert_array_equal(
        columns(correct_with_measurements(predicted(), [stranger, seen(0)])),
        columns(correct_with_measurements(predicted(), [seen(0)])),
    )


def test_rows_are_found_for_the_modes_that_are_there_alone():
    found = find_rows(MODES, [MODES[2], PowerMode(3, 1400.0, 900.0, 1600.0), MODES[0]])

    assert found == {MODES[2]: 2, MODES[0]: 0}


@given(own=measurements, at=st.integers(0, 2))
def test_relative_to_a_mode_measurements_compare_with_its_measurement_and_predictions_with_its_prediction(own, at):
    before, corrected = predicted(), correct_with_measurements(predicted(), own)

    found = correct_relative_to_row(before, own, at)

    for name in ("step_s", "power_w"):
        values = [getattr(of, name) for of in (found, corrected, before)]
        sure = getattr(corrected, f"{name}_sd_log") != getattr(before, f"{name}_sd_log")
        if sure[at]:
            to_it, as_measured, as_predicted = (value / value[at] for value in values)
            np.testing.assert_allclose(to_it, np.where(sure, as_measured, as_predicted), rtol=1e-12)
            assert values[0][at] == pytest.approx(values[2][at], rel=1e-12)
        else:
            np.testing.assert_array_equal(values[0], values[2])


def test_a_prior_that_has_all_times_wrong_does_not_make_a_measured_mode_look_slow():
    own = [seen(0, 1.3), seen(1, 1.3 * 1.04 / 1.5)]

    found = correct_relative_to_row(predicted(0.02), own, 0)

    assert find_doubted_measurements(predicted(0.02), own)
    assert correct_relative_to_row(predicted(0.3), own, 0).step_s[1] == pytest.approx(1.04, rel=0.01)
    np.testing.assert_array_equal(columns(found), columns(predicted(0.02)))
