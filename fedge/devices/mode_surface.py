"""The true step time and power of an emulated board over its modes; deliberately not the predictor's own model.

Symbols: x_i = log(knob / its maximum), four per mode; r(x) = smooth residual; sd = its size in log units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedge.modes import find_mode_index
from fedge.types import Floats, Modes, PowerMode

BOARD_DEVIATION = (0.01, 0.08)
"""Smallest and largest relative deviation between boards of one kind, in time and in power (SIGMETRICS'22: 1 % on AGX
to 7.8 % on Nano in time, up to 8.8 % in energy).
"""
MAX_IDLE_SHARE = 0.95
"""Idle power as a share of the power at work in the same mode, at most."""
_WAVES = 24
_WAVE_NUMBER = 1.5
"""Standard deviation of the residual's wave numbers per unit of log-knob: smooth between neighbouring modes, but
different across the grid.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ModeSurface:
    """Noise-free truth by mode.

    Attributes:
        step_s: Seconds per step, shape (n,).
        power_w: Power at work in watts, shape (n,).
        idle_w: Idle power in watts, shape (n,).
        stall_share: Share of a step that waits for samples, shape (n,); None without a data loader.
    """

    modes: Modes
    step_s: Floats
    power_w: Floats
    idle_w: Floats
    stall_share: Floats | None = None

    def select_rows(self, keep: NDArray[np.bool_]) -> ModeSurface:
        """Return the rows for which ``keep`` is True, a mask of shape (n,)."""
        stalls = None if self.stall_share is None else self.stall_share[keep]
        return ModeSurface(
            self.modes.select(keep), self.step_s[keep], self.power_w[keep], self.idle_w[keep], stall_share=stalls
        )

    def find_row(self, mode: PowerMode) -> int:
        """Return the row index of ``mode``.

        Raises:
            LookupError: The board does not have this mode.
        """
        row = find_mode_index(self.modes, mode)
        if row is None:
            raise LookupError(f"{mode} is not among the board's {len(self.modes)} modes")
        return row


def scale_step_time(surface: ModeSurface, ratio: float) -> ModeSurface:
    """Return the surface with step times multiplied by ``ratio``."""
    return ModeSurface(surface.modes, surface.step_s * ratio, surface.power_w, surface.idle_w)


def draw_board_surface(
    average: ModeSurface, residual_time_sd_log: float, residual_power_sd_log: float, rng: np.random.Generator
) -> ModeSurface:
    """Draw the surface of one board of a kind: the average, times the board's deviation and a smooth residual.

    The residuals' standard deviations are in log units. They are as large as those of the calibration, so that the
    board differs from the physical model as much as a real one does.
    """
    time = _draw_deviation(rng) + draw_smooth_residual(average.modes, residual_time_sd_log, rng)
    power = _draw_deviation(rng) + draw_smooth_residual(average.modes, residual_power_sd_log, rng)
    return _shift_surface(average, time, power)


def draw_kind_surface(
    average: ModeSurface, residual_time_sd_log: float, residual_power_sd_log: float, rng: np.random.Generator
) -> ModeSurface:
    """Draw a surface for all boards of a kind, with a smooth residual but without a board's deviation.

    The residuals' standard deviations are in log units.
    """
    time = draw_smooth_residual(average.modes, residual_time_sd_log, rng)
    return _shift_surface(average, time, draw_smooth_residual(average.modes, residual_power_sd_log, rng))


def draw_deviations(count: int, rng: np.random.Generator) -> Floats:
    """Draw the deviations of ``count`` boards from their kind, in log units, shape (count,)."""
    sizes = rng.uniform(*BOARD_DEVIATION, size=count)
    deviations: Floats = np.log1p(sizes) * rng.choice([-1.0, 1.0], size=count)
    return deviations


def _shift_surface(average: ModeSurface, time: Floats, power: Floats) -> ModeSurface:
    """Return the average with log times and log powers shifted, and idle power by the mean shift of power."""
    scale = np.exp(power)
    power_w = average.power_w * scale
    idle_w = np.minimum(average.idle_w * scale.mean(), MAX_IDLE_SHARE * power_w)
    return ModeSurface(average.modes, average.step_s * np.exp(time), power_w, idle_w)


def _draw_deviation(rng: np.random.Generator) -> float:
    size = rng.uniform(*BOARD_DEVIATION)
    return float(np.log1p(size) * rng.choice([-1.0, 1.0]))


@lru_cache(maxsize=64)
def _combine_log_knobs(modes: Modes) -> tuple[tuple[Floats, NDArray[np.intp]], tuple[Floats, NDArray[np.intp]]]:
    """Return the combinations of the log-knobs of CPU, and of GPU and memory, each with the place of every mode.

    Cached, because all boards of a kind have the same modes.
    """
    x = np.log(modes.knobs / modes.knobs.max(axis=0))
    cpu, gpu = (np.unique(x[:, columns], axis=0, return_inverse=True) for columns in (slice(2), slice(2, 4)))
    return (cpu[0], cpu[1].reshape(-1)), (gpu[0], gpu[1].reshape(-1))


def draw_smooth_residual(modes: Modes, sd: float, rng: np.random.Generator) -> Floats:
    """Draw a smooth random function of the log-knobs (cosine features), with standard deviation ``sd``, shape (n,).

    With cos(a + b) = cos a cos b - sin a sin b the features are computed for the few combinations of the CPU's and of
    the GPU's knobs and multiplied, instead of for thousands of modes.
    """
    waves = rng.normal(0.0, _WAVE_NUMBER, size=(modes.knobs.shape[1], _WAVES))
    phases = rng.uniform(0.0, 2 * np.pi, size=_WAVES)
    (cpu, cpu_place), (gpu, gpu_place) = _combine_log_knobs(modes)
    a, b = cpu @ waves[:2] + phases, gpu @ waves[2:]
    values: Floats = (np.cos(a) @ np.cos(b).T - np.sin(a) @ np.sin(b).T)[cpu_place, gpu_place]
    spread = values.std()
    return (values - values.mean()) * (sd / spread) if spread > 0 else np.zeros(len(values))
