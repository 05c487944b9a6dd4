"""Look up the coefficients of a board and workload: calibrated ones, or a labelled estimate from the nearest board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedge.costs.cost_profile import (
    CalibrationEvidence,
    CostProfile,
    load_calibrated_training,
    read_profile,
    write_profile,
)
from fedge.costs.cost_scaling import find_nearest_profile, scale_to_board
from fedge.errors import UnknownName
from fedge.types import DeviceSpec

__all__ = [
    "CalibrationEvidence",
    "CostProfile",
    "find_cost_profile",
    "load_calibrated_training",
    "read_profile",
    "write_profile",
]


def find_cost_profile(
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
) -> CostProfile:
    """Return the calibrated profile of a workload on a board, or an estimate scaled from the nearest calibrated board.

    Args:
        device: The board.
        workload: Name of the workload.
        specs: Data sheets by board name. Profiles of boards that are not among them are ignored.
        calibrated: The profiles to choose from; None for those shipped with fedge.

    Returns:
        The profile, labelled ``calibrated`` or ``estimated``.

    Raises:
        UnknownName: No board has a profile of the workload.
    """
    profiles = _select_usable(calibrated, specs)
    having = [profile for profile in profiles if profile.workload == workload]
    if not having:
        raise UnknownName("workload.cost", workload, tuple(sorted({profile.workload for profile in profiles})))
    return _select_for_board(having, device, specs)


def _select_usable(calibrated: Sequence[CostProfile] | None, specs: Mapping[str, DeviceSpec]) -> list[CostProfile]:
    profiles = load_calibrated_training() if calibrated is None else calibrated
    return [profile for profile in profiles if profile.device in specs]


def _select_for_board(
    profiles: Sequence[CostProfile], device: DeviceSpec, specs: Mapping[str, DeviceSpec]
) -> CostProfile:
    for profile in profiles:
        if profile.device == device.name:
            return profile
    base = find_nearest_profile(profiles, device, specs)
    return scale_to_board(base, specs[base.device], device)
