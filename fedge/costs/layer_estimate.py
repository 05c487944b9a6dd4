"""Estimate the cost profile of a network without measurements from its layers and from other networks' profiles.

GPU time comes from ``gpu_rates``. Launch time is the number of operators times the other workloads' time per operator.
Loading, host work and overlap are those of the board's other workloads, and power is that of the most similar one.
Other workloads enter through their calibrated profiles alone, so leaving a profile out leaves its table out;
``fedge study transfer`` does so table by table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from fedge.costs.cost_profile import (
    CostProfile,
    WorkloadKind,
    load_calibrated_inference,
    load_calibrated_training,
    load_yaml,
)
from fedge.costs.cost_scaling import scale_to_board
from fedge.costs.gpu_rates import PASSES, RateObservation, fit_rates
from fedge.costs.layered_work import LayeredBatch, build_profile_batch, find_family, find_profile_network
from fedge.errors import BadInput
from fedge.physics.time_power_model import TIME_NAMES, Coefficients
from fedge.types import DeviceSpec, Floats, Loading, OperationCounts, Workload

LAUNCH_S = 1e-4
"""Prior mean of the time per operator of a forward pass on the reference core, in seconds. Default; replaced by the
calibrated workloads' times where there are any."""
LAUNCH_SD, LAUNCH_OWN_SD = 0.3, 0.2
"""Prior spread of that time between all boards and the default, and between boards, log units. Defaults: larger values
trust the board's own workloads more and the other boards' less."""
IMAGE_MPIXEL = 0.25
"""Megapixels whose decoding takes as long as cropping, scaling and converting an image. Default; not measured."""
DECODE_S_PER_MPIXEL = 7e-3
"""Seconds to decode a megapixel of JPEG on the reference core. Default: a typical figure for such cores, not a
measurement."""
MEMORY_SHARE, MEMORY_SD, MEMORY_OWN_SD = 0.8, 0.2, 0.15
"""Prior mean of ``mem_s`` / ``gpu_s``, its spread for all boards, and its spread between boards and tables (log units).
Defaults; the calibrated profiles correct the mean."""
SMALLEST_OBSERVED_BATCH = 16
"""Smallest inference batch used to fit GPU rates: smaller ones wait for launches and do not show the GPU's speed.
Default; a lower limit adds observations but biases the rates."""
OWN_BOARD_ERRORS: dict[WorkloadKind, tuple[float, float]] = {"train": (0.12, 0.15), "infer": (0.13, 0.20)}
NEW_FAMILY_TIME_ERRORS: dict[WorkloadKind, float] = {"train": 0.20, "infer": 0.17}
OTHER_BOARD_ERRORS = (0.23, 0.38)
"""Expected errors of time and power: on a board with other tables and with tables of a related network, the time
without the latter, and on a board without a table. They are the mean relative ones over all modes in ``fedge study
transfer --part layers``, but raised where the 90 % intervals that they give as spreads held less than 85 % of the
values: the powers' from 0.09, 0.16 and 0.26."""


def estimate_network_cost(
    device: DeviceSpec,
    work: Workload,
    specs: Mapping[str, DeviceSpec],
    calibrated: Sequence[CostProfile] | None = None,
    timed: Sequence[RateObservation] | None = None,
) -> CostProfile:
    """Estimate the cost of a minibatch on a board from its network's layers.

    Args:
        device: The board.
        work: The workload; its layers must be known.
        specs: Data sheets by board name. Profiles of other boards are ignored.
        calibrated: Profiles of training and inference to learn from; None for those shipped with fedge.
        timed: Timed steps to learn GPU rates from; None for ``load_timed_steps``.

    Returns:
        A profile labelled ``estimated``. Its errors are the mean ones found by leaving tables out, its residuals those
        of the profiles that it starts from.

    Raises:
        BadInput: The layers are unknown or compute nothing, or there is no profile of the same kind to start from.
    """
    if work.layers is None:
        raise BadInput("workload.network", f"{work.name}, whose layers are not known", "a network to count")
    if not work.layers.counted.operators:
        raise BadInput("workload.network", f"{work.name}, which computes nothing", "a network with layers")
    batch = LayeredBatch(work.layers, work.batch_size, work.kind)
    profiles = [*load_calibrated_training(), *load_calibrated_inference()] if calibrated is None else list(calibrated)
    profiles = [profile for profile in profiles if profile.device in specs]
    alike = _select_closest_batches([profile for profile in profiles if profile.kind == batch.kind], batch.size)
    if not alike:
        raise BadInput("workload.network", repr(work.name), f"a calibrated profile of kind {batch.kind} beside it")
    own, loaded = _select_bases(alike, batch.layers.loading, device, specs)
    parts = _estimate_parts(device, batch=batch, seen=collect_observations(profiles, timed), alike=alike, specs=specs)
    time = _build_time_logs(device, batch, parts=parts, own=own, loaded=loaded)
    power = _estimate_power_logs(device, batch, alike=alike, specs=specs)
    time_off, power_off = _expect_errors(device, batch, alike)
    tables = len({(profile.device, profile.workload) for profile in alike})
    return CostProfile(
        device.name,
        workload=work.name,
        batch_size=batch.size,
        coefficients=Coefficients(time, power),
        label="estimated",
        source=f"layers of {batch.layers.network} on {device.name}, {describe_error(time_off, power_off)} in the mean, "
        f"as where one of {tables} tables of workloads was left out",
        time_mape=None,
        power_mape=None,
        residual_time_sd_log=float(np.mean([profile.residual_time_sd_log for profile in own])),
        residual_power_sd_log=float(np.mean([profile.residual_power_sd_log for profile in own])),
        evidence=None,
        kind=batch.kind,
        time_error_log=time_off,
        power_error_log=power_off,
    )


