"""The paper's two lines of an epoch: what four modes leave open, one line of energy for all networks, scaling."""

from __future__ import annotations

import numpy as np
import pytest

from fedge.characterisation.epoch_model import MeasuredEpoch, predict_linear_epochs
from fedge.errors import UnknownName
from fedge.modes import stack_modes
from fedge.predictors.measurement_columns import PREDICTION_FLOOR
from fedge.types import Floats, Modes, PowerMode

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
    shares: Floats = modes.knobs / np.array([MAXN.cores, MAXN.cpu_mhz, MAXN.gpu_mhz, MAXN.mem_mhz])
    return shares


def _seconds(modes: Modes) -> Floats:
    seconds: Floats = 100.0 - _shares(modes) @ np.array([10.0, 12.0, 25.0, 8.0])
    return seconds


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
