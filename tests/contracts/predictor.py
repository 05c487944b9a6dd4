"""What every predictor does, with a prior or without; a test class inherits the contract that fits its predictor."""

import dataclasses

import numpy as np
import pytest

from fedge.errors import BadInput
from fedge.types import Floats, Measurement, Modes, Predictions


def measured(modes: Modes, step_s: Floats, power_w: Floats, rows: list[int]) -> list[Measurement]:
    return [Measurement(modes[i], 40, float(step_s[i]), float(power_w[i])) for i in rows]


def columns(predictions: Predictions) -> list[Floats]:
    return [predictions.step_s, predictions.power_w, predictions.step_s_sd_log, predictions.power_w_sd_log]


class LearnerContract:
    """Fixtures: ``predictor`` is fresh; ``modes``, ``step_s`` and ``power_w`` are a board's truth, one row per mode."""

    @pytest.mark.parametrize("rows", [[5], [5, 5], [0, 9, 4, 30, 31]])
    def test_every_prediction_is_finite_and_positive_from_one_measurement_on(
        self, predictor, modes, step_s, power_w, rows
    ):
        predictions = predictor.fit(measured(modes, step_s, power_w, rows)).predict(modes)

        for column in columns(predictions):
            assert column.shape == (len(modes),)
            assert column.dtype == np.float64
            assert np.isfinite(column).all()
            assert (column > 0).all()

    def test_rows_of_what_was_learnt_belong_to_the_modes_that_were_asked(self, predictor, modes, step_s, power_w):
        some = Modes(modes.knobs[[5, 0, 3]])

        every = predictor.fit(measured(modes, step_s, power_w, [0, 9, 4])).predict(modes)
        chosen = predictor.predict(some)

        assert chosen.modes is some
        for part, whole in zip(columns(chosen), columns(every), strict=True):
            # Spreads come from products in single precision, which a processor rounds by the number of their rows.
            np.testing.assert_allclose(part, whole[[5, 0, 3]], rtol=1e-3)

    def test_what_was_learnt_before_is_forgotten(self, predictor, modes, step_s, power_w):
        seen = measured(modes, step_s, power_w, [0, 9, 4])
        fresh = predictor.fit(seen).predict(modes)

        predictor.fit(measured(modes, 3.0 * step_s, power_w, [0, 1, 2]))

        for again, first in zip(columns(predictor.fit(seen).predict(modes)), columns(fresh), strict=True):
            np.testing.assert_array_equal(again, first)

    def test_the_order_of_measurements_does_not_matter(self, predictor, modes, step_s, power_w):
        seen = measured(modes, step_s, power_w, [0, 9, 4, 9])
        forward = predictor.fit(seen).predict(modes).step_s

        np.testing.assert_allclose(predictor.fit(seen[::-1]).predict(modes).step_s, forward, rtol=1e-4)

    def test_no_global_random_state_is_touched(self, predictor, modes, step_s, power_w):
        before = np.random.get_state()[1].copy()  # noqa: NPY002 - the global state is what is looked at

        predictor.fit(measured(modes, step_s, power_w, [0, 9])).predict(modes)

        np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


class PredictorContract(LearnerContract):
    """Of a predictor that has a prior: it predicts before anything is measured."""

    def test_fit_returns_the_predictor_itself(self, predictor):
        assert predictor.fit([]) is predictor

    def test_it_predicts_from_no_measurement_at_all(self, predictor, modes):
        predictions = predictor.fit([]).predict(modes)

        assert np.isfinite(predictions.step_s).all()
        assert (predictions.step_s > 0).all()
        assert (predictions.power_w > 0).all()

    def test_rows_belong_to_the_modes_that_were_asked(self, predictor, modes):
        some = Modes(modes.knobs[[5, 0, 3]])

        every, chosen = predictor.fit([]).predict(modes), predictor.predict(some)

        assert len(chosen.modes) == 3
        np.testing.assert_allclose(chosen.step_s, every.step_s[[5, 0, 3]])
        np.testing.assert_allclose(chosen.power_w_sd_log, every.power_w_sd_log[[5, 0, 3]])

    def test_a_measured_mode_is_predicted_as_it_was_measured(self, predictor, modes, step_s, power_w):
        rows = [0, 7, 11] * 4

        seen = predictor.fit(measured(modes, step_s, power_w, rows)).predict(Modes(modes.knobs[[0, 7, 11]]))

        np.testing.assert_allclose(seen.step_s, step_s[[0, 7, 11]], rtol=0.05)
        np.testing.assert_allclose(seen.power_w, power_w[[0, 7, 11]], rtol=0.05)

    def test_measuring_narrows_the_spread_of_the_measured_mode(self, predictor, modes, step_s, power_w):
        one = Modes(modes.knobs[[4]])
        before = predictor.fit([]).predict(one)

        after = predictor.fit(measured(modes, step_s, power_w, [4])).predict(one)

        assert after.step_s_sd_log[0] < before.step_s_sd_log[0]
        assert after.power_w_sd_log[0] < before.power_w_sd_log[0]
        assert after.step_s_sd_log[0] > 0

    def test_fitting_starts_anew_each_time(self, predictor, modes, step_s, power_w):
        fresh = predictor.fit([]).predict(modes).step_s

        predictor.fit(measured(modes, 3.0 * step_s, power_w, [0, 1, 2]))

        np.testing.assert_array_equal(predictor.fit([]).predict(modes).step_s, fresh)


class BaselineContract(LearnerContract):
    """Of a predictor without a prior: it needs a measurement, another board's where it has none of its own."""

    def test_fit_returns_itself_too(self, predictor, modes, step_s, power_w):
        assert predictor.fit(measured(modes, step_s, power_w, [0])) is predictor

    def test_no_measurement_at_all_is_the_users_mistake(self, predictor):
        with pytest.raises(BadInput, match="got no measurement; at least one measured power mode"):
            predictor.fit([])

    def test_which_board_saw_a_measurement_does_not_matter(self, predictor, modes, step_s, power_w):
        own = measured(modes, step_s, power_w, [0, 9, 4])
        others = [dataclasses.replace(measurement, board="another") for measurement in own]

        expected = predictor.fit(own).predict(modes).step_s

        np.testing.assert_array_equal(predictor.fit(others).predict(modes).step_s, expected)

    def test_many_modes_are_known_better_than_a_few(self, predictor, modes, step_s, power_w):
        few = predictor.fit(measured(modes, step_s, power_w, [1])).predict(modes)
        many = predictor.fit(measured(modes, step_s, power_w, list(range(0, len(modes), 2)))).predict(modes)

        assert np.mean(np.abs(many.step_s - step_s)) < 0.8 * np.mean(np.abs(few.step_s - step_s))
        assert many.step_s_sd_log.mean() < few.step_s_sd_log.mean()
        assert many.power_w_sd_log.mean() < few.power_w_sd_log.mean()