def describe_error(time_error: float, power_error: float) -> str:
    """Describe the expected relative errors of an estimate: ``time off by 32 %, power by 47 %``."""
    return f"time off by {100 * time_error:.0f} %, power by {100 * power_error:.0f} %"


def _expect_errors(device: DeviceSpec, batch: LayeredBatch, alike: Sequence[CostProfile]) -> tuple[float, float]:
    """Return the expected relative errors of time and power."""
    if all(profile.device != device.name for profile in alike):
        return OTHER_BOARD_ERRORS
    time_off, power_off = OWN_BOARD_ERRORS[batch.kind]
    families = {find_family(find_profile_network(profile) or "") for profile in alike}
    return time_off if find_family(batch.layers.network) in families else NEW_FAMILY_TIME_ERRORS[batch.kind], power_off


def rescale_to_batch_size(
    profile: CostProfile, work: Workload, device: DeviceSpec, specs: Mapping[str, DeviceSpec]
) -> CostProfile:
    """Rescale a profile to another batch size by the ratio of the layer estimates at the two sizes.

    Raises:
        BadInput: The layers are unknown and the batch sizes differ.
    """
    if work.batch_size == profile.batch_size:
        return profile
    there, here = (
        estimate_network_cost(device, dataclasses.replace(work, batch_size=size), specs).coefficients
        for size in (work.batch_size, profile.batch_size)
    )
    return profile.as_estimate(
        f"carried from batch {profile.batch_size} to {work.batch_size} by its layers ({profile.source})",
        batch_size=work.batch_size,
        coefficients=Coefficients(profile.coefficients.time + there.time - here.time, profile.coefficients.power),
    )


def collect_observations(
    profiles: Sequence[CostProfile], timed: Sequence[RateObservation] | None = None
) -> tuple[RateObservation, ...]:
    """Return the GPU times of calibrated profiles, followed by timed steps."""
    seen = [one for one in map(_to_observation, profiles) if one is not None]
    return (*seen, *(load_timed_steps() if timed is None else timed))


def is_rate_evidence(profile: CostProfile) -> bool:
    """Return whether GPU rates are fitted to a profile: its network is known and its batch is large enough."""
    return _to_observation(profile) is not None


def _to_observation(profile: CostProfile) -> RateObservation | None:
    batch = build_profile_batch(profile)
    if batch is None or (batch.kind == "infer" and batch.size < SMALLEST_OBSERVED_BATCH):
        return None
    return _build_observation(profile.device, batch, _gpu_s(profile.coefficients.time))


def _build_observation(device: str, batch: LayeredBatch, gpu_s: float) -> RateObservation:
    layers = batch.layers
    training = batch.kind == "train"
    return RateObservation(
        device,
        network=layers.network,
        counted=layers.counted,
        batch_size=batch.size,
        training=training,
        seconds=gpu_s,
        mixed=layers.mixed,
        optimizer_state=layers.optimizer_state,
    )


