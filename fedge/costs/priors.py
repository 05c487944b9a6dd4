"""What a predictor may believe of a workload that was not measured: its layers' estimate, and other workloads.

None of it was fitted to the workload, on any board; the estimate by layers learns nothing of the same network either.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from fedge.costs.estimate import board_distance, for_board, for_workload
from fedge.costs.from_layers import network_cost
from fedge.costs.layered import known_layers, network_of
from fedge.costs.record import CostProfile, load_calibrated, load_inference
from fedge.costs.workloads import SIZE_EXPONENT, load_workloads, size_distance, size_ratio
from fedge.errors import BadInput
from fedge.modes import modes_of
from fedge.physics.model import step_s
from fedge.types import DeviceSpec, Workload


def priors_for(
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    *,
    batch_size: int | None = None,
    unseen: str | None = None,
) -> tuple[CostProfile, ...]:
    """What is believed of training ``workload`` on ``device``, the most credible first.

    Where the workload's layers are known the estimate by them, then other workloads (``carried_priors``), at
    ``batch_size`` as much longer or shorter as that estimate is; by default it is the workload's own.

    ``calibrated``, by default all that ships, may hold inference too: the layers' estimate learns from it how fast GPUs
    are. ``unseen`` is the SHA-256 of a table that none may have been fitted to, whatever its workload is called. Raises
    ``BadInput`` when no other workload is known.
    """
    strangers = _strangers(workload, specs, calibrated, unseen)
    carried = _carried(device, workload, specs, strangers)
    sizes = load_workloads()
    usual = sizes[workload].batch_size if workload in sizes else None
    here = _by_layers(device, workload, batch_size or usual, specs, strangers)
    if batch_size is not None and batch_size != usual:
        own = _by_layers(device, workload, usual, specs, strangers)
        longer = _top_s(here, device) / _top_s(own, device) if here is not None and own is not None else 1.0
        carried = tuple(_at_batch_size(prior, batch_size, longer) for prior in carried)
    return carried if here is None else (here, *carried)


def carried_priors(
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    *,
    unseen: str | None = None,
) -> tuple[CostProfile, ...]:
    """Every calibrated profile of another workload's training, carried to ``device`` and to this workload.

    To the board by data-sheet ratios and to the workload by its size; the most credible first: the same board, then the
    workload closest in FLOP and bytes per step, then the nearest board. A workload of unknown size is not rescaled.
    ``calibrated`` and ``unseen`` are those of ``priors_for``; raises ``BadInput`` when no other workload is known.
    """
    return _carried(device, workload, specs, _strangers(workload, specs, calibrated, unseen))


def _strangers(
    workload: str, specs: Mapping[str, DeviceSpec], calibrated: Sequence[CostProfile] | None, unseen: str | None
) -> list[CostProfile]:
    """The profiles of all other workloads, of training and of inference."""
    profiles = (*load_calibrated(), *load_inference()) if calibrated is None else calibrated
    return [
        profile
        for profile in profiles
        if profile.device in specs
        and profile.workload != workload
        and not (unseen and profile.evidence is not None and profile.evidence.sha256 == unseen)
    ]


def _by_layers(
    device: DeviceSpec,
    workload: str,
    batch_size: int | None,
    specs: Mapping[str, DeviceSpec],
    strangers: Sequence[CostProfile],
) -> CostProfile | None:
    """The estimate by the workload's layers, learnt from other networks; None where one of these is not known."""
    layers = known_layers(workload)
    if layers is None or batch_size is None:
        return None
    others = [profile for profile in strangers if network_of(profile) != layers.network]
    if not any(profile.kind == "train" for profile in others):
        return None
    work = Workload(workload, batch_size, layers=layers)
    return network_cost(device, work, specs, others, without=layers.network)


def _carried(
    device: DeviceSpec, workload: str, specs: Mapping[str, DeviceSpec], strangers: Sequence[CostProfile]
) -> tuple[CostProfile, ...]:
    trained = [profile for profile in strangers if profile.kind == "train"]
    if not trained:
        raise BadInput("workload.cost", repr(workload), "a workload beside which another one is calibrated")

    def credibility(profile: CostProfile) -> tuple[bool, float, float, str]:
        of = specs[profile.device]
        return of != device, _distance(workload, profile.workload), board_distance(of, device), profile.workload

    return tuple(_guess(profile, device, workload, specs) for profile in sorted(trained, key=credibility))


def _guess(profile: CostProfile, device: DeviceSpec, workload: str, specs: Mapping[str, DeviceSpec]) -> CostProfile:
    here = profile if profile.device == device.name else for_board(profile, specs[profile.device], device)
    sizes = load_workloads()
    batch_size = sizes[workload].batch_size if workload in sizes else profile.batch_size
    return for_workload(here, workload, batch_size, _time_ratio(workload, profile.workload))


def _at_batch_size(prior: CostProfile, batch_size: int, longer: float) -> CostProfile:
    moved = for_workload(prior, prior.workload, batch_size, longer)
    return dataclasses.replace(moved, source=f"{prior.source}, carried to batch {batch_size}")


def _top_s(profile: CostProfile, device: DeviceSpec) -> float:
    """Seconds of a minibatch at the top clocks."""
    return float(step_s(profile.coefficients, device.maxn, modes_of([device.maxn]))[0])


def _distance(workload: str, other: str) -> float:
    sizes = load_workloads()
    return size_distance(sizes[workload], sizes[other]) if {workload, other} <= sizes.keys() else math.inf


def _time_ratio(workload: str, other: str) -> float:
    sizes = load_workloads()
    known = {workload, other} <= sizes.keys()
    return size_ratio(sizes[workload], sizes[other]) ** SIZE_EXPONENT if known else 1.0
