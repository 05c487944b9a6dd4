"""All boards at MAXN: the round that a fleet has when nobody chooses anything."""

from __future__ import annotations

from collections.abc import Mapping

from fedge.planning.deadline import maxn_energy_j
from fedge.studies.fleet.costs import Spent
from fedge.studies.fleet.oracle import Work, waiting_low
from fedge.types import Front


def at_maxn(fronts: Mapping[str, Front], radio_j: Mapping[str, float]) -> Spent:
    """Every board works and waits at MAXN."""
    busy_s = {board: front.link_s + front.maxn.work_s for board, front in fronts.items()}
    round_s = max(busy_s.values())
    return Spent(round_s, {b: radio_j[b] + maxn_energy_j(front, round_s) for b, front in fronts.items()}, busy_s)


def at_maxn_waiting_low(fronts: Mapping[str, Front], radio_j: Mapping[str, float]) -> Spent:
    """Every board works at MAXN and waits in its lowest mode."""
    work = {board: Work(front.maxn.work_s, front.maxn.work_j) for board, front in fronts.items()}
    return waiting_low(fronts, radio_j, work)
