"""A board's constants: every mode's roofline from a few numbers that follow the clocks, and factors of networks.

Symbols: c, f, g, m the cores and the CPU, GPU and memory clocks as shares of the board's top.
At the top clocks every constant has its own value; elsewhere
tau_f, kernel_s ~ 1/g;  tau_m ~ 1/m;  launch_s ~ (1/f + r/m)(1 + k (1/c - 1));  sample_s ~ c^-x / f;  copy_s ~ 1/f
eps_f ~ (s + g^v) / (s + 1) (below some clock the voltage no longer falls);  eps_m constant;  launch_j, sample_j ~ f^w
pi_0 = static + (core c + host) f^(1+w) + gpu g^(1+v) + mem m^(1+u)
A network reaches a part of the board's capability (small and grouped convolutions reach less): it has its own factors
on some of the constants, fitted to its tables. An unseen network gets those of the networks around it in intensity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedge.analysis.roofline.roofline_model import ModeRooflines, RooflineOverheads
from fedge.physics.time_power_model import knob_shares
from fedge.types import Floats, Label, Modes, PowerMode

TIME_NAMES = (
    "tau_f", "tau_m", "gpu_overlap", "kernel_s", "launch_s", "launch_mem_share", "launch_core_share", "sample_s",
    "sample_core_exponent", "stage_overlap", "copy_s", "fixed_s",
)  # fmt: skip
ENERGY_NAMES = (
    "static_w", "core_w", "host_w", "gpu_w", "mem_w", "eps_f", "eps_m", "flop_floor", "launch_j", "sample_j",
    "cpu_exponent", "gpu_exponent", "mem_exponent",
)  # fmt: skip
TIME_FACTORS = ("tau_f", "tau_m", "launch_s", "sample_s")
ENERGY_FACTORS = ("eps_f", "eps_m", "sample_j")
"""Constants on which a network has its own factor. Copying a sample has none: it depends on the image alone."""


@dataclass(frozen=True, slots=True)
class NetworkEfficiency:
    """A network's factors on the board's constants, and its intensity without weights, by which others are compared."""

    network: str
    intensity: float
    factors: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class BoardConstants:
    """A board's constants at its top clocks; ``*_sd_log`` is the robust deviation of its rows from them (log)."""

    device: str
    maxn: PowerMode
    values: Mapping[str, float]
    networks: tuple[NetworkEfficiency, ...]
    time_sd_log: float
    power_sd_log: float
    label: Label
    source: str


def interpolate_factors(constants: BoardConstants, intensity: float) -> Mapping[str, float]:
    """Return the factors of a network of this intensity: interpolated in logarithms, constant beyond the ends."""
    ordered = sorted(constants.networks, key=lambda one: one.intensity)
    if not ordered:
        return {}
    places = np.log([one.intensity for one in ordered])
    names = ordered[0].factors
    return {
        name: float(np.exp(np.interp(np.log(intensity), places, np.log([one.factors[name] for one in ordered]))))
        for name in names
    }


def compute_rooflines(constants: BoardConstants, modes: Modes, intensity: float | None = None) -> ModeRooflines:
    """Return the rooflines of all modes.

    Args:
        constants: The board's constants.
        modes: The modes.
        intensity: FLOP per byte of the network without weights; None for the board without factors.
    """
    factors = {} if intensity is None else interpolate_factors(constants, intensity)
    values = {name: value * factors.get(name, 1.0) for name, value in constants.values.items()}
    return rooflines_at_clocks(values, knob_shares(constants.maxn, modes), constants.label)


def rooflines_at_clocks(values: Mapping[str, Any], x: Floats, label: Label) -> ModeRooflines:
    """Return the rooflines at clocks ``x``.

    Args:
        values: Constants by name, each a number or an array of shape (n,).
        x: Cores and CPU, GPU and memory clocks as shares of the top ones, shape (n, 4).
        label: Source of the constants.
    """
    c, f, g, m = x.T
    v = values
    cpu_on, gpu_on = f ** v["cpu_exponent"], g ** v["gpu_exponent"]
    launch = (1.0 / f + v["launch_mem_share"] / m) / (1.0 + v["launch_mem_share"])
    constant_w = (v["core_w"] * c + v["host_w"]) * f * cpu_on + v["gpu_w"] * g * gpu_on
    extra = RooflineOverheads(
        kernel_s=v["kernel_s"] / g,
        launch_s=v["launch_s"] * launch * (1.0 + v["launch_core_share"] * (1.0 / c - 1.0)),
        sample_s=v["sample_s"] * c ** -v["sample_core_exponent"] / f,
        copy_s=v["copy_s"] / f,
        fixed_s=np.zeros_like(f) + v["fixed_s"],
        launch_j=v["launch_j"] * cpu_on,
        sample_j=v["sample_j"] * cpu_on,
        overlap_gpu=1.0 + _number(v["gpu_overlap"]),
        overlap_stages=1.0 + _number(v["stage_overlap"]),
    )
    return ModeRooflines(
        tau_f=v["tau_f"] / g,
        tau_m=v["tau_m"] / m,
        eps_f=v["eps_f"] * (v["flop_floor"] + gpu_on) / (v["flop_floor"] + 1.0),
        eps_m=np.zeros_like(f) + v["eps_m"],
        pi_0_w=v["static_w"] + constant_w + v["mem_w"] * m ** (1.0 + v["mem_exponent"]),
        label=label,
        overheads=extra,
    )


def _number(value: Any) -> float:
    return float(np.asarray(value).ravel()[0])
