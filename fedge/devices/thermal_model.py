"""A board's temperature: a model with one thermal mass, dT/dt = (T_ambient + R P - T) / tau.

R is such that the board's maximum power settles ``HEADROOM_C`` above ambient temperature (estimated), and throttling
starts at the passive trip point of Jetson thermal zones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedge.types import DeviceSpec

HEADROOM_C = 45.0
THERMAL_TAU_S = 240.0
TRIP_C = 97.0


@dataclass(frozen=True, slots=True)
class ThermalModel:
    """Thermal model of a board: thermal resistance in kelvin per watt, and ambient temperature."""

    kelvin_per_w: float
    ambient_c: float

    def temperature_after_c(self, temperature_c: float, power_w: float, seconds: float) -> float:
        """Return the temperature after ``seconds`` at ``power_w``, in degrees Celsius."""
        settled_c = self.ambient_c + self.kelvin_per_w * power_w
        return settled_c + (temperature_c - settled_c) * math.exp(-seconds / THERMAL_TAU_S)

    def seconds_until(self, limit_c: float, temperature_c: float, power_w: float) -> float:
        """Return the seconds at ``power_w`` until ``limit_c`` is reached; infinity if it never is."""
        settled_c = self.ambient_c + self.kelvin_per_w * power_w
        if temperature_c >= limit_c:
            return 0.0
        if settled_c <= limit_c:
            return math.inf
        return THERMAL_TAU_S * math.log((settled_c - temperature_c) / (settled_c - limit_c))


def build_thermal_model(spec: DeviceSpec, ambient_c: float) -> ThermalModel:
    """Build the (estimated) thermal model of a board kind at an ambient temperature in degrees Celsius."""
    return ThermalModel(HEADROOM_C / spec.max_w.value, ambient_c)
