"""A round beside a standing service: measurements lose it, predictions gain it, unusual shares count as usual ones."""

import dataclasses

import numpy as np
import pytest

from fedge.client.inference_service import RoundService, ServiceCorrection
from fedge.serving.standing_service import InferenceCosts, ServiceDemand, add_service_load, build_service_table
from fedge.types import Measurement, Modes, PowerMode, Predictions, ServiceUse

MODES = Modes(np.array([[4, 1400.0, 900.0, 1600.0], [4, 1400.0, 600.0, 1600.0], [2, 1000.0, 300.0, 1600.0]]))
INFERENCE = InferenceCosts(MODES, (1, 4), np.array([[0.01, 0.02]] * 3), np.array([[12.0, 14.0]] * 3))
KEEP = np.array([True, False, True])


def correction() -> ServiceCorrection:
    table = build_service_table(INFERENCE, ServiceDemand(10.0, 5.0, (1, 4)))
    return ServiceCorrection(RoundService(INFERENCE, table, table.select_rows(KEEP), KEEP))


def measurement(mode: PowerMode, share: float | None = None) -> Measurement:
    use = None if share is None else ServiceUse(4, 10.0, 10.0 * share, 100, 2, latency_s=0.5)
    return Measurement(mode, 40, 0.2, 20.0, warm_up_s=0.3, power_se_log=0.02, service=use)


def test_a_predictor_learns_from_training_alone():
    (alone,) = correction().to_reference([measurement(MODES[1], 0.5)])

    assert alone.step_s == pytest.approx(0.1)
    assert alone.service is None


def test_predictions_keep_the_modes_that_sustain_the_service_and_carry_its_load():
    service = correction()
    columns = [np.array([1.0, 2.0, 3.0]), np.array([30.0, 20.0, 10.0]), np.full(3, 0.1), np.full(3, 0.1)]

    beside = service.from_reference(Predictions(MODES, *columns))

    left = 1.0 - service.plan.while_training.share
    assert [tuple(row) for row in beside.modes.knobs] == [tuple(row) for row in MODES.knobs[KEEP]]
    assert beside.step_s == pytest.approx(np.array([1.0, 3.0]) / left)


def test_an_interval_with_an_unusual_share_counts_as_if_it_had_had_the_usual_one():
    service = correction()
    table = service.plan.while_training
    lucky, unlucky = (
        add_service_load(
            measurement(MODES[2]),
            dataclasses.replace(table, share=np.full(2, share)),
            1,
            measurement(MODES[2], share).service,
        )
        for share in (0.05, 0.4)
    )

    first, second = service.normalize([lucky, unlucky])

    assert lucky.step_s < unlucky.step_s
    assert first.step_s == pytest.approx(second.step_s)
    assert first.step_s == pytest.approx(0.2 / (1 - table.share[1]))
    assert first.service.share == pytest.approx(table.share[1])


def test_a_measurement_in_a_mode_that_was_ruled_out_stays_as_it_is():
    seen = measurement(MODES[1], 0.4)

    assert correction().normalize([seen]) == [seen]
