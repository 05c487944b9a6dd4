"""Costs of workloads on boards: calibrated, carried from elsewhere, or a prior made without their own tables.

The cost of inferring a batch is interpolated between calibrated batch sizes: every log-parameter is linear in the
logarithm of the batch size. A prior on an unmeasured workload is an estimate from its layers, or a profile of another
workload. No prior is fitted to the workload itself, on any board; the estimate from the layers also excludes every
profile of the same network.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.costs.cost_profile import CostProfile, load_calibrated_inference, load_calibrated_training
from fedge.costs.cost_scaling import (
    SIZE_EXPONENT,
    WorkloadSize,
    board_distance,
    carry_to_board,
    find_cost_profile,
    find_nearest_profile,
    forward_size_of_batch,
    load_forward_sizes,
    load_workload_sizes,
    scale_to_workload,
    size_distance,
    size_ratio,
)
from fedge.costs.gpu_rates import PASSES, RateObservation
from fedge.costs.layer_estimate import estimate_network_cost, is_rate_evidence, load_timed_steps, rescale_to_batch_size
from fedge.costs.layered_work import find_known_layers, find_profile_network
from fedge.errors import BadInput, UnknownName
from fedge.modes import stack_modes
from fedge.physics.batch_series import DRIFT
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES, Coefficients, compute_power_w, compute_step_s
from fedge.types import DeviceSpec, LayerWork, Workload

CARRIED_TIME_ERROR = 0.6
CARRIED_POWER_ERRORS = (0.2, 0.31)
"""Errors of log time and log power of training profiles carried to another workload, the latter on their own board and
on another one: root mean squares over all modes of the seven calibrated tables of training."""
CARRIED_INFERENCE_ERRORS = (0.76, 0.3)
"""The same of profiles carried to inference of another workload, over the ten calibrated tables of inference."""
BATCH_SPREAD = 0.10
"""Spread of time and power between calibrated batch sizes, log units, whose 90 % intervals hold 90 % of the values of
tables with one batch size left out (``fedge study transfer --part layers``)."""
MAX_EXTRAPOLATION = 2.0
"""Factor by which a batch size may exceed the calibrated range. Default; larger values accept more sizes at unknown
error."""


def estimate_inference_cost(
    device: DeviceSpec,
    workload: str,
    batch_size: int,
    specs: Mapping[str, DeviceSpec],
    layers: LayerWork | None = None,
) -> CostProfile:
    """Return the cost of inferring one batch on a board: calibrated if available, otherwise a labelled estimate.

    Estimates are interpolated between calibrated batch sizes, extrapolated by at most a factor of
    ``MAX_EXTRAPOLATION``, scaled from the nearest board that has the workload, or, if none has it, made from its
    ``layers``.

    Raises:
        UnknownName: No board has a profile of the workload, and its layers are not given.
        BadInput: The batch size is too far outside the calibrated range.
    """
    series = _group_series(load_calibrated_inference(), specs)
    having = [those[0] for those in series if those[0].workload == workload]
    if not having and layers is not None:
        return estimate_network_cost(device, Workload(workload, batch_size, "infer", layers), specs)
    if not having:
        raise UnknownName("serving.cost", workload, tuple(sorted({those[0].workload for those in series})))
    base = find_nearest_profile(having, device, specs)
    own = next(those for those in series if those[0] is base)
    profile = cost_at_batch_size(own, batch_size)
    return carry_to_board(profile, device, specs)


def build_inference_priors(
    device: DeviceSpec,
    workload: str,
    batch_size: int,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    *,
    unseen: str | None = None,
    layered: bool = True,
) -> tuple[CostProfile, ...]:
    """Return prior profiles for inferring batches of a workload on a board, the most credible first.

    The estimate from the layers comes first if they are known; then inference profiles of other workloads, at this
    batch size, interpolated, or rescaled from the nearest size; then their training profiles. Within each group the
    order is: same board, closest workload in FLOP and bytes, nearest board.

    Args:
        device: The board.
        workload: Name of the workload; none of its own profiles is used.
        batch_size: Samples per batch.
        specs: Data sheets by board name.
        calibrated: The profiles to choose from, of either kind; None for all that are shipped with fedge.
        unseen: SHA-256 of a table that must stay unknown, for evaluations; every series with a profile fitted to it is
            excluded.
        layered: Whether to include the estimate from the layers.

    Raises:
        BadInput: There is no profile of another workload.
    """
    profiles = (*load_calibrated_inference(), *load_calibrated_training()) if calibrated is None else calibrated
    others = [
        those
        for those in _group_series(profiles, specs)
        if those[0].workload != workload and not any(_was_fitted_to(profile, unseen) for profile in those)
    ]
    if not others:
        raise BadInput("serving.cost", repr(workload), "a workload beside which another one is calibrated")
    wanted = _workload_size(workload, batch_size)

    def credibility(those: Sequence[CostProfile]) -> tuple[bool, bool, float, float, str]:
        first = _find_closest_batch_size(those, batch_size)
        of, known = specs[first.device], _workload_size(first.workload, batch_size)
        distance = size_distance(wanted, known) if wanted and known else math.inf
        return first.kind == "train", of != device, distance, board_distance(of, device), first.workload

    carried = [
        _transfer_to_workload(carry_to_board(_start_profile(those, batch_size), device, specs), workload, batch_size)
        for those in sorted(others, key=credibility)
    ]
    known = tuple(itertools.chain(*others))
    estimate = _estimate_inference(device, workload, batch_size, specs=specs, others=known) if layered else None
    return tuple(carried if estimate is None else (estimate, *carried))


def _estimate_inference(
    device: DeviceSpec,
    workload: str,
    batch_size: int,
    specs: Mapping[str, DeviceSpec],
    others: Sequence[CostProfile],
) -> CostProfile | None:
    """Return the estimate from the workload's layers by other networks' profiles, or None if there is none."""
    layers = find_known_layers(workload, "infer")
    if layers is None or not has_data_sheet(device):
        return None
    known = [profile for profile in others if find_profile_network(profile) != layers.network]
    work = Workload(workload, batch_size, "infer", layers)
    try:  # without timed steps, from which an evaluation could not leave out a family or a board
        return estimate_network_cost(device, work, specs, calibrated=known, timed=())
    except BadInput:  # inference of no other network is known
        return None


def _sort_key(profile: CostProfile) -> tuple[str, str, int]:
    return profile.device, profile.workload, profile.batch_size


def _group_series(profiles: Sequence[CostProfile], specs: Mapping[str, DeviceSpec]) -> list[tuple[CostProfile, ...]]:
    """Group profiles by kind, board and workload, each group ascending in batch size."""
    found: dict[tuple[str, str, str], list[CostProfile]] = {}
    for profile in sorted((p for p in profiles if p.device in specs), key=_sort_key):
        found.setdefault((profile.kind, profile.device, profile.workload), []).append(profile)
    return [tuple(those) for those in found.values()]


def _was_fitted_to(profile: CostProfile, unseen: str | None) -> bool:
    return unseen is not None and profile.evidence is not None and profile.evidence.sha256 == unseen


def _find_closest_batch_size(those: Sequence[CostProfile], batch_size: int) -> CostProfile:
    return min(those, key=lambda profile: abs(math.log(profile.batch_size / batch_size)))


def cost_at_batch_size(those: Sequence[CostProfile], batch_size: int) -> CostProfile:
    """Return the cost at a batch size, from one board's calibrated profiles of a workload, ascending in batch size.

    Raises:
        BadInput: The size is more than a factor of ``MAX_EXTRAPOLATION`` outside the calibrated range.
    """
    known = [profile.batch_size for profile in those]
    low, high = max(1.0, known[0] / MAX_EXTRAPOLATION), known[-1] * MAX_EXTRAPOLATION
    if not low <= batch_size <= high:
        listed = f"calibrated: {', '.join(map(str, known))}; from {low:g} to {high:g} can be used"
        raise BadInput(f"batch size of {those[0].workload}", str(batch_size), listed)
    place = int(np.searchsorted(known, batch_size))
    if place < len(known) and known[place] == batch_size:
        return those[place]
    if 0 < place < len(known):
        return _interpolate(those[place - 1], those[place], batch_size)
    return _extrapolate(those[0] if place == 0 else those[-1], batch_size)


def _interpolate(a: CostProfile, b: CostProfile, batch_size: int) -> CostProfile:
    share = math.log(batch_size / a.batch_size) / math.log(b.batch_size / a.batch_size)
    time = a.coefficients.time + share * (b.coefficients.time - a.coefficients.time)
    power = a.coefficients.power + share * (b.coefficients.power - a.coefficients.power)
    where = f"interpolated between batch sizes {a.batch_size} and {b.batch_size}"
    return _as_estimate((a, b), batch_size, Coefficients(time, power), where)


def _extrapolate(edge: CostProfile, batch_size: int) -> CostProfile:
    """Rescale a profile to an uncalibrated batch size: growing terms follow the batch in proportion."""
    time = edge.coefficients.time + math.log(batch_size / edge.batch_size) * DRIFT
    where = f"extrapolated from batch size {edge.batch_size}"
    return _as_estimate((edge,), batch_size, Coefficients(time, edge.coefficients.power), where)


def _as_estimate(known: Sequence[CostProfile], batch_size: int, coefficients: Coefficients, where: str) -> CostProfile:
    first = known[0]
    rougher = dataclasses.replace(
        first,
        residual_time_sd_log=max(BATCH_SPREAD, *(one.residual_time_sd_log for one in known)),
        residual_power_sd_log=max(BATCH_SPREAD, *(one.residual_power_sd_log for one in known)),
    )
    source = f"{where} of {first.workload} on {first.device} ({first.source})"
    return rougher.as_estimate(source, batch_size=batch_size, coefficients=coefficients)


def _start_profile(those: Sequence[CostProfile], batch_size: int) -> CostProfile:
    """Return the profile to rescale: at ``batch_size`` if within reach, otherwise at the nearest calibrated size."""
    first = those[0]
    if first.kind == "train":
        return first
    try:
        return cost_at_batch_size(those, batch_size)
    except BadInput:
        return _extrapolate(_find_closest_batch_size(those, batch_size), batch_size)


def _transfer_to_workload(profile: CostProfile, workload: str, batch_size: int) -> CostProfile:
    """Rescale a profile to inferring batches of another workload, term by term.

    GPU times follow the batch in proportion and the network's size by ``SIZE_EXPONENT``. A training step has
    ``PASSES`` times the launches and waits of inference; copies by the host follow the batch alone.
    """
    passes, growth = PASSES[profile.kind], batch_size / profile.batch_size
    on_gpu = _batch_growth(profile, batch_size) / passes * _gpu_time_ratio(profile.workload, workload, batch_size)
    ratios = {"gpu_s": on_gpu, "mem_s": on_gpu, "launch_s": 1.0 / passes, "fixed_s": 1.0 / passes, "host_s": growth}
    logs = np.array([math.log(ratios.get(name, 1.0)) for name in TIME_NAMES])
    what = "inference" if profile.kind == "infer" else "training"
    return profile.as_estimate(
        f"{what} of {profile.workload} on {profile.device}, batch {profile.batch_size}, "
        f"time on the GPU x {on_gpu:.2f} ({profile.source})",
        workload=workload,
        batch_size=batch_size,
        kind="infer",
        coefficients=Coefficients(profile.coefficients.time + logs, profile.coefficients.power),
        time_error_log=CARRIED_INFERENCE_ERRORS[0],
        power_error_log=CARRIED_INFERENCE_ERRORS[1],
    )


def _batch_growth(profile: CostProfile, batch_size: int) -> float:
    """Return the growth of a batch's FLOP and bytes from the profile's batch size to ``batch_size``.

    Weights are read once per batch.
    """
    forward = load_forward_sizes().get(profile.workload)
    if forward is None:
        return batch_size / profile.batch_size
    return size_ratio(forward_size_of_batch(forward, batch_size), forward_size_of_batch(forward, profile.batch_size))


def _gpu_time_ratio(known: str, wanted: str, batch_size: int) -> float:
    """Return the GPU time ratio of ``wanted`` to ``known`` at one batch size; 1 if a size is unknown."""
    sizes = load_forward_sizes()
    if not {known, wanted} <= sizes.keys():
        return 1.0
    ratio = size_ratio(
        forward_size_of_batch(sizes[wanted], batch_size), forward_size_of_batch(sizes[known], batch_size)
    )
    return math.pow(ratio, SIZE_EXPONENT)


def _workload_size(workload: str, batch_size: int) -> WorkloadSize | None:
    forward = load_forward_sizes().get(workload)
    return forward_size_of_batch(forward, batch_size) if forward else None


@dataclass(frozen=True, slots=True, eq=False)
class PriorSources:
    """Profiles and measurements from which priors may be derived.

    Attributes:
        rescaled_profiles: Profiles that are rescaled to the workload; of inference too, if the workload is inference.
        rate_profiles: Profiles to which the GPU rates of the layer estimate are fitted; empty if there is no such
            estimate.
        timed_steps: Further GPU times for the same fit; empty if there is no such estimate.
    """

    rescaled_profiles: tuple[CostProfile, ...]
    rate_profiles: tuple[CostProfile, ...] = ()
    timed_steps: tuple[RateObservation, ...] = ()

    @property
    def profiles(self) -> tuple[CostProfile, ...]:
        """Return every profile once: those of training, then those of inference."""
        return (*self.rescaled_profiles, *(profile for profile in self.rate_profiles if profile.kind == "infer"))


def find_workload_cost(device: DeviceSpec, work: Workload, specs: Mapping[str, DeviceSpec]) -> CostProfile:
    """Return the cost of a step: calibrated, rescaled from another batch size, or estimated from the layers.

    Raises:
        UnknownName: No board has a profile of the workload, and its layers are unknown.
        BadInput: The workload was measured at other batch sizes, and its layers are unknown.
    """
    if work.kind == "infer":
        here = any((p.device, p.workload) == (device.name, work.name) for p in load_calibrated_inference())
        if work.layers is None or here:
            try:
                return estimate_inference_cost(device, work.name, work.batch_size, specs)
            except BadInput:  # too far from every batch size that was measured
                if work.layers is None:
                    raise
        return estimate_network_cost(device, work, specs)
    measured = work.name in load_workload_sizes()
    if work.layers is not None and not measured:
        return estimate_network_cost(device, work, specs)
    profile = find_cost_profile(device, work.name, specs)
    if measured:
        return rescale_to_batch_size(profile, work, device, specs)
    if profile.batch_size != work.batch_size:
        right = f"{profile.batch_size}, at which {work.name} was calibrated"
        raise BadInput("workload.batch_size", str(work.batch_size), right)
    return profile


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
    """Select the prior sources of a workload and derive its priors.

    The arguments are those of ``select_prior_sources`` and ``derive_priors``. Without a data sheet of the board the
    profiles keep their times, and their power at the top mode becomes the board's largest.
    """
    sources = select_prior_sources(workload, specs, calibrated, unseen=unseen)
    if not has_data_sheet(device):
        return tuple(_scale_power(profile, specs[profile.device], device) for profile in sources.rescaled_profiles)
    return derive_priors(sources, device=device, workload=workload, specs=specs, batch_size=batch_size, layered=layered)


def has_data_sheet(device: DeviceSpec) -> bool:
    """Return whether the figures are known by which costs are carried to a board."""
    return math.isfinite(device.gpu_gflops.value)


def _scale_power(profile: CostProfile, own: DeviceSpec, device: DeviceSpec) -> CostProfile:
    """Scale a profile's power, so that it is ``device.max_w`` at the top mode of its own board."""
    found = profile.coefficients
    watts = float(compute_power_w(found, own.maxn, stack_modes([own.maxn]))[0])
    factor = [math.log(device.max_w.value / watts) if name.endswith("_w") else 0.0 for name in POWER_NAMES]
    scaled = dataclasses.replace(found, power=found.power + np.array(factor))
    return profile.as_estimate(f"{profile.source}, scaled to {device.max_w.value:g} W", coefficients=scaled)


