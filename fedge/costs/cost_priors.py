"""What a predictor may believe of a workload that was not measured: its layers' estimate, and other workloads.

None of it was fitted to the workload, on any board; the estimate by layers learns nothing of the same network either.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fedge.costs.cost_profile import CostProfile, load_calibrated_inference, load_calibrated_training
from fedge.costs.cost_scaling import board_distance, scale_to_board, scale_to_workload
from fedge.costs.gpu_rates import RateObservation
from fedge.costs.layer_estimate import estimate_network_cost, is_rate_evidence, load_timed_steps
from fedge.costs.layered_work import find_known_layers, find_profile_network
from fedge.costs.workload_sizes import SIZE_EXPONENT, load_workload_sizes, size_distance, size_ratio
from fedge.errors import BadInput
from fedge.modes import stack_modes
from fedge.physics.time_power_model import compute_step_s
from fedge.types import DeviceSpec, Workload


@dataclass(frozen=True, slots=True, eq=False)
class PriorSources:
    """What is learnt from: ``trained`` is carried from other workloads, the rest is for the estimate by layers.

    ``rating`` and ``timed`` are empty where there is no such estimate.
    """

    training_profiles: tuple[CostProfile, ...]
    rate_profiles: tuple[CostProfile, ...] = ()
    timed_steps: tuple[RateObservation, ...] = ()

    @property
    def profiles(self) -> tuple[CostProfile, ...]:
        """Each once."""
        return (*self.training_profiles, *(profile for profile in self.rate_profiles if profile.kind == "infer"))


def build_priors(
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    *,
    batch_size: int | None = None,
    unseen: str | None = None,
    layered: bool = True,
) -> tuple[CostProfile, ...]:
    """``derive_priors`` what may be learnt from; the arguments are those of ``select_prior_sources`` and
    ``derive_priors``.
    """
    sources = select_prior_sources(workload, specs, calibrated, unseen=unseen)
    return derive_priors(sources, device=device, workload=workload, specs=specs, batch_size=batch_size, layered=layered)


def derive_priors(
    sources: PriorSources,
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    batch_size: int | None = None,
    *,
    layered: bool = True,
) -> tuple[CostProfile, ...]:
    """What is believed of training ``workload`` on ``device``, the most credible first.

    Where the workload's layers are known the estimate by them, then other workloads (``transfer_priors``), at
    ``batch_size`` as much longer or shorter as that estimate is; by default it is the workload's own. Without
    ``layered`` other workloads alone: what boards in rounds begin with (docs/prediction.md says why). Raises
    ``BadInput`` when no other workload is known.
    """
    carried = _transfer_profiles(device, workload, specs, sources.training_profiles)
    sizes = load_workload_sizes()
    usual = sizes[workload].batch_size if workload in sizes else None
    here = _estimate_by_layers(device, workload=workload, batch_size=batch_size or usual, specs=specs, sources=sources)
    if batch_size is not None and batch_size != usual:
        own = _estimate_by_layers(device, workload=workload, batch_size=usual, specs=specs, sources=sources)
        longer = _maxn_step_s(here, device) / _maxn_step_s(own, device) if here is not None and own is not None else 1.0
        carried = tuple(_rescale_prior(prior, batch_size, longer) for prior in carried)
    return (here, *carried) if layered and here is not None else carried


def transfer_priors(
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
) -> tuple[CostProfile, ...]:
    """Every calibrated profile of another workload's training, carried to ``device`` and to this workload.

    To the board by data-sheet ratios and to the workload by its size; the most credible first: the same board, then the
    workload closest in FLOP and bytes per step, then the nearest board. A workload of unknown size is not rescaled.
    ``calibrated`` is that of ``select_prior_sources``; raises ``BadInput`` when no other workload is known.
    """
    return _transfer_profiles(
        device, workload, specs, select_prior_sources(workload, specs, calibrated).training_profiles
    )


def select_prior_sources(
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    *,
    unseen: str | None = None,
    without: Collection[str] = (),
) -> PriorSources:
    """What may be learnt from before ``workload`` is measured.

    ``calibrated``, by default all that ships, may hold inference too: the layers' estimate learns from it how fast GPUs
    are. ``unseen`` is the SHA-256 of a table that nothing may know of: the workload under whose name it was calibrated
    is treated as ``workload`` itself. ``without`` names workloads and boards that are left out besides, and with them
    what was timed of such a workload's network or on such a board.
    """
    every = (*load_calibrated_training(), *load_calibrated_inference()) if calibrated is None else calibrated
    own = {workload, *(p.workload for p in every if unseen and p.evidence and p.evidence.sha256 == unseen)}
    hidden = own | set(without)
    free = [p for p in every if p.device in specs and not {p.workload, p.device} & hidden]
    trained = tuple(profile for profile in free if profile.kind == "train")
    networks = _list_network_names(own)
    rating = tuple(p for p in free if is_rate_evidence(p) and find_profile_network(p) not in networks)
    if find_known_layers(workload) is None or not any(profile.kind == "train" for profile in rating):
        return PriorSources(trained)
    lost = _list_network_names(hidden) | set(without)
    timed = tuple(one for one in load_timed_steps() if one.device in specs and not {one.network, one.device} & lost)
    return PriorSources(trained, rating, timed)


def _list_network_names(workloads: Collection[str]) -> set[str]:
    return {layers.network for layers in map(find_known_layers, workloads) if layers is not None}


def _estimate_by_layers(
    device: DeviceSpec,
    workload: str,
    batch_size: int | None,
    specs: Mapping[str, DeviceSpec],
    sources: PriorSources,
) -> CostProfile | None:
    """The estimate by the workload's layers, learnt from other networks; None where one of these is not known."""
    if not sources.rate_profiles or batch_size is None:
        return None
    work = Workload(workload, batch_size, layers=find_known_layers(workload))
    return estimate_network_cost(
        device, work=work, specs=specs, calibrated=sources.rate_profiles, timed=sources.timed_steps
    )


