"""The plan of a round for clients in columns: clients of an entry that are about as fast are one board of the plan.

Clients of a kind differ by their steps and by an offset, so that their fronts differ by a factor s in time and by a
factor p in power. A group is planned with the mean s of its clients and the sums of s p and of p in its joules and
watts. Groups are ``CLASS_WIDTH`` wide, so that the size of a plan is bounded, whatever the number of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedge.decisions.limits import compute_margin_z
from fedge.decisions.planning.cost_sweep import DeadlinePlan
from fedge.decisions.planning.fleet_planners import CONFIDENCE, find_balanced_deadline, find_least_energy_deadline
from fedge.decisions.planning.front_columns import FrontColumns
from fedge.experiment import PolicySpec
from fedge.pareto import MAX_FRONT_POINTS
from fedge.studies.fleet.client_columns import FleetColumns
from fedge.studies.fleet.work_choice import Rows, WorkCurve
from fedge.types import Floats

CLASS_WIDTH = 0.002
"""Width of a group in log units of time: a tenth of a percent in the deadline, a fifth of the tolerance for late ones
in ``round_comparison``."""
PLANNERS = {"balanced": find_balanced_deadline, "least-energy": find_least_energy_deadline}
"""Policies whose rounds are planned here."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedFront:
    """A kind's front, per step of a typical client.

    Attributes:
        step_s: Seconds per step of its k points, by ascending end with the margin, MAXN the last one of equals.
        safe_s: The same with the margin.
        step_j: Joules per step above idling.
        top: Seconds per step at MAXN, the same with the margin, and watts.
        idle_w: Power of waiting in the lowest mode, and in MAXN, in watts.
    """

    step_s: Floats
    safe_s: Floats
    step_j: Floats
    top: tuple[float, float, float]
    idle_w: tuple[float, float]


def build_planned_front(
    curve: WorkCurve, sd_log: Floats, z: float, *, top: tuple[float, float, float], idle_w: tuple[float, float]
) -> PlannedFront:
    """Build a kind's front, thinned to ``MAX_FRONT_POINTS``, with MAXN among its points.

    Args:
        curve: The kind's curve.
        sd_log: Standard deviation of the log time of each point, shape (f,).
        z: Margin in standard deviations.
        top: Seconds per step at MAXN, their standard deviation (log), and watts.
        idle_w: Power of waiting in the lowest mode, and in MAXN, in watts.
    """
    count = len(curve.rows)
    kept = np.unique(np.round(np.linspace(0, count - 1, min(count, MAX_FRONT_POINTS))).astype(np.intp))
    top_s, top_sd, top_w = top
    step_s = np.append(curve.step_s[kept], top_s)
    safe_s = step_s * np.exp(z * np.append(sd_log[kept], top_sd))
    step_j = np.append(curve.step_j[kept], top_s * (top_w - idle_w[0]))
    order = np.lexsort((step_j, safe_s))
    held_s = top_s * float(np.exp(z * top_sd))
    held = top_s, held_s, top_w
    return PlannedFront(step_s[order], safe_s[order], step_j[order], top=held, idle_w=idle_w)


@dataclass(frozen=True, slots=True, eq=False)
class ClientGroups:
    """Clients grouped by entry and speed, g groups.

    Attributes:
        entry: Entry of each group, shape (g,).
        scale: Mean of the clients' s, the steps times the offset of time.
        energy: Sum of s p over the clients, with p the offset of power.
        power: Sum of p over the clients.
        count: Number of clients.
    """

    entry: Rows
    scale: Floats
    energy: Floats
    power: Floats
    count: Floats


def group_clients(entry: Rows, scale: Floats, power: Floats) -> ClientGroups:
    """Group clients with these entries, time factors and power factors, shape (c,) each."""
    place = np.floor(np.log(scale) / CLASS_WIDTH).astype(np.int64)
    place -= place.min()
    key = entry * (int(place.max()) + 1) + place
    count = np.bincount(key)
    used = np.flatnonzero(count)
    return ClientGroups(
        used // (int(place.max()) + 1),
        scale=np.bincount(key, scale)[used] / count[used],
        energy=np.bincount(key, scale * power)[used].astype(np.float64),
        power=np.bincount(key, power)[used].astype(np.float64),
        count=count[used].astype(np.float64),
    )


def build_group_columns(
    columns: FleetColumns, groups: ClientGroups, fronts: Sequence[PlannedFront | None]
) -> FrontColumns:
    """Build the columns that the planners take, one board per group; every kind of the groups has a front."""
    kind = columns.kind_of[groups.entry]
    sizes = np.array([0 if front is None else len(front.step_s) for front in fronts])
    known = [front for front in fronts if front is not None]
    step_s, safe_s, step_j = (
        np.concatenate([getattr(front, name) for front in known]) for name in ("step_s", "safe_s", "step_j")
    )
    heads = np.array([(0.0,) * 5 if front is None else (*front.top, *front.idle_w) for front in fronts])[kind]
    offsets = np.concatenate([[0], np.cumsum(sizes[kind])])
    starts = (np.cumsum(sizes) - sizes)[kind]
    point = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes[kind])
    of = np.repeat(np.arange(len(kind)), sizes[kind])
    link_s, (top_s, top_safe_s, top_w, idle_w, top_idle_w) = columns.link_s[groups.entry], heads.T
    above_j, radio_j = groups.energy[of] * step_j[point], groups.count * columns.radio_w[groups.entry] * link_s
    return FrontColumns(
        tuple(map(str, range(len(kind)))),
        offsets,
        ends_s=link_s[of] + groups.scale[of] * step_s[point],
        safe_ends_s=link_s[of] + groups.scale[of] * safe_s[point],
        above_idle_j=above_j + radio_j[of],
        power_w=above_j / (groups.scale[of] * step_s[point]) + (groups.power * idle_w)[of],
        idle_w=groups.power * idle_w,
        maxn_s=link_s + groups.scale * top_s,
        maxn_safe_s=link_s + groups.scale * top_safe_s,
        maxn_work_s=groups.scale * top_s,
        maxn_work_j=groups.energy * top_s * top_w,
        maxn_idle_w=groups.power * top_idle_w,
        radio_j=radio_j,
    )


def plan_margin_z(policy: PolicySpec) -> float:
    """Return the margin of the policy's plan in standard deviations: ``balanced`` plans with expected times."""
    return 0.0 if policy.name == "balanced" else choice_margin_z(policy)


def choice_margin_z(policy: PolicySpec) -> float:
    """Return the margin with which clients choose their modes, in standard deviations."""
    return compute_margin_z(CONFIDENCE if policy.confidence is None else policy.confidence, "policy.confidence")


def plan_deadline(policy: PolicySpec, columns: FrontColumns) -> DeadlinePlan | None:
    """Plan the round's deadline, or return None if the policy plans none."""
    return PLANNERS[policy.name](columns, policy.limits) if policy.name in PLANNERS else None