def derive_priors(
    sources: PriorSources,
    device: DeviceSpec,
    workload: str,
    specs: Mapping[str, DeviceSpec],
    batch_size: int | None = None,
    *,
    layered: bool = True,
) -> tuple[CostProfile, ...]:
    """Return prior profiles for training a workload on a board, the most credible first.

    The estimate from the layers comes first if the layers are known, then the calibrated training profiles of other
    workloads. Those are rescaled to the board by data-sheet ratios and to the workload by its size, if that is known:
    profiles of the same board first, then the workloads closest in FLOP and bytes per step, then the nearest boards.

    Args:
        sources: The profiles and measurements to derive priors from (``select_prior_sources``).
        device: The board.
        workload: Name of the workload.
        specs: Data sheets by board name.
        batch_size: Samples per step; None for the workload's usual batch size. Profiles of other workloads are rescaled
            to it by the ratio of the two layer estimates.
        layered: Whether to include the estimate from the layers. Clients in rounds start without it: it assumes a
            larger share of memory traffic than other workloads' profiles have, so the first probes keep a high memory
            clock. In `fedge study transfer --part online --seeds 3` the estimate lowers the mean regret from round 10
            on from 1.0, 0.9 and 1.2 % (deadlines x 1.5, 2, 3) to 1.0, 0.7 and 0.7 % and rounds are no later, but it
            raises that of ViT-B/16 on AGX Xavier from 0.3, 0.4 and 0.4 % to 2.4, 0.8 and 0.8 %.

    Raises:
        BadInput: There is no profile of another workload.
    """
    carried = _transfer_profiles(device, workload, specs, sources.rescaled_profiles)
    sizes = load_workload_sizes()
    usual = sizes[workload].batch_size if workload in sizes else None
    rescaled = batch_size is not None and batch_size != usual
    here = None
    if layered or rescaled:
        here = _estimate_by_layers(device, workload, batch_size or usual, specs=specs, sources=sources)
    if batch_size is not None and rescaled:
        own = _estimate_by_layers(device, workload, usual, specs=specs, sources=sources)
        longer = _maxn_step_s(here, device) / _maxn_step_s(own, device) if here is not None and own is not None else 1.0
        carried = tuple(_rescale_prior(prior, batch_size, longer) for prior in carried)
    return (here, *carried) if layered and here is not None else carried


