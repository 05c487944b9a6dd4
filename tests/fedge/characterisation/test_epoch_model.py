"""Epochs with their stalls: modes and loaders that were left out of a sweep, against the paper's simple predictor."""

from functools import cache

import numpy as np
import pytest
from contracts.epoch_looks import MODES, NAME, PLANS, SPEC, STEPS, TOP, look, relative, sweep, unmetered, without

from fedge.characterisation.epoch_model import (
    EpochModel,
    EpochPredictions,
    EpochSetting,
    MeasuredEpoch,
    predict_linear_epochs,
)
from fedge.characterisation.observed_pipeline import PointObservation
from fedge.errors import BadInput, UnknownName
from fedge.modes import stack_modes
from fedge.predictors.measurement_columns import PREDICTION_FLOOR
from fedge.types import Floats, Modes, PowerMode

FAR = PowerMode(6, SPEC.cpu_mhz[5], SPEC.gpu_mhz[0], 665.6)


def _fitted(looks: list[PointObservation]) -> EpochModel:
    return EpochModel(SPEC, NAME, PLANS).fit(looks)


@cache
def _model() -> EpochModel:
    return _fitted(sweep())


def _setting(of: PointObservation) -> EpochSetting:
    point = of.point
    return EpochSetting(point.batch_size, of.steps, point.workers, point.prefetch, point.storage, of.cached)


def _said(model: EpochModel, of: PointObservation) -> EpochPredictions:
    return model.predict(_setting(of), stack_modes([of.mode]))


def test_modes_left_out_of_the_sweep_are_closer_than_by_the_simple_predictor():
    gone = [look(MODES[i], 4) for i in (1, 3, 4, 7)]
    ours, simple = [], []
    for one in gone:
        rest = without(sweep(), one)
        ours.append(relative(_said(_fitted(rest), one).e2e_s[0], one.e2e_s))
        seen = [MeasuredEpoch(NAME, other.mode, other.e2e_s) for other in rest if other.point.workers == 4]
        seconds, _ = predict_linear_epochs(seen, NAME, stack_modes([one.mode]), TOP)
        simple.append(relative(seconds[0], one.e2e_s))

    assert np.mean(ours) < 0.06
    assert np.mean(ours) < 0.4 * np.mean(simple)


@pytest.mark.parametrize(
    "asked",
    [
        look(workers=3),
        look(workers=6),
        look(MODES[3], 0),
        look(MODES[1], 1),
        look(MODES[7], 2, name="sd", cached=0.0),
        look(MODES[1], 4, name="hdd", cached=0.0),
        look(TOP, 1, name="ssd", cached=0.5),
    ],
    ids=lambda one: f"{one.mode}, {one.point.workers} workers, {one.point.storage}, {one.cached:g} cached",
)
def test_loaders_and_storages_that_were_never_tried_are_foreseen(asked):
    said = _said(_model(), asked)

    assert said.e2e_s[0] == pytest.approx(asked.e2e_s, rel=0.08)
    assert abs(said.stall_s[0] - asked.stall_s) < 0.08 * asked.e2e_s
    assert said.energy_j[0] == pytest.approx(asked.energy_j, rel=0.15)


def test_other_batch_sizes_are_interpolated_between_those_that_were_seen():
    looks = [*sweep(), look(batch_size=4), look(batch_size=64)]
    model = _fitted(looks)

    between = look(batch_size=32)
    beyond = model.predict(EpochSetting(128, STEPS), stack_modes([TOP]))

    assert _said(model, between).e2e_s[0] == pytest.approx(between.e2e_s, rel=0.1)
    assert beyond.e2e_sd_log[0] > _said(model, between).e2e_sd_log[0]
    assert beyond.e2e_s[0] > _said(model, look(batch_size=64)).e2e_s[0]


def test_without_a_meter_there_are_seconds_and_no_joules():
    said = _said(_fitted(unmetered(sweep())), look(workers=3))

    assert said.e2e_s[0] == pytest.approx(look(workers=3).e2e_s, rel=0.08)
    assert said.energy_j is None
    assert said.energy_sd_log is None


