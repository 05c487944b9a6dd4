"""What every predictor does; a test class inherits it and gives a fresh ``predictor`` and a board's true values."""

from __future__ import annotations

import numpy as np

from fedge.interfaces import Predictor
from fedge.types import Floats, Measurement, Modes


def measured(modes: Modes, step_s: Floats, power_w: Floats, rows: list[int]) -> list[Measurement]:
    return [Measurement(modes[i], 40, float(step_s[i]), float(power_w[i])) for i in rows]


class PredictorContract:
    """Fixtures: ``predictor`` is fresh; ``modes``, ``step_s`` and ``power_w`` are a board's truth, one row per mode."""

    def test_fit_returns_the_predictor_itself(self, predictor: Predictor) -> None:
        assert predictor.fit([]) is predictor

    def test_it_predicts_from_no_measurement_at_all(self, predictor: Predictor, modes: Modes) -> None:
        predictions = predictor.fit([]).predict(modes)

        assert np.isfinite(predictions.step_s).all()
        assert (predictions.step_s > 0).all()
        assert (predictions.power_w > 0).all()

    def test_rows_belong_to_the_modes_that_were_asked(self, predictor: Predictor, modes: Modes) -> None:
        some = Modes(modes.knobs[[5, 0, 3]])

        every, chosen = predictor.fit([]).predict(modes), predictor.predict(some)

        assert len(chosen.modes) == 3
        np.testing.assert_allclose(chosen.step_s, every.step_s[[5, 0, 3]])
        np.testing.assert_allclose(chosen.power_w_sd_log, every.power_w_sd_log[[5, 0, 3]])

    def test_a_measured_mode_is_predicted_as_it_was_measured(
        self, predictor: Predictor, modes: Modes, step_s: Floats, power_w: Floats
    ) -> None:
        rows = [0, 7, 11] * 4

        seen = predictor.fit(measured(modes, step_s, power_w, rows)).predict(Modes(modes.knobs[[0, 7, 11]]))

        np.testing.assert_allclose(seen.step_s, step_s[[0, 7, 11]], rtol=0.05)
        np.testing.assert_allclose(seen.power_w, power_w[[0, 7, 11]], rtol=0.05)

    def test_measuring_narrows_the_spread_of_the_measured_mode(
        self, predictor: Predictor, modes: Modes, step_s: Floats, power_w: Floats
    ) -> None:
        one = Modes(modes.knobs[[4]])
        before = predictor.fit([]).predict(one)

        after = predictor.fit(measured(modes, step_s, power_w, [4])).predict(one)

        assert after.step_s_sd_log[0] < before.step_s_sd_log[0]
        assert after.power_w_sd_log[0] < before.power_w_sd_log[0]
        assert after.step_s_sd_log[0] > 0

    def test_fitting_starts_anew_each_time(
        self, predictor: Predictor, modes: Modes, step_s: Floats, power_w: Floats
    ) -> None:
        fresh = predictor.fit([]).predict(modes).step_s

        predictor.fit(measured(modes, 3.0 * step_s, power_w, [0, 1, 2]))

        np.testing.assert_array_equal(predictor.fit([]).predict(modes).step_s, fresh)

    def test_the_order_of_measurements_does_not_matter(
        self, predictor: Predictor, modes: Modes, step_s: Floats, power_w: Floats
    ) -> None:
        seen = measured(modes, step_s, power_w, [0, 9, 4, 9])
        forward = predictor.fit(seen).predict(modes).step_s

        np.testing.assert_allclose(predictor.fit(seen[::-1]).predict(modes).step_s, forward, rtol=1e-4)
