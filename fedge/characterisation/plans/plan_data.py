"""A plan as JSON-able data and back: how the journal keeps it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedge.characterisation.plans.plan import Course, Images, Plan, StoragePlan, WorkloadPlan
from fedge.characterisation.point import Point


def as_data(plan: Plan) -> dict[str, Any]:
    """JSON-able; equal plans give equal data."""
    return {
        "name": plan.name,
        "seed": plan.seed,
        "boards": list(plan.boards),
        "course": asdict(plan.course),
        "workloads": {name: workload_as_data(workload) for name, workload in plan.workloads.items()},
        "storages": {name: asdict(storage) for name, storage in plan.storages.items()},
        "base": dict(plan.base),
        "swept": [list(knobs) for knobs in plan.swept],
        "points": [point.as_data() for point in plan.points],
    }


def workload_as_data(workload: WorkloadPlan) -> dict[str, Any]:
    """JSON-able."""
    return asdict(workload) | {"input": list(workload.input)}


def from_data(data: dict[str, Any]) -> Plan:
    """The inverse of ``as_data``; raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
    return Plan(
        name=data["name"],
        boards=tuple(data["boards"]),
        workloads={name: _workload(one) for name, one in data["workloads"].items()},
        storages={name: StoragePlan(**one) for name, one in data["storages"].items()},
        course=Course(**data["course"]),
        points=tuple(Point.from_data(one) for one in data["points"]),
        seed=data["seed"],
        base=dict(data["base"]),
        swept=tuple(tuple(knobs) for knobs in data["swept"]),
    )


def _workload(data: dict[str, Any]) -> WorkloadPlan:
    channels, height, width = data["input"]
    return WorkloadPlan(**{**data, "input": (channels, height, width), "images": Images(**data["images"])})