@lru_cache(maxsize=1)
def load_timed_steps() -> tuple[RateObservation, ...]:
    """Load the networks whose training steps were timed over batch sizes, as seconds per further sample."""
    return tuple(
        RateObservation(
            entry["device"],
            network=name,
            counted=OperationCounts(**entry["counted"]),
            batch_size=1,
            training=True,
            seconds=entry["seconds_per_sample"],
            slope=True,
        )
        for name, entry in load_yaml(resources.files("fedge.costs") / "step_slopes.yaml").items()
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Estimated parts of a step at the top clocks: GPU and launch time in seconds, and log(``mem_s`` / ``gpu_s``)."""

    gpu_s: float
    launch_s: float
    memory_log: float


def _select_closest_batches(profiles: Sequence[CostProfile], batch_size: int) -> list[CostProfile]:
    """Keep one profile per board and workload: the one whose batch size is closest to ``batch_size``."""
    best: dict[tuple[str, str], CostProfile] = {}
    for profile in profiles:
        key = (profile.device, profile.workload)
        if key not in best or _log_distance(profile, batch_size) < _log_distance(best[key], batch_size):
            best[key] = profile
    return list(best.values())


def _log_distance(profile: CostProfile, batch_size: int) -> float:
    return abs(math.log(profile.batch_size / batch_size))


def _estimate_parts(
    device: DeviceSpec,
    batch: LayeredBatch,
    seen: Sequence[RateObservation],
    alike: Sequence[CostProfile],
    specs: Mapping[str, DeviceSpec],
) -> _Parts:
    asked = _build_observation(device.name, batch, math.nan)
    gpu_s = fit_rates(seen, specs).predict_s(asked, device)
    operator_s = _posterior_mean(
        _operator_logs(alike, specs),
        device=device.name,
        expected=math.log(LAUNCH_S),
        sd=LAUNCH_SD,
        own_sd=LAUNCH_OWN_SD,
    )
    launch_s = PASSES[batch.kind] * batch.layers.counted.operators * math.exp(operator_s) / device.cpu_score.value
    shares = [(p.device, _log_parameter(p, "mem_s") - _log_parameter(p, "gpu_s")) for p in alike]
    memory_log = _posterior_mean(
        shares, device=device.name, expected=math.log(MEMORY_SHARE), sd=MEMORY_SD, own_sd=MEMORY_OWN_SD
    )
    return _Parts(gpu_s, launch_s, memory_log)


def _operator_logs(profiles: Sequence[CostProfile], specs: Mapping[str, DeviceSpec]) -> list[tuple[str, float]]:
    """Return pairs of board and log seconds per operator of one pass, scaled to the reference core."""
    logs = []
    for profile in profiles:
        batch = build_profile_batch(profile)
        if batch is not None:
            took_s = math.exp(_log_parameter(profile, "launch_s")) * specs[profile.device].cpu_score.value
            logs.append((profile.device, math.log(took_s / (PASSES[batch.kind] * batch.layers.counted.operators))))
    return logs


def _posterior_mean(seen: Sequence[tuple[str, float]], device: str, expected: float, sd: float, own_sd: float) -> float:
    """Return the mean of a Gaussian prior after other boards' values and then, widened, the board's own."""
    variance = sd**2
    for of_board in (False, True):
        variance += own_sd**2 if of_board else 0.0
        for value in (value for board, value in seen if (board == device) is of_board):
            gain = variance / (variance + own_sd**2)
            expected, variance = expected + gain * (value - expected), variance * (1 - gain)
    return expected


def _select_bases(
    alike: Sequence[CostProfile], loading: Loading, device: DeviceSpec, specs: Mapping[str, DeviceSpec]
) -> tuple[tuple[CostProfile, ...], tuple[CostProfile, ...]]:
    """Return the board's own profiles and those that load samples alike; without any of the latter, the former twice.

    If this board has none, they are those of all boards, scaled to it.
    """
    own = _scale_profiles(alike, device, specs)
    loaded = [profile for profile in alike if _find_loading(profile) == loading]
    return own, _scale_profiles(loaded, device, specs) if loaded else own


def _scale_profiles(
    profiles: Sequence[CostProfile], device: DeviceSpec, specs: Mapping[str, DeviceSpec]
) -> tuple[CostProfile, ...]:
    own = tuple(profile for profile in profiles if profile.device == device.name)
    return own or tuple(scale_to_board(profile, specs[profile.device], device) for profile in profiles)


def _find_loading(profile: CostProfile) -> Loading:
    batch = build_profile_batch(profile)
    return "cached" if batch is None else batch.layers.loading


def _estimate_power_logs(
    device: DeviceSpec, batch: LayeredBatch, alike: Sequence[CostProfile], specs: Mapping[str, DeviceSpec]
) -> Floats:
    """Return the log power parameters, shape (13,): those of the board's most similar workload.

    A board without a profile gets the mean over the boards that have some, since the nearest one by the data sheet may
    draw twice the power in low modes: with each board left out, that is off by 26 % in the mean instead of 48 %.
    """
    own = [profile for profile in alike if profile.device == device.name]
    if own:
        return min(own, key=lambda profile: _workload_dissimilarity(profile, batch)).coefficients.power
    by_board: dict[str, list[Floats]] = {}
    for profile in alike:
        scaled = scale_to_board(profile, specs[profile.device], device)
        by_board.setdefault(profile.device, []).append(scaled.coefficients.power)
    return np.asarray(np.mean([np.mean(logs, axis=0) for logs in by_board.values()], axis=0))


def _build_time_logs(
    device: DeviceSpec, batch: LayeredBatch, parts: _Parts, own: Sequence[CostProfile], loaded: Sequence[CostProfile]
) -> Floats:
    """Return the log time parameters, shape (11,), from the estimated parts and the profiles of ``_select_bases``."""
    logs = np.mean([profile.coefficients.time for profile in own], axis=0)
    loading = np.mean([_loading_logs(profile, batch) for profile in loaded], axis=0)
    for name in ("prep_s", "prep_core_exponent", "prep_mem_share", "prep_crowding", "host_s", "fixed_s"):
        logs[_INDEX[name]] = loading[_INDEX[name]]
    logs[_INDEX["mem_s"]] = logs[_INDEX["gpu_s"]] + parts.memory_log
    grown = math.log(parts.gpu_s / _gpu_s(logs))
    logs[_INDEX["gpu_s"]] += grown
    logs[_INDEX["mem_s"]] += grown
    logs[_INDEX["launch_s"]] = math.log(parts.launch_s)
    if batch.layers.loading == "inline" and not any(_find_loading(profile) == "inline" for profile in loaded):
        inline_s = batch.size * (IMAGE_MPIXEL + batch.layers.image_mpixel) * DECODE_S_PER_MPIXEL
        logs[_INDEX["host_s"]] = np.logaddexp(logs[_INDEX["host_s"]], math.log(inline_s / device.cpu_score.value))
    return np.asarray(logs)


def _loading_logs(profile: CostProfile, batch: LayeredBatch) -> Floats:
    """Return a profile's log time parameters, with preprocessing scaled by samples and fixed time by operators.

    Where samples are loaded between steps, preprocessing is nearly all of the host's time, which scales likewise.
    Nothing is loaded in the steps of a cached batch: what several cores do beside launching grows with the operators.
    """
    logs = profile.coefficients.time.copy()
    known = build_profile_batch(profile)
    if known is None:
        return logs
    operators = math.log(batch.layers.counted.operators / known.layers.counted.operators)
    logs[_INDEX["fixed_s"]] += operators
    if batch.layers.loading == known.layers.loading == "cached":
        logs[_INDEX["prep_s"]] += operators
    loads = {"workers": "prep_s", "inline": "host_s"}.get(batch.layers.loading)
    if loads is not None and batch.layers.loading == known.layers.loading:
        each = (IMAGE_MPIXEL + batch.layers.image_mpixel) / (IMAGE_MPIXEL + known.layers.image_mpixel)
        logs[_INDEX[loads]] += math.log(each * batch.size / known.size)
    return logs


def _workload_dissimilarity(profile: CostProfile, batch: LayeredBatch) -> tuple[bool, float]:
    """Return a sort key of how much two workloads' power should differ: way of loading, then log ratio of FLOP per
    byte.
    """
    known = build_profile_batch(profile)
    other = math.inf if known is None else abs(math.log(_intensity(known) / _intensity(batch)))
    return _find_loading(profile) != batch.layers.loading, other


def _intensity(batch: LayeredBatch) -> float:
    has = batch.layers.counted
    moved = has.moved_bytes + has.depthwise_bytes + has.weight_bytes / batch.size
    return max(has.dense_flop + has.pointwise_flop, 1.0) / max(moved, 1.0)


_INDEX = {name: i for i, name in enumerate(TIME_NAMES)}


def _log_parameter(profile: CostProfile, name: str) -> float:
    return float(profile.coefficients.time[_INDEX[name]])


def _gpu_s(time: Floats) -> float:
    """Return G of the physical model (``time_power_model``) at the top clocks, in seconds."""
    math_s, mem_s, overlap = np.exp(time[[_INDEX["gpu_s"], _INDEX["mem_s"], _INDEX["gpu_mem_overlap"]]])
    q = 1.0 + overlap
    return float((math_s**q + mem_s**q) ** (1.0 / q))
