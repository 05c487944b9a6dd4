"""What inferring one batch costs on a board: calibrated per batch size, interpolated between them, and priors.

Between two batch sizes every log-parameter is taken as linear in the logarithm of the batch size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedge.costs.cost_profile import CostProfile, load_calibrated_inference, load_calibrated_training
from fedge.costs.cost_scaling import board_distance, find_nearest_profile, scale_to_board
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
from fedge.types import DeviceSpec

MAX_EXTRAPOLATION = 2.0
"""How far beyond the smallest and the largest calibrated batch size a cost is extrapolated, as a factor; chosen by
us."""
PASSES_BY_KIND = {"train": 3.0, "infer": 1.0}
"""A training step is three forward passes (``workloads.yaml``)."""


def estimate_inference_cost(
    device: DeviceSpec,
    workload: str,
    batch_size: int,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
) -> CostProfile:
    """What a batch of ``workload`` costs on ``device``: the calibrated profile, else a labelled estimate.

    Estimates lie between the calibrated batch sizes, at most a factor ``MAX_EXTRAPOLATION`` beyond them, or come from
    the nearest
    board that has the workload. ``calibrated`` defaults to the shipped profiles. Raises ``UnknownName`` when no board
    has the workload, ``BadInput`` for a batch size out of reach.
    """
    series = _group_series(load_calibrated_inference() if calibrated is None else calibrated, specs)
    having = [those[0] for those in series if those[0].workload == workload]
    if not having:
        raise UnknownName("serving.cost", workload, tuple(sorted({those[0].workload for those in series})))
    base = find_nearest_profile(having, device, specs)
    own = next(those for those in series if those[0] is base)
    profile = cost_at_batch_size(own, batch_size)
    return profile if base.device == device.name else scale_to_board(profile, specs[base.device], device)


def build_inference_priors(
    device: DeviceSpec,
    workload: str,
    batch_size: int,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    *,
    unseen: str | None = None,
) -> tuple[CostProfile, ...]:
    """What a predictor may believe of inferring batches of ``workload`` on ``device`` beforehand.

    None was fitted to the workload, on any board, nor to the table with the SHA-256 ``unseen`` (of its rows at any one
    batch size). First every other workload's inference: at this batch size, interpolated or carried from the nearest
    one; then every other workload's training. Of each the most credible first: the same board, then the workload
    closest in FLOP and bytes, then the nearest board. ``calibrated``, by default what ships, may hold both kinds.
    Raises ``BadInput`` when no other workload is known.
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
        profile = _start_profile(those, batch_size)
        here = profile if profile.device == device.name else scale_to_board(profile, specs[profile.device], device)
        carried.append(_transfer_to_workload(here, workload, batch_size))
    return tuple(carried)


def _sort_key(profile: CostProfile) -> tuple[str, str, int]:
    return profile.device, profile.workload, profile.batch_size


def _group_series(profiles: Sequence[CostProfile], specs: Mapping[str, DeviceSpec]) -> list[tuple[CostProfile, ...]]:
    """The profiles of one kind, board and workload together, ascending in batch size."""
    found: dict[tuple[str, str, str], list[CostProfile]] = {}
    for profile in sorted((p for p in profiles if p.device in specs), key=_sort_key):
        found.setdefault((profile.kind, profile.device, profile.workload), []).append(profile)
    return [tuple(those) for those in found.values()]


def _was_fitted_to(profile: CostProfile, unseen: str | None) -> bool:
    return unseen is not None and profile.evidence is not None and profile.evidence.sha256 == unseen


def _find_closest_batch_size(those: Sequence[CostProfile], batch_size: int) -> CostProfile:
    return min(those, key=lambda profile: abs(math.log(profile.batch_size / batch_size)))


def cost_at_batch_size(those: Sequence[CostProfile], batch_size: int) -> CostProfile:
    """The cost at ``batch_size`` from calibrated ones, ascending; raises ``BadInput`` for one out of reach."""
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
    """Carried to a batch size outside the calibrated ones: the growing seconds follow it, all else stays."""
    time = edge.coefficients.time + math.log(batch_size / edge.batch_size) * DRIFT
    where = f"extrapolated from batch size {edge.batch_size}"
    return _as_estimate(edge, batch_size, Coefficients(time, edge.coefficients.power), where)


def _as_estimate(profile: CostProfile, batch_size: int, coefficients: Coefficients, where: str) -> CostProfile:
    return dataclasses.replace(
        profile,
        batch_size=batch_size,
        coefficients=coefficients,
        label="estimated",
        source=f"{where} of {profile.workload} on {profile.device} ({profile.source})",
        time_mape=None,
        power_mape=None,
        evidence=None,
    )


def _start_profile(those: Sequence[CostProfile], batch_size: int) -> CostProfile:
    """The profile to start from: at ``batch_size`` as far as it can be reached, else the nearest one."""
    first = those[0]
    if first.kind == "train":
        return first
    try:
        return cost_at_batch_size(those, batch_size)
    except BadInput:
        return _extrapolate(_find_closest_batch_size(those, batch_size), batch_size)


def _transfer_to_workload(profile: CostProfile, workload: str, batch_size: int) -> CostProfile:
    """``profile`` as a guess for inferring batches of another workload, second by second.

    The GPU's follow the batch in full and the network's size by ``SIZE_EXPONENT``. A training step launches, and waits
    for, ``PASSES_BY_KIND`` times what inference does; what the host copies follows the batch alone.
    """
    passes, growth = PASSES_BY_KIND[profile.kind], batch_size / profile.batch_size
    on_gpu = _batch_growth(profile, batch_size) / passes * _gpu_time_ratio(profile.workload, workload, batch_size)
    ratios = {"gpu_s": on_gpu, "mem_s": on_gpu, "launch_s": 1.0 / passes, "fixed_s": 1.0 / passes, "host_s": growth}
    logs = np.array([math.log(ratios.get(name, 1.0)) for name in TIME_NAMES])
    what = "inference" if profile.kind == "infer" else "training"
    return dataclasses.replace(
        profile,
        workload=workload,
        batch_size=batch_size,
        kind="infer",
        coefficients=Coefficients(profile.coefficients.time + logs, profile.coefficients.power),
        label="estimated",
        source=f"{what} of {profile.workload} on {profile.device}, batch {profile.batch_size}, "
        f"time on the GPU x {on_gpu:.2f} ({profile.source})",
        time_mape=None,
        power_mape=None,
        evidence=None,
    )


def _batch_growth(profile: CostProfile, batch_size: int) -> float:
    """How much more a batch of the profile's own workload holds at ``batch_size``; weights are read once per batch."""
    forward = load_forward_sizes().get(profile.workload)
    if forward is None:
        return batch_size / profile.batch_size
    return size_ratio(forward_size_of_batch(forward, batch_size), forward_size_of_batch(forward, profile.batch_size))


def _gpu_time_ratio(known: str, wanted: str, batch_size: int) -> float:
    """What the GPU takes longer for a batch of ``wanted`` than of ``known``; 1 where a size is not known."""
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
