"""A board's constants: every mode's roofline from a few numbers that follow the clocks, and factors of networks.

Symbols: c, f, g, m the cores and the CPU, GPU and memory clocks as shares of the board's top.
At the top clocks every constant has its own value; elsewhere
tau_f, kernel_s ~ 1/g;  tau_m ~ 1/m;  launch_s ~ (1/f + r/m)(1 + k (1/c - 1));  sample_s ~ c^-x / f;  copy_s ~ 1/f
eps_f ~ (s + g^v) / (s + 1) (below some clock the voltage no longer falls);  eps_m constant;  launch_j, sample_j ~ f^w
pi_0 = static + (core c + host) f^(1+w) + gpu g^(1+v) + mem m^(1+u)
A network reaches a part of the board's capability (small and grouped convolutions reach less): it has its own factors
on some of the constants, fitted to its tables. An unseen network gets those of the networks around it in intensity.

Fit a board's constants to tables of several networks and batch sizes together, with the counted work of each.

First the times, then, with the measured times, the energies: both on logarithms, with a Gaussian prior around the data
sheet's figures and with Student-t noise, so that rows disturbed by other load cannot bend the fit. Every table has its
own noise, estimated from its residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedge.analysis.roofline.roofline_model import (
    ModeRooflines,
    RooflineBatch,
    RooflineOverheads,
    batch_energy_j,
    build_roofline_batch,
    compute_batch_times,
)
from fedge.costs.layers.network_cost import NetworkCost
from fedge.errors import BadInput
from fedge.physics.robust_fit import GaussianPrior, differentiate, fit_curve, robust_sd
from fedge.physics.time_power_model import knob_shares
from fedge.types import DeviceSpec, Floats, Label, Modes, PowerMode, ProfileTable

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

    ``intensity`` is the FLOP per byte of the network without weights; None for the board without factors.
    """
    factors = {} if intensity is None else interpolate_factors(constants, intensity)
    values = {name: value * factors.get(name, 1.0) for name, value in constants.values.items()}
    return rooflines_at_clocks(values, knob_shares(constants.maxn, modes), constants.label)


def rooflines_at_clocks(values: Mapping[str, Any], x: Floats, label: Label) -> ModeRooflines:
    """Return the rooflines at clocks ``x``.

    Clocks are cores and CPU, GPU and memory clocks as shares of the top ones, shape (n, 4); constants are numbers or
    arrays of shape (n,).
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


NOISE_TIME_SD = 0.015
NOISE_POWER_SD = 0.02
"""Least noise of a row in time and power, in log units, about that of a clean table's rows.

A table that is off as a whole gets more, so that it does not outweigh the others.
"""
FIT_STARTS = 3
REFIT_ROUNDS = 2
"""Number of refits with every table's own noise, estimated from the fit before; further ones change very little."""
_START_SHIFT_SD = 0.5
_SLOPE_STEP = 1e-5
_TOLERANCE = 1e-6
_TYPICAL_VALUES: dict[str, tuple[float, float]] = {
    "gpu_overlap": (1.5, 0.7),
    "kernel_s": (5e-6, 1.0),
    "launch_s": (9e-5, 0.5),
    "launch_mem_share": (0.1, 0.8),
    "launch_core_share": (0.03, 1.0),
    "sample_s": (2e-3, 1.0),
    "sample_core_exponent": (0.8, 0.4),
    "stage_overlap": (4.0, 0.5),
    "copy_s": (5e-5, 1.0),
    "fixed_s": (1e-3, 1.0),
    "cpu_exponent": (1.5, 0.3),
    "gpu_exponent": (1.5, 0.3),
    "mem_exponent": (1.0, 0.4),
    "eps_f": (6e-12, 0.8),
    "flop_floor": (0.5, 0.5),
    "eps_m": (6e-11, 0.3),
    "launch_j": (1e-4, 0.8),
    "sample_j": (1e-2, 1.0),
}
"""Prior means and standard deviations (log units) without data-sheet figures: orders of magnitude, wide on purpose."""
NETWORK_FACTOR_SD = {
    "tau_f": 1.0,
    "tau_m": 0.4,
    "launch_s": 0.2,
    "sample_s": 0.7,
    "eps_f": 0.7,
    "eps_m": 0.3,
    "sample_j": 0.4,
}
"""Prior standard deviation of networks' factors, in log units; smaller values tie networks closer together."""
PEAK_OVER_REACHED = 1.3
"""Prior mean of the ratio of peak to attained speed; tables correct it."""
_POWER_SHARES = {
    "static_w": (0.15, 0.25),
    "core_w": (0.02, 0.8),
    "host_w": (0.02, 0.8),
    "gpu_w": (0.07, 0.8),
    "mem_w": (0.025, 0.8),
}
"""Prior of constant power as shares of the board's largest power, with standard deviations in log units."""


