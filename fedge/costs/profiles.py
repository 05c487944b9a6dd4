"""Which coefficients a board and workload get: calibrated ones, an estimate, or a prior that never saw the workload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedge.costs.estimate import for_board, for_workload, nearest
from fedge.costs.record import CostProfile, Evidence, load_calibrated, read_profile, write_profile
from fedge.costs.workloads import load_workloads, size_distance, size_ratio
from fedge.errors import BadInput, UnknownName
from fedge.types import DeviceSpec

__all__ = ["CostProfile", "Evidence", "cost_of", "load_calibrated", "prior_for", "read_profile", "write_profile"]

SIZE_EXPONENT = 0.5
"""A step's time grows more slowly than its FLOP and bytes: launches, loading and small kernels do not grow with them.
Chosen by us; between the calibrated workloads of one board it halves the error of proportional scaling."""


def cost_of(
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
) -> CostProfile:
    """The calibrated profile of ``workload`` on ``device``, else an estimate from the nearest board that has one.

    ``calibrated`` defaults to the shipped profiles. Raises ``UnknownName`` when no board has the workload.
    """
    profiles = _usable(calibrated, specs)
    having = [profile for profile in profiles if profile.workload == workload]
    if not having:
        raise UnknownName("workload.cost", workload, tuple(sorted({profile.workload for profile in profiles})))
    return _on_board(having, device, specs)


def prior_for(
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
) -> CostProfile:
    """What a predictor may believe of ``workload`` on ``device`` beforehand; never fitted to it on any board.

    It is another workload's profile, on the same board if there is one, else estimated from the nearest board; of
    several, the workload closest in FLOP and bytes per step, with its times rescaled. A workload of unknown size takes
    the first by name, unscaled. Raises ``BadInput`` when no other workload is known.
    """
    others = [profile for profile in _usable(calibrated, specs) if profile.workload != workload]
    if not others:
        raise BadInput("workload.cost", repr(workload), "a workload beside which another one is calibrated")
    board = nearest(others, device, specs).device
    if any(profile.device == device.name for profile in others):
        board = device.name
    here = [profile for profile in others if profile.device == board]
    closest = min(here, key=lambda profile: (_distance(workload, profile.workload), profile.workload))
    sizes = load_workloads()
    batch_size = sizes[workload].batch_size if workload in sizes else closest.batch_size
    ratio = _time_ratio(workload, closest.workload)
    return for_workload(_on_board([closest], device, specs), workload, batch_size, ratio)


def _usable(calibrated: Sequence[CostProfile] | None, specs: Mapping[str, DeviceSpec]) -> list[CostProfile]:
    profiles = load_calibrated() if calibrated is None else calibrated
    return [profile for profile in profiles if profile.device in specs]


def _on_board(profiles: Sequence[CostProfile], device: DeviceSpec, specs: Mapping[str, DeviceSpec]) -> CostProfile:
    for profile in profiles:
        if profile.device == device.name:
            return profile
    base = nearest(profiles, device, specs)
    return for_board(base, specs[base.device], device)


def _distance(workload: str, other: str) -> float:
    sizes = load_workloads()
    return size_distance(sizes[workload], sizes[other]) if {workload, other} <= sizes.keys() else math.inf


def _time_ratio(workload: str, other: str) -> float:
    sizes = load_workloads()
    known = {workload, other} <= sizes.keys()
    return size_ratio(sizes[workload], sizes[other]) ** SIZE_EXPONENT if known else 1.0
