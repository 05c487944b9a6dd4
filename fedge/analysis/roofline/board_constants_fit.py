"""Fit a board's constants to tables of several networks and batch sizes together, with the counted work of each.

First the times, then, with the measured times, the energies: both on logarithms, with a Gaussian prior around the data
sheet's figures and with Student-t noise, so that rows disturbed by other load cannot bend the fit. Every table has its
own noise, estimated from its residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from fedge.analysis.roofline.board_constants import (
    ENERGY_FACTORS,
    ENERGY_NAMES,
    TIME_FACTORS,
    TIME_NAMES,
    BoardConstants,
    NetworkEfficiency,
    rooflines_at_clocks,
)
from fedge.analysis.roofline.roofline_model import (
    ModeRooflines,
    RooflineBatch,
    batch_energy_j,
    build_roofline_batch,
    compute_batch_times,
)
from fedge.costs.layers.network_cost import NetworkCost
from fedge.errors import BadInput
from fedge.physics.robust_fit import GaussianPrior, fit_curve, robust_sd
from fedge.physics.time_power_model import knob_shares
from fedge.types import DeviceSpec, Floats, Label, PowerMode, ProfileTable

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

    Args:
        tables: Measured tables of the board.
        networks: Layers of each table's workload, by name.
        spec: The board's specification, for priors.
        label: Source label of the result.
        source: Description of the source; by default the tables' workloads and batch sizes.

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
        here = predict(*split(logs))
        slopes = [(predict(*split(logs + step)) - here) / _SLOPE_STEP for step in _SLOPE_STEP * np.eye(len(logs))]
        return here, np.array(slopes)

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
