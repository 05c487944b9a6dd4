"""Which coefficients a board and workload get: calibrated ones, an estimate, or a prior that never saw the workload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedge.costs.estimate import board_distance, for_board, for_workload, nearest
from fedge.costs.from_layers import network_cost
from fedge.costs.layered import known_layers, network_of
from fedge.costs.record import CostProfile, Evidence, load_calibrated, load_inference, read_profile, write_profile
from fedge.costs.workloads import SIZE_EXPONENT, load_workloads, size_distance, size_ratio
from fedge.errors import BadInput, UnknownName
from fedge.modes import modes_of
from fedge.physics.model import step_s
from fedge.types import DeviceSpec, Workload

__all__ = ["CostProfile", "Evidence", "cost_of", "load_calibrated", "priors_for", "read_profile", "write_profile"]


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
    batch_size: int | None = None,
    unseen: str | None = None,
) -> tuple[CostProfile, ...]:
    """What a predictor may believe of training ``workload`` on ``device`` beforehand; none was fitted to it anywhere.

    Where the workload's layers are known, the estimate by them comes first, learnt from other networks alone. Then
    every calibrated profile of another workload's training, carried to this board by data-sheet ratios and to this
    workload by its size; the most credible first: the same board, then the workload closest in FLOP and bytes per step,
    then the nearest board. A workload of unknown size is not rescaled.

    ``calibrated``, by default all that ships, may hold inference too: the layers' estimate learns from it how fast GPUs
    are. ``batch_size`` is by default the workload's own. ``unseen`` is the SHA-256 of a table that none may have been
    fitted to, whatever its workload is called. Raises ``BadInput`` when no other workload is known.
    """
    profiles = (*load_calibrated(), *load_inference()) if calibrated is None else calibrated
    others = [
        profile
        for profile in _usable(profiles, specs)
        if profile.workload != workload
        and not (unseen and profile.evidence is not None and profile.evidence.sha256 == unseen)
    ]
    trained = [profile for profile in others if profile.kind == "train"]
    if not trained:
        raise BadInput("workload.cost", repr(workload), "a workload beside which another one is calibrated")

    def credibility(profile: CostProfile) -> tuple[bool, float, float, str]:
        of = specs[profile.device]
        return of != device, _distance(workload, profile.workload), board_distance(of, device), profile.workload

    ranked = sorted(trained, key=credibility)
    sizes = load_workloads()
    own_size = sizes[workload].batch_size if workload in sizes else None
    size = batch_size or own_size
    here = _by_layers(device, workload, size, specs, others)
    own = here if size == own_size else _by_layers(device, workload, own_size, specs, others)
    longer = _top_s(here, device) / _top_s(own, device) if here is not None and own is not None else 1.0
    first = () if here is None else (here,)
    ranked = sorted(trained, key=credibility)
    return (*first, *(_carried(profile, device, workload, size, longer, specs) for profile in ranked))


def _by_layers(
    device: DeviceSpec,
    workload: str,
    batch_size: int | None,
    specs: Mapping[str, DeviceSpec],
    others: Sequence[CostProfile],
) -> CostProfile | None:
    """The estimate by the workload's layers, learnt from other networks; None where one of these is not known."""
    layers = known_layers(workload)
    if layers is None or batch_size is None:
        return None
    strangers = [profile for profile in others if network_of(profile) != layers.network]
    if not any(profile.kind == "train" for profile in strangers):
        return None
    work = Workload(workload, batch_size, layers=layers)
    return network_cost(device, work, specs, strangers, without=layers.network)


def _top_s(profile: CostProfile, device: DeviceSpec) -> float:
    """Seconds of a minibatch at the top clocks."""
    return float(step_s(profile.coefficients, device.maxn, modes_of([device.maxn]))[0])


def _carried(
    profile: CostProfile,
    device: DeviceSpec,
    workload: str,
    batch_size: int | None,
    longer: float,
    specs: Mapping[str, DeviceSpec],
) -> CostProfile:
    """``profile`` as a guess for ``workload``, whose minibatches take ``longer`` times as long as at its own size."""
    here = profile if profile.device == device.name else for_board(profile, specs[profile.device], device)
    ratio = _time_ratio(workload, profile.workload) * longer
    return for_workload(here, workload, batch_size or profile.batch_size, ratio)


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
