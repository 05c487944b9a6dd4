"""What a predictor may believe of a workload that was not measured: its layers' estimate, and other workloads.

None of it was fitted to the workload, on any board; the estimate by layers learns nothing of the same network either.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fedge.costs.estimate import board_distance, for_board, for_workload
from fedge.costs.from_layers import network_cost, tells_of_gpu, timed_steps
from fedge.costs.layered import known_layers, network_of
from fedge.costs.rates import Observed
from fedge.costs.record import CostProfile, load_calibrated, load_inference
from fedge.costs.workloads import SIZE_EXPONENT, load_workloads, size_distance, size_ratio
from fedge.errors import BadInput
from fedge.modes import modes_of
from fedge.physics.model import step_s
from fedge.types import DeviceSpec, Workload


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """What is learnt from: ``trained`` is carried from other workloads, the rest is for the estimate by layers.

    ``rating`` and ``timed`` are empty where there is no such estimate.
    """

    trained: tuple[CostProfile, ...]
    rating: tuple[CostProfile, ...] = ()
    timed: tuple[Observed, ...] = ()

    @property
    def profiles(self) -> tuple[CostProfile, ...]:
        """Each once."""
        return (*self.trained, *(profile for profile in self.rating if profile.kind == "infer"))


def priors_for(
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    *,
    batch_size: int | None = None,
    unseen: str | None = None,
    layered: bool = True,
) -> tuple[CostProfile, ...]:
    """``priors_from`` what may be learnt from; the arguments are those of ``sources_of`` and ``priors_from``."""
    sources = sources_of(workload, specs, calibrated, unseen=unseen)
    return priors_from(sources, device, workload, specs, batch_size, layered=layered)


def priors_from(
    sources: Sources,
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    batch_size: int | None = None,
    *,
    layered: bool = True,
) -> tuple[CostProfile, ...]:
    """What is believed of training ``workload`` on ``device``, the most credible first.

    Where the workload's layers are known the estimate by them, then other workloads (``carried_priors``), at
    ``batch_size`` as much longer or shorter as that estimate is; by default it is the workload's own. Without
    ``layered`` other workloads alone: what boards in rounds begin with (docs/prediction.md says why). Raises
    ``BadInput`` when no other workload is known.
    """
    carried = _carried(device, workload, specs, sources.trained)
    sizes = load_workloads()
    usual = sizes[workload].batch_size if workload in sizes else None
    here = _by_layers(device, workload, batch_size or usual, specs, sources)
    if batch_size is not None and batch_size != usual:
        own = _by_layers(device, workload, usual, specs, sources)
        longer = _top_s(here, device) / _top_s(own, device) if here is not None and own is not None else 1.0
        carried = tuple(_at_batch_size(prior, batch_size, longer) for prior in carried)
    return (here, *carried) if layered and here is not None else carried


def carried_priors(
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
) -> tuple[CostProfile, ...]:
    """Every calibrated profile of another workload's training, carried to ``device`` and to this workload.

    To the board by data-sheet ratios and to the workload by its size; the most credible first: the same board, then the
    workload closest in FLOP and bytes per step, then the nearest board. A workload of unknown size is not rescaled.
    ``calibrated`` is that of ``sources_of``; raises ``BadInput`` when no other workload is known.
    """
    return _carried(device, workload, specs, sources_of(workload, specs, calibrated).trained)


def sources_of(
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    *,
    unseen: str | None = None,
    without: Collection[str] = (),
) -> Sources:
    """What may be learnt from before ``workload`` is measured.

    ``calibrated``, by default all that ships, may hold inference too: the layers' estimate learns from it how fast GPUs
    are. ``unseen`` is the SHA-256 of a table that nothing may know of: the workload under whose name it was calibrated
    is treated as ``workload`` itself. ``without`` names workloads and boards that are left out besides, and with them
    what was timed of such a workload's network or on such a board.
    """
    every = (*load_calibrated(), *load_inference()) if calibrated is None else calibrated
    own = {workload, *(p.workload for p in every if unseen and p.evidence and p.evidence.sha256 == unseen)}
    hidden = own | set(without)
    free = [p for p in every if p.device in specs and not {p.workload, p.device} & hidden]
    trained = tuple(profile for profile in free if profile.kind == "train")
    networks = _networks(own)
    rating = tuple(p for p in free if tells_of_gpu(p) and network_of(p) not in networks)
    if known_layers(workload) is None or not any(profile.kind == "train" for profile in rating):
        return Sources(trained)
    lost = _networks(hidden) | set(without)
    timed = tuple(one for one in timed_steps() if one.device in specs and not {one.network, one.device} & lost)
    return Sources(trained, rating, timed)


def _networks(workloads: Collection[str]) -> set[str]:
    return {layers.network for layers in map(known_layers, workloads) if layers is not None}


def _by_layers(
    device: DeviceSpec,
    workload: str,
    batch_size: int | None,
    specs: Mapping[str, DeviceSpec],
    sources: Sources,
) -> CostProfile | None:
    """The estimate by the workload's layers, learnt from other networks; None where one of these is not known."""
    if not sources.rating or batch_size is None:
        return None
    work = Workload(workload, batch_size, layers=known_layers(workload))
    return network_cost(device, work, specs, sources.rating, sources.timed)


def _carried(
    device: DeviceSpec, workload: str, specs: Mapping[str, DeviceSpec], trained: Sequence[CostProfile]
) -> tuple[CostProfile, ...]:
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