@dataclass(frozen=True, slots=True, eq=False)
class _StackedRows:
    """All tables' rows stacked: clocks (n, 4), their work, each row's network and table, and the measured values."""

    x: Floats
    batch: RooflineBatch
    network: np.ndarray[tuple[int], np.dtype[np.intp]]
    table: np.ndarray[tuple[int], np.dtype[np.intp]]
    step_s: Floats
    power_w: Floats


def fit_constants(
    tables: Sequence[ProfileTable],
    networks: Mapping[str, NetworkCost],
    spec: DeviceSpec,
    label: Label = "calibrated",
    source: str = "",
) -> BoardConstants:
    """Fit the constants of a board to its tables of inference.

    The source is by default the tables' workloads and batch sizes.

    Raises:
        BadInput: For a workload without a network.
    """
    names = tuple(dict.fromkeys(table.workload for table in tables))
    for name in names:
        if name not in networks:
            raise BadInput("tables", f"{name}, whose layers are not known", f"tables of {', '.join(networks)}")
    rows = _stack_rows(tables, networks, names, spec.maxn)
    seconds, watts = np.log(rows.step_s), np.log(rows.power_w)
    time = _fit_values_and_factors(
        TIME_NAMES,
        factor_names=TIME_FACTORS,
        rows=rows,
        spec=spec,
        seen=seconds,
        predict=_build_log_time_model(rows),
        noise_sd=NOISE_TIME_SD,
    )
    energy = _fit_values_and_factors(
        ENERGY_NAMES,
        factor_names=ENERGY_FACTORS,
        rows=rows,
        spec=spec,
        seen=watts,
        predict=_build_log_power_model(rows, time[0]),
        noise_sd=NOISE_POWER_SD,
    )
    factors = {**time[1], **energy[1]}
    efficiencies = tuple(
        NetworkEfficiency(
            name, activation_intensity(networks[name]), {factor: float(of[i]) for factor, of in factors.items()}
        )
        for i, name in enumerate(names)
    )
    sizes = {name: "/".join(str(t.batch_size) for t in tables if t.workload == name) for name in names}
    counts = f"{len(rows.x)} rows of " + ", ".join(f"{name} at batch {sizes[name]}" for name in names)
    return BoardConstants(
        spec.name,
        maxn=spec.maxn,
        values={**time[0], **energy[0]},
        networks=efficiencies,
        time_sd_log=time[2],
        power_sd_log=energy[2],
        label=label,
        source=source or counts,
    )


def activation_intensity(network: NetworkCost) -> float:
    """Return FLOP per byte of activations, the limit of a network's intensity for large batches."""
    return network.flop / network.activation_bytes


def _stack_rows(
    tables: Sequence[ProfileTable], networks: Mapping[str, NetworkCost], names: Sequence[str], maxn: PowerMode
) -> _StackedRows:
    batches = [build_roofline_batch(networks[table.workload], table.batch_size) for table in tables]
    counts = [len(table.modes) for table in tables]

    columns = (
        np.repeat(np.array([getattr(batch, one.name) for batch in batches], dtype=np.float64), counts)
        for one in fields(RooflineBatch)
    )
    return _StackedRows(
        np.concatenate([knob_shares(maxn, table.modes) for table in tables]),
        batch=RooflineBatch(*columns),
        network=np.repeat([names.index(table.workload) for table in tables], counts),
        table=np.repeat(np.arange(len(tables)), counts),
        step_s=np.concatenate([table.step_s for table in tables]),
        power_w=np.concatenate([table.power_w for table in tables]),
    )


Values = Mapping[str, Floats | float]
_Predict = Callable[[Values, Mapping[str, Floats]], Floats]
"""Map the board's values and every network's factors to the log of the prediction per row."""