def test_one_point_is_enough_to_begin_with():
    said = _said(_fitted([look(workers=0)]), look(workers=2))

    assert said.e2e_s[0] == pytest.approx(look(workers=2).e2e_s, rel=0.3)


def test_nothing_seen_and_an_unknown_storage_are_the_users_mistakes():
    with pytest.raises(BadInput, match="no finished point"):
        _fitted([])
    with pytest.raises(UnknownName, match="floppy"):
        _model().predict(EpochSetting(16, STEPS, 1, storage="floppy", cached=0.0), stack_modes([TOP]))


MAXN = PowerMode(8, 2265.6, 1377.0, 2133.0)
PAPER = {
    "e": PowerMode(8, 2100, 900, 1600),
    "f": PowerMode(2, 2100, 900, 1600),
    "i": PowerMode(8, 2265.6, 1377, 1333),
    "j": PowerMode(8, 2265.6, 1377, 1600),
}
OTHERS = stack_modes(
    [PowerMode(4, 1200, 670, 1333), PowerMode(8, 2100, 900, 2133), PowerMode(8, 2265.6, 900, 2133), MAXN]
)
"""Modes whose CPU and GPU clocks do not go together as they do in the paper's four."""


def _shares(modes: Modes) -> Floats:
    return modes.knobs / np.array([MAXN.cores, MAXN.cpu_mhz, MAXN.gpu_mhz, MAXN.mem_mhz])


def _seconds(modes: Modes) -> Floats:
    return 100.0 - _shares(modes) @ np.array([10.0, 12.0, 25.0, 8.0])


def _seen(network: str, modes: Modes, seconds: Floats, joules: Floats | None = None) -> list[MeasuredEpoch]:
    return [
        MeasuredEpoch(network, mode, float(seconds[i]), None if joules is None else float(joules[i]))
        for i, mode in enumerate(modes)
    ]


def test_epochs_that_are_a_line_in_the_knobs_are_predicted_exactly():
    modes = stack_modes([*PAPER.values(), *OTHERS])

    epoch_s, energy_j = predict_linear_epochs(_seen("resnet", modes, _seconds(modes)), "resnet", OTHERS, MAXN)

    np.testing.assert_allclose(epoch_s, _seconds(OTHERS), rtol=1e-9)
    assert energy_j is None


def test_energy_is_one_line_for_all_networks_in_the_knobs_and_the_seconds():
    modes = stack_modes([*PAPER.values(), *OTHERS])
    seconds = {"lenet": 0.3 * _seconds(modes), "resnet": _seconds(modes) ** 1.1}
    slopes = np.array([3.0, 5.0, 9.0, 2.0])
    seen = [one for name, s in seconds.items() for one in _seen(name, modes, s, 12.0 * s + _shares(modes) @ slopes)]

    epoch_s, energy_j = predict_linear_epochs(seen, "lenet", OTHERS, MAXN)

    assert energy_j is not None
    np.testing.assert_allclose(energy_j, 12.0 * epoch_s + _shares(OTHERS) @ slopes, rtol=1e-6)


def test_nothing_is_predicted_below_half_of_the_least_that_was_seen():
    two = stack_modes([PowerMode(8, 2265.6, 114.75, 1333), PowerMode(8, 2265.6, 420.75, 1333)])
    seconds, joules = np.array([100.0, 40.0]), np.array([900.0, 400.0])

    epoch_s, energy_j = predict_linear_epochs(
        _seen("resnet", two, seconds, joules), "resnet", stack_modes([MAXN]), MAXN
    )

    assert epoch_s[0] == PREDICTION_FLOOR * 40.0
    assert energy_j[0] >= PREDICTION_FLOOR * 400.0


def test_what_was_never_seen_is_named_with_what_was():
    modes = stack_modes(PAPER.values())
    with pytest.raises(UnknownName, match="resnet"):
        predict_linear_epochs(_seen("resnet", modes, _seconds(modes)), "lenet", modes, MAXN)
