"""Which coefficients a board and workload get: calibrated ones, an estimate, or a prior that never saw the workload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedge.costs.estimate import board_distance, for_board, for_workload, nearest
from fedge.costs.record import CostProfile, Evidence, load_calibrated, read_profile, write_profile
from fedge.costs.workloads import load_workloads, size_distance, size_ratio
from fedge.errors import BadInput, UnknownName
from fedge.types import DeviceSpec

__all__ = ["CostProfile", "Evidence", "cost_of", "load_calibrated", "priors_for", "read_profile", "write_profile"]

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


def priors_for(
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    *,
    unseen: str | None = None,
) -> tuple[CostProfile, ...]:
    """What a predictor may believe of ``workload`` on ``device`` beforehand; none was fitted to it on any board.

    Every calibrated profile of another workload, carried to this board by data-sheet ratios and to this workload by its
    size; the most credible first: the same board, then the workload closest in FLOP and bytes per step, then the
    nearest board. A workload of unknown size is not rescaled. ``unseen`` is the SHA-256 of a table that none may have
    been fitted to, whatever its workload is called. Raises ``BadInput`` when no other workload is known.
    """
    others = [
        profile
        for profile in _usable(calibrated, specs)
        if profile.workload != workload
        and not (unseen and profile.evidence is not None and profile.evidence.sha256 == unseen)
    ]
    if not others:
        raise BadInput("workload.cost", repr(workload), "a workload beside which another one is calibrated")

    def credibility(profile: CostProfile) -> tuple[bool, float, float, str]:
        of = specs[profile.device]
        return of != device, _distance(workload, profile.workload), board_distance(of, device), profile.workload

    return tuple(_carried(profile, device, workload, specs) for profile in sorted(others, key=credibility))


def _carried(profile: CostProfile, device: DeviceSpec, workload: str, specs: Mapping[str, DeviceSpec]) -> CostProfile:
    here = profile if profile.device == device.name else for_board(profile, specs[profile.device], device)
    sizes = load_workloads()
    batch_size = sizes[workload].batch_size if workload in sizes else profile.batch_size
    return for_workload(here, workload, batch_size, _time_ratio(workload, profile.workload))


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
