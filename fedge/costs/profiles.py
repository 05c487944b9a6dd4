"""Which coefficients a board and workload get: calibrated ones, or a labelled estimate from the nearest board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedge.costs.estimate import for_board, nearest
from fedge.costs.record import CostProfile, Evidence, load_calibrated, read_profile, write_profile
from fedge.errors import UnknownName
from fedge.types import DeviceSpec

__all__ = ["CostProfile", "Evidence", "cost_of", "load_calibrated", "read_profile", "write_profile"]


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


def _usable(calibrated: Sequence[CostProfile] | None, specs: Mapping[str, DeviceSpec]) -> list[CostProfile]:
    profiles = load_calibrated() if calibrated is None else calibrated
    return [profile for profile in profiles if profile.device in specs]


def _on_board(profiles: Sequence[CostProfile], device: DeviceSpec, specs: Mapping[str, DeviceSpec]) -> CostProfile:
    for profile in profiles:
        if profile.device == device.name:
            return profile
    base = nearest(profiles, device, specs)
    return for_board(base, specs[base.device], device)
