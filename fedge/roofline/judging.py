"""Judges choices by a measured table: what the chosen mode saves and costs there, beside an oracle that read it.

Three protocols say what the constants were fitted to: all tables without the judged network at the judged batch size
(``case``), without the judged network at all (``network``), or all of them (``none``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedge.layers.network import NetworkCost
from fedge.modes import index_of
from fedge.roofline.board import rooflines
from fedge.roofline.choice import SLOWDOWN, Choice, choose
from fedge.roofline.fit import fit_constants, intensity_of
from fedge.roofline.pagoda import fit_per_mode
from fedge.roofline.surface import Rooflines, batch_of, energy_j, times
from fedge.types import DeviceSpec, PowerMode, ProfileTable

LeftOut = Literal["case", "network", "none"]
Method = Literal["fedge", "pagoda"]


@dataclass(frozen=True, slots=True)
class Verdict:
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
class Predicted:
    """A case's table, and what was predicted for its modes by constants fitted to other tables."""

    table: ProfileTable
    lines: Rooflines
    network: NetworkCost
    maxn_row: int


def predictions(
    tables: Sequence[ProfileTable],
    networks: Mapping[str, NetworkCost],
    spec: DeviceSpec,
    left_out: LeftOut = "case",
    method: Method = "fedge",
    judged: Sequence[ProfileTable] | None = None,
) -> list[Predicted]:
    """Each of ``judged`` (all by default), predicted from the other ``tables`` of its board.

    All hold MAXN, and the same modes for ``pagoda``.
    """
    found: list[Predicted] = []
    for table in tables if judged is None else judged:
        kept = [other for other in tables if not _is_out(other, table, left_out)]
        network, row = networks[table.workload], index_of(table.modes, spec.maxn)
        if method == "fedge":
            lines = rooflines(fit_constants(kept, networks, spec), table.modes, intensity_of(network))
        else:
            lines = fit_per_mode(kept, networks)
        found.append(Predicted(table, lines, network, 0 if row is None else row))
    return found


def verdict(case: Predicted, max_slowdown: float = SLOWDOWN, margin: float = 0.0) -> Verdict:
    """What choosing by the prediction saves and costs in the measured table."""
    table, row = case.table, case.maxn_row
    batch = batch_of(case.network, table.batch_size)
    seconds = times(case.lines, batch).total_s
    choice = choose(table.modes, seconds, energy_j(case.lines, batch, seconds), row, max_slowdown, margin)
    best = oracle_row(table, row, max_slowdown)
    chosen_at, best_at = _measured(table, choice.row, row), _measured(table, best, row)
    return _verdict(table, choice, best, chosen_at, best_at)


def oracle_row(table: ProfileTable, maxn_row: int, max_slowdown: float = SLOWDOWN) -> int:
    """The mode of least measured energy among those whose measured time is within the slowdown."""
    within = table.step_s <= max_slowdown * table.step_s[maxn_row]
    return int(np.argmin(np.where(within, table.step_s * table.power_w, np.inf)))


def share_of_oracle(verdicts: Sequence[Verdict]) -> float:
    """The sum of what the choices save by the sum of what the oracle saves."""
    return sum(one.saving for one in verdicts) / sum(one.oracle_saving for one in verdicts)


def _is_out(other: ProfileTable, judged: ProfileTable, left_out: LeftOut) -> bool:
    same_network = other.workload == judged.workload
    if left_out == "network":
        return same_network
    return left_out == "case" and same_network and other.batch_size == judged.batch_size


def _measured(table: ProfileTable, row: int, maxn_row: int) -> tuple[float, float]:
    """Slowdown and saving beside MAXN."""
    joules = table.step_s * table.power_w
    return float(table.step_s[row] / table.step_s[maxn_row]), 1.0 - float(joules[row] / joules[maxn_row])


def _verdict(
    table: ProfileTable, choice: Choice, best: int, chosen_at: tuple[float, float], best_at: tuple[float, float]
) -> Verdict:
    return Verdict(
        table.workload,
        table.batch_size,
        table.modes[choice.row],
        *chosen_at,
        table.modes[best],
        *best_at,
        choice.slowdown,
        choice.saving,
    )
