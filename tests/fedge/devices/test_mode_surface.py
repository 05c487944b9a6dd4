"""An emulated board is near its kind, never equal to it, and the same for the same seed."""

import itertools

import numpy as np
import pytest

from fedge.devices.mode_surface import (
    _WAVE_NUMBER,
    _WAVES,
    BOARD_DEVIATION,
    ModeSurface,
    draw_board_surface,
    draw_kind_surface,
)
from fedge.types import Modes, PowerMode

KNOBS = np.array(list(itertools.product([1, 2, 4], [200.0, 600.0, 1400.0], [80.0, 400.0, 900.0], [408.0, 1600.0])))


@pytest.fixture
def average() -> ModeSurface:
    n = len(KNOBS)
    return ModeSurface(Modes(KNOBS), np.linspace(2.0, 0.5, n), np.linspace(2.0, 9.0, n), np.full(n, 1.3))


def test_a_board_deviates_from_its_kind_by_one_to_eight_percent_when_nothing_is_left_over(average):
    for seed in range(20):
        own = draw_board_surface(average, 0.0, 0.0, np.random.default_rng(seed))
        for ratio in (own.step_s / average.step_s, own.power_w / average.power_w):
            size = np.abs(np.log(ratio))
            assert np.ptp(size) < 1e-9
            assert np.log1p(BOARD_DEVIATION[0]) - 1e-9 <= size[0] <= np.log1p(BOARD_DEVIATION[1]) + 1e-9


def test_the_residual_over_the_modes_has_the_size_that_was_asked(average):
    own = draw_board_surface(average, 0.05, 0.02, np.random.default_rng(3))

    assert np.std(np.log(own.step_s / average.step_s)) == pytest.approx(0.05, rel=1e-6)
    assert np.std(np.log(own.power_w / average.power_w)) == pytest.approx(0.02, rel=1e-6)


@pytest.mark.parametrize("keep", [slice(None), slice(1, None, 7)])
def test_the_residual_is_a_sum_of_waves_over_the_log_knobs(average, keep):
    modes, ones = Modes(KNOBS[keep]), np.ones(len(KNOBS[keep]))
    own = draw_kind_surface(ModeSurface(modes, ones, ones, 0.1 * ones), 0.05, 0.02, np.random.default_rng(3))

    rng = np.random.default_rng(3)
    waves, phases = rng.normal(0.0, _WAVE_NUMBER, size=(4, _WAVES)), rng.uniform(0.0, 2 * np.pi, size=_WAVES)
    values = np.cos(np.log(modes.knobs / modes.knobs.max(axis=0)) @ waves + phases).sum(axis=1)
    np.testing.assert_allclose(np.log(own.step_s), 0.05 * (values - values.mean()) / values.std(), atol=1e-13)


def test_a_mode_that_the_board_does_not_have_is_named(average):
    with pytest.raises(LookupError, match="is not among the board's 54 modes"):
        average.find_row(PowerMode(3, 200.0, 80.0, 408.0))
