"""Validate choices on a measured table: the chosen mode's true savings and slowdown, compared with an oracle's.

Three protocols decide on the tables that constants are fitted to: all tables without the evaluated network at the
evaluated batch size (``case``), without the evaluated network at all (``network``), or all of them (``none``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedge.analysis.roofline.board_constants import compute_rooflines
from fedge.analysis.roofline.board_constants_fit import activation_intensity, fit_constants
from fedge.analysis.roofline.pagoda_fit import fit_per_mode
from fedge.analysis.roofline.roofline_model import (
    ModeRooflines,
    batch_energy_j,
    build_roofline_batch,
    compute_batch_times,
)
from fedge.analysis.roofline.slowdown_choice import DEFAULT_MAX_SLOWDOWN, choose_within_slowdown
from fedge.costs.layers.network_cost import NetworkCost
from fedge.modes import find_mode_index
from fedge.types import DeviceSpec, PowerMode, ProfileTable

LeftOutProtocol = Literal["case", "network", "none"]
Method = Literal["fedge", "pagoda"]


@dataclass(frozen=True, slots=True)
class RooflineChoiceScore:
    """One case: a network at a batch size. Ratios are to MAXN's measured time, savings shares of its energy."""

    workload: str
    batch_size: int
    chosen: PowerMode
    slowdown: float
    saving: float
    oracle: PowerMode
    oracle_slowdown: float
    oracle_saving: float
    predicted_slowdown: float
    predicted_saving: float


@dataclass(frozen=True, slots=True, eq=False)
class RooflinePrediction:
    """A case's table, and the rooflines predicted for its modes by constants fitted to other tables."""

    table: ProfileTable
    lines: ModeRooflines
    network: NetworkCost
    maxn_row: int


def predict_left_out(
    tables: Sequence[ProfileTable],
    networks: Mapping[str, NetworkCost],
    spec: DeviceSpec,
    left_out: LeftOutProtocol = "case",
    method: Method = "fedge",
    judged: Sequence[ProfileTable] | None = None,
) -> list[RooflinePrediction]:
    """Predict each of the evaluated tables from other tables of its board.

    Args:
        tables: All tables of the board. All hold MAXN, and the same modes for ``pagoda``.
        networks: Layers of each table's workload, by name.
        spec: The board's specification.
        left_out: Which tables are left out of the fit.
        method: fedge's constants, or Pagoda's fit per mode.
        judged: The tables to evaluate; all by default.
    """
    found: list[RooflinePrediction] = []
    for table in tables if judged is None else judged:
        kept = [other for other in tables if not _is_left_out(other, table, left_out)]
        network, row = networks[table.workload], find_mode_index(table.modes, spec.maxn)
        if method == "fedge":
            lines = compute_rooflines(fit_constants(kept, networks, spec), table.modes, activation_intensity(network))
        else:
            lines = fit_per_mode(kept, networks)
        found.append(RooflinePrediction(table, lines, network, 0 if row is None else row))
    return found


def score_choice(case: RooflinePrediction, margin: float = 0.0) -> RooflineChoiceScore:
    """Return the savings and slowdown in the measured table of the mode chosen by the prediction."""
    table, row = case.table, case.maxn_row
    batch = build_roofline_batch(case.network, table.batch_size)
    seconds = compute_batch_times(case.lines, batch).total_s
    choice = choose_within_slowdown(
        table.modes,
        time_s=seconds,
        joules=batch_energy_j(case.lines, batch, seconds),
        maxn_row=row,
        max_slowdown=DEFAULT_MAX_SLOWDOWN,
        margin=margin,
    )
    best = find_oracle_row(table, row, DEFAULT_MAX_SLOWDOWN)
    slowdown, saving = _measured_slowdown_and_saving(table, choice.row, row)
    oracle_slowdown, oracle_saving = _measured_slowdown_and_saving(table, best, row)
    return RooflineChoiceScore(
        workload=table.workload,
        batch_size=table.batch_size,
        chosen=table.modes[choice.row],
        slowdown=slowdown,
        saving=saving,
        oracle=table.modes[best],
        oracle_slowdown=oracle_slowdown,
        oracle_saving=oracle_saving,
        predicted_slowdown=choice.slowdown,
        predicted_saving=choice.saving,
    )


def find_oracle_row(table: ProfileTable, maxn_row: int, max_slowdown: float = DEFAULT_MAX_SLOWDOWN) -> int:
    """Return the mode of least measured energy among those whose measured time is within the slowdown."""
    within = table.step_s <= max_slowdown * table.step_s[maxn_row]
    return int(np.argmin(np.where(within, table.step_s * table.power_w, np.inf)))


def oracle_saving_share(verdicts: Sequence[RooflineChoiceScore]) -> float:
    """Return the sum of the choices' savings divided by the sum of the oracle's savings."""
    return sum(one.saving for one in verdicts) / sum(one.oracle_saving for one in verdicts)


def _is_left_out(other: ProfileTable, judged: ProfileTable, left_out: LeftOutProtocol) -> bool:
    same_network = other.workload == judged.workload
    if left_out == "network":
        return same_network
    return left_out == "case" and same_network and other.batch_size == judged.batch_size


def _measured_slowdown_and_saving(table: ProfileTable, row: int, maxn_row: int) -> tuple[float, float]:
    joules = table.step_s * table.power_w
    return float(table.step_s[row] / table.step_s[maxn_row]), 1.0 - float(joules[row] / joules[maxn_row])