def _transfer_profiles(
    device: DeviceSpec, workload: str, specs: Mapping[str, DeviceSpec], trained: Sequence[CostProfile]
) -> tuple[CostProfile, ...]:
    if not trained:
        raise BadInput("workload.cost", repr(workload), "a workload beside which another one is calibrated")

    def credibility(profile: CostProfile) -> tuple[bool, float, float, str]:
        of = specs[profile.device]
        return (
            of != device,
            _workload_distance(workload, profile.workload),
            board_distance(of, device),
            profile.workload,
        )

    return tuple(_transfer_profile(profile, device, workload, specs) for profile in sorted(trained, key=credibility))


def _transfer_profile(
    profile: CostProfile, device: DeviceSpec, workload: str, specs: Mapping[str, DeviceSpec]
) -> CostProfile:
    here = profile if profile.device == device.name else scale_to_board(profile, specs[profile.device], device)
    sizes = load_workload_sizes()
    batch_size = sizes[workload].batch_size if workload in sizes else profile.batch_size
    return scale_to_workload(here, workload, batch_size, _time_ratio(workload, profile.workload))


def _rescale_prior(prior: CostProfile, batch_size: int, longer: float) -> CostProfile:
    moved = scale_to_workload(prior, prior.workload, batch_size, longer)
    return dataclasses.replace(moved, source=f"{prior.source}, carried to batch {batch_size}")


def _maxn_step_s(profile: CostProfile, device: DeviceSpec) -> float:
    """Seconds of a minibatch at the top clocks."""
    return float(compute_step_s(profile.coefficients, device.maxn, stack_modes([device.maxn]))[0])


def _workload_distance(workload: str, other: str) -> float:
    sizes = load_workload_sizes()
    return size_distance(sizes[workload], sizes[other]) if {workload, other} <= sizes.keys() else math.inf


def _time_ratio(workload: str, other: str) -> float:
    sizes = load_workload_sizes()
    known = {workload, other} <= sizes.keys()
    return size_ratio(sizes[workload], sizes[other]) ** SIZE_EXPONENT if known else 1.0