def _build_log_time_model(rows: _StackedRows) -> _Predict:
    rest = dict.fromkeys(ENERGY_NAMES, 1.0)

    def predict(values: Values, factors: Mapping[str, Floats]) -> Floats:
        lines = _build_rooflines({**rest, **values}, factors, rows)
        seconds: Floats = np.log(compute_batch_times(lines, rows.batch).total_s)
        return seconds

    return predict


def _build_log_power_model(rows: _StackedRows, time: Values) -> _Predict:
    def predict(values: Values, factors: Mapping[str, Floats]) -> Floats:
        lines = _build_rooflines({**time, **values}, factors, rows)
        watts: Floats = np.log(batch_energy_j(lines, rows.batch, rows.step_s) / rows.step_s)
        return watts

    return predict


def _build_rooflines(values: Values, factors: Mapping[str, Floats], rows: _StackedRows) -> ModeRooflines:
    own = {name: values[name] * of[rows.network] for name, of in factors.items()}
    return rooflines_at_clocks({**values, **own}, rows.x, "calibrated")


def _fit_values_and_factors(  # noqa: PLR0917 - one caller, twice
    names: Sequence[str],
    factor_names: Sequence[str],
    rows: _StackedRows,
    spec: DeviceSpec,
    seen: Floats,
    predict: _Predict,
    noise_sd: float,
) -> tuple[dict[str, float], dict[str, Floats], float]:
    """Return the board's values, the networks' factors by name, and the robust standard deviation of residuals."""
    scales, networks = {**_TYPICAL_VALUES, **_data_sheet_priors(spec)}, int(rows.network.max()) + 1
    middle = np.concatenate([np.log([scales[name][0] for name in names]), np.zeros(networks * len(factor_names))])
    spread = np.array(
        [*(scales[name][1] for name in names), *np.repeat([NETWORK_FACTOR_SD[n] for n in factor_names], networks)]
    )

    def split(logs: Floats) -> tuple[dict[str, float], dict[str, Floats]]:
        values = dict(zip(names, np.exp(logs[: len(names)]).tolist(), strict=True))
        own = np.exp(logs[len(names) :]).reshape(len(factor_names), networks)
        return values, dict(zip(factor_names, own, strict=True))

    def curve(logs: Floats) -> tuple[Floats, Floats]:
        return differentiate(lambda at: predict(*split(at)), logs, _SLOPE_STEP)

    prior = GaussianPrior(middle, np.diag(1.0 / spread**2))
    rng = np.random.default_rng(0)
    starts = [
        middle,
        *(middle + _START_SHIFT_SD * spread * rng.standard_normal(len(middle)) for _ in range(FIT_STARTS - 1)),
    ]
    tries = [
        fit_curve(curve, data=seen, noise_sd=noise_sd, prior=prior, start=start, tolerance=_TOLERANCE)
        for start in starts
    ]
    best = min(tries, key=lambda fitted: fitted.objective)
    for _ in range(REFIT_ROUNDS):
        own_noise = _estimate_row_noise(best.residuals, rows.table, noise_sd)
        best = fit_curve(curve, data=seen, noise_sd=own_noise, prior=prior, start=best.parameters, tolerance=_TOLERANCE)
    values, factors = split(best.parameters)
    off = best.residuals - np.median(best.residuals)
    return values, factors, robust_sd(off)


def _estimate_row_noise(
    residuals: Floats, tables: np.ndarray[tuple[int], np.dtype[np.intp]], least_sd: float
) -> Floats:
    """Return every row's noise, the robust deviation of its table's residuals but at least ``least_sd``."""
    spreads = [robust_sd(residuals[tables == i]) for i in range(tables.max() + 1)]
    noise: Floats = np.maximum(spreads, least_sd)[tables]
    return noise


def _data_sheet_priors(spec: DeviceSpec) -> dict[str, tuple[float, float]]:
    watts = {name: (share * spec.max_w.value, sd) for name, (share, sd) in _POWER_SHARES.items()}
    return {
        "tau_f": (PEAK_OVER_REACHED / (1e9 * spec.gpu_gflops.value), 0.4),
        "tau_m": (PEAK_OVER_REACHED / (1e9 * spec.mem_gbps.value), 0.4),
        **watts,
    }