def select_prior_sources(
    workload: str,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    *,
    unseen: str | None = None,
    without: Collection[str] = (),
) -> PriorSources:
    """Select the profiles and measurements that may be used before a workload is measured.

    Args:
        workload: Name of the workload; none of its own profiles is used.
        specs: Data sheets by board name. Profiles of other boards are ignored.
        calibrated: The profiles to choose from, of training and inference (the layer estimate learns GPU rates from
            both); None for all that are shipped with fedge.
        unseen: SHA-256 of a table that must stay unknown, for evaluations. The workload calibrated from it is treated
            as ``workload``.
        without: Names of workloads and boards to exclude as well, together with the timed steps of their networks.
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
    device: DeviceSpec, workload: str, batch_size: int | None, specs: Mapping[str, DeviceSpec], sources: PriorSources
) -> CostProfile | None:
    """Return the estimate from the workload's layers, or None if its network or its size is not known."""
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
    here = carry_to_board(profile, device, specs)
    sizes = load_workload_sizes()
    batch_size = sizes[workload].batch_size if workload in sizes else profile.batch_size
    return dataclasses.replace(
        scale_to_workload(here, workload, batch_size, _time_ratio(workload, profile.workload)),
        time_error_log=CARRIED_TIME_ERROR,
        power_error_log=CARRIED_POWER_ERRORS[profile.device != device.name],
    )


def _rescale_prior(prior: CostProfile, batch_size: int, longer: float) -> CostProfile:
    moved = scale_to_workload(prior, prior.workload, batch_size, longer)
    return dataclasses.replace(moved, source=f"{prior.source}, carried to batch {batch_size}")


def _maxn_step_s(profile: CostProfile, device: DeviceSpec) -> float:
    return float(compute_step_s(profile.coefficients, device.maxn, stack_modes([device.maxn]))[0])


def _workload_distance(workload: str, other: str) -> float:
    sizes = load_workload_sizes()
    return size_distance(sizes[workload], sizes[other]) if {workload, other} <= sizes.keys() else math.inf


def _time_ratio(workload: str, other: str) -> float:
    sizes = load_workload_sizes()
    known = {workload, other} <= sizes.keys()
    return size_ratio(sizes[workload], sizes[other]) ** SIZE_EXPONENT if known else 1.0
