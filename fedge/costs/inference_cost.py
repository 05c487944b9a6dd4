"""Cost of inferring one batch on a board: calibrated per batch size, interpolated between sizes, and priors.

Between two batch sizes, every log-parameter is linear in the logarithm of the batch size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedge.costs.cost_profile import CostProfile, load_calibrated_inference, load_calibrated_training
from fedge.costs.cost_scaling import board_distance, carry_to_board, find_nearest_profile
from fedge.costs.gpu_rates import PASSES
from fedge.costs.layer_estimate import estimate_network_cost
from fedge.costs.workload_sizes import (
    SIZE_EXPONENT,
    WorkloadSize,
    forward_size_of_batch,
    load_forward_sizes,
    size_distance,
    size_ratio,
)
from fedge.errors import BadInput, UnknownName
from fedge.physics.batch_series import DRIFT
from fedge.physics.time_power_model import TIME_NAMES, Coefficients
from fedge.types import DeviceSpec, LayerWork, Workload

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
) -> tuple[CostProfile, ...]:
    """Return prior profiles for inferring batches of a workload on a board, the most credible first.

    Inference profiles of other workloads come first, at this batch size, interpolated, or rescaled from the nearest
    size; then their training profiles. Within each group the order is: same board, closest workload in FLOP and bytes,
    nearest board.

    Args:
        device: The board.
        workload: Name of the workload; none of its own profiles is used.
        batch_size: Samples per batch.
        specs: Data sheets by board name.
        calibrated: The profiles to choose from, of either kind; None for all that are shipped with fedge.
        unseen: SHA-256 of a table that must stay unknown, for evaluations; every series with a profile fitted to it is
            excluded.

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

    carried = []
    for those in sorted(others, key=credibility):
        here = carry_to_board(_start_profile(those, batch_size), device, specs)
        carried.append(_transfer_to_workload(here, workload, batch_size))
    return tuple(carried)


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
    rougher = dataclasses.replace(
        a,
        residual_time_sd_log=max(a.residual_time_sd_log, b.residual_time_sd_log),
        residual_power_sd_log=max(a.residual_power_sd_log, b.residual_power_sd_log),
    )
    return _as_estimate(rougher, batch_size, Coefficients(time, power), where)


def _extrapolate(edge: CostProfile, batch_size: int) -> CostProfile:
    """Rescale a profile to an uncalibrated batch size: growing terms follow the batch in proportion."""
    time = edge.coefficients.time + math.log(batch_size / edge.batch_size) * DRIFT
    where = f"extrapolated from batch size {edge.batch_size}"
    return _as_estimate(edge, batch_size, Coefficients(time, edge.coefficients.power), where)


def _as_estimate(profile: CostProfile, batch_size: int, coefficients: Coefficients, where: str) -> CostProfile:
    source = f"{where} of {profile.workload} on {profile.device} ({profile.source})"
    return profile.as_estimate(source, batch_size=batch_size, coefficients=coefficients)


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
