"""What an epoch takes with its stalls: time, stall and energy in every mode, at loaders that may never have been tried.

From what a sweep saw of a workload on a board. Computing is learnt by one of fedge's predictors (the physical model and
a process on its residuals) from the computing that was measured, rid of what sharing the cores added; loading is the
input-pipeline model fitted to the looks (``feeding``); both meet in its steady state
(``fedge.costs.input_pipeline.steady_state``). Watts
are learnt as of computing, the watts of waiting taken off first (``fedge.client.loader_stalls``).

    epoch = fill + steps x (computing + stall + copy + overhead),  energy = epoch x mean watts

The fill is what the first minibatch waits beyond the others: the workers' start and its own making.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.characterisation.observed_pipeline import FittedPipeline, fit_input_pipeline, uncontended_compute_s
from fedge.characterisation.point_observations import PointObservation
from fedge.characterisation.sweep_plan import StoragePlan
from fedge.client.loader_stalls import LoaderModel, add_stalls, remove_stalls
from fedge.costs.cost_priors import transfer_priors
from fedge.costs.input_pipeline.pipeline_modes import compute_host_factor
from fedge.decisions.measured_correction import correct_with_measurements
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.modes import stack_modes
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import TIME_NAMES, Coefficients, compute_step_s, compute_time_parts, knob_shares
from fedge.predictors import DEFAULT_PREDICTOR, load_predictor
from fedge.types import DeviceSpec, Floats, Label, Measurement, Modes, PowerMode, Predictions

NO_LOADING_LOG = -12.0
"""What computing alone holds of preprocessing, log seconds: nothing."""
MIN_STALL_SD_LOG = 0.03
"""No stall is foreseen more surely, log units; chosen by us."""
MODEL_SD_LOG = 0.02
"""No epoch is foreseen more surely, log units; chosen by us: runs of one point differ by about as much."""
WAITING_SD_LOG = 0.15
"""How far the watts of waiting may be off, log units; chosen by us."""
OTHER_BATCH_SD_LOG = 0.2
"""How far off computing may be per doubling of the batch beyond those that were seen, log units; chosen by us."""
BATCH_OFFSET = 16
"""A minibatch of b samples is taken to take (b + 16) / (B + 16) times as long as one of B, where one size was seen."""
SMALL, LAUNCHES = 2, 4.0
"""How many of the priors have a small network beside them, and how much longer its launches take than its work on the
device at the top clocks; chosen by us."""
OBSERVATION_STEPS = 40
"""As so many minibatches every look counts for the predictor; chosen by us."""


@dataclass(frozen=True, slots=True)
class EpochSetting:
    """What is asked for: ``steps`` minibatches of ``batch_size``, the page cache answering ``cached`` of the reads."""

    batch_size: int
    steps: int
    workers: int = 0
    prefetch: int = 2
    storage: str = "default"
    cached: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class EpochPredictions:
    """Epochs in many modes, arrays of shape (n,). ``energy_j`` and its spread are None where no watts were seen."""

    modes: Modes
    e2e_s: Floats
    stall_s: Floats
    compute_s: Floats
    e2e_sd_log: Floats
    energy_j: Floats | None
    energy_sd_log: Floats | None
    label: Label


Priors = tuple[Coefficients, ...]


class EpochModel:
    """Epochs of one workload on one board; ``fit`` returns self. Learnt: ``feeding_``, ``measured_``, ``costs_``.

    ``spec`` is the board, ``workload`` what is left out of what is believed beforehand: nothing that was fitted to it.
    """

    def __init__(
        self, spec: DeviceSpec, workload: str, plans: Mapping[str, StoragePlan], predictor: str = DEFAULT_PREDICTOR
    ) -> None:
        self.spec, self.workload, self.plans, self.predictor = spec, workload, plans, predictor

    def fit(self, looks: Sequence[PointObservation]) -> EpochModel:
        """Learn from what was seen; raises ``BadInput`` where that is nothing."""
        counted = [look for look in looks if look.is_counted]
        if not counted:
            right = "one at least, with epochs that the plan counts"
            raise BadInput("the sweep", "no finished point of this workload on this board in a known mode", right)
        self.looks_ = tuple(looks)
        known, small = _build_priors(self.spec, self.workload, counted)
        # Whether a network is large or small for the board says what of its computing the cores slow down.
        fed = self._fit_with_priors((*known, *small), looks), self._fit_with_priors((*small, *known), looks)
        self.priors_, self.feeding_, _ = min(fed, key=lambda one: one[2])
        self.metered_ = [look for look in counted if look.power_w is not None]
        self.computing_ = tuple((look.means.batch_size, self._to_compute_measurement(look)) for look in counted)
        self.label_: Label = "estimated" if any(look.label == "estimated" for look in counted) else "calibrated"
        self.cached_ = float(np.median([look.cached for look in counted]))
        return self

    def predict(self, setting: EpochSetting, modes: Modes) -> EpochPredictions:
        """Epochs at a setting, in every mode; raises ``UnknownName`` for a storage that nobody knows."""
        loading = self._make_loading(setting)
        alone = self._make_compute_predictor(setting.batch_size).predict(modes)
        made = add_stalls(loading, modes, alone.step_s, alone.power_w)
        fill_s = self._fill_s(setting, loading, modes)
        fill_s = np.maximum(0.0, fill_s - made.stall_s) if setting.workers else np.zeros(len(modes))
        e2e_s = fill_s + setting.steps * made.step_s
        waits = made.stall_s / made.step_s
        loaded = (made.stall_s > 0).astype(np.float64) if setting.workers else waits
        feeding_sd = max(MIN_STALL_SD_LOG, self.feeding_.sd_log)
        time_sd = np.hypot((1.0 - waits) * alone.step_s_sd_log, loaded * feeding_sd)
        time_sd = np.hypot(time_sd, np.hypot(MODEL_SD_LOG, (1.0 - waits) * self._batch_sd_log(setting.batch_size)))
        power_sd = np.hypot((1.0 - waits) * alone.power_w_sd_log, waits * WAITING_SD_LOG)
        known = bool(self.metered_)
        return EpochPredictions(
            modes,
            e2e_s=e2e_s,
            stall_s=fill_s + setting.steps * made.stall_s,
            compute_s=setting.steps * alone.step_s,
            e2e_sd_log=time_sd,
            energy_j=e2e_s * made.power_w if known else None,
            energy_sd_log=np.hypot(time_sd, power_sd) if known else None,
            label=self.label_,
        )

    def _fit_with_priors(
        self, priors: Priors, looks: Sequence[PointObservation]
    ) -> tuple[Priors, FittedPipeline, float]:
        """The pipeline with the first of ``priors`` as the host's part of computing, and how far that prior is off."""
        made = fit_input_pipeline(
            looks, self.spec.maxn, lambda mode: _host_share(priors[0], self.spec, mode), self.plans
        )
        by_size: dict[int, list[float]] = {}
        for look in (look for look in looks if look.is_counted):
            alone_s = uncontended_compute_s(look, made.top.host, _host_share(priors[0], self.spec, look.mode))
            believed_s = float(compute_step_s(priors[0], self.spec.maxn, stack_modes([look.mode]))[0])
            by_size.setdefault(look.means.batch_size, []).append(math.log(alone_s / believed_s))
        off = np.concatenate([np.array(logs) - np.mean(logs) for logs in by_size.values()])
        return priors, made, float(np.sqrt(np.mean(np.square(off))))

    def _make_loading(self, setting: EpochSetting) -> LoaderModel:
        pipeline = self.feeding_.pipeline_at(
            setting.batch_size,
            workers=setting.workers,
            prefetch=setting.prefetch,
            storage=setting.storage,
            cached=setting.cached,
        )
        return LoaderModel(pipeline, self.spec.maxn, self.priors_[0], self.spec.idle_w.value)

    def _fill_s(self, setting: EpochSetting, loading: LoaderModel, modes: Modes) -> Floats:
        """What the very first minibatch waits for, shape (n,)."""
        pipeline, x = loading.pipeline, knob_shares(self.spec.maxn, modes)
        samples = pipeline.samples
        missing = (1.0 - setting.cached) if samples.file_mb > 0 else 0.0
        reading_s = missing * (pipeline.storage.latency_s + samples.file_mb / pipeline.storage.mb_per_s)
        making_s = setting.batch_size * (samples.fetch_s + samples.preprocess_s) + pipeline.step.collate_s
        host_s = making_s + setting.workers * pipeline.start_s
        fill_s: Floats = host_s * compute_host_factor(x[:, 1], x[:, 3]) + setting.batch_size * reading_s
        return fill_s

    def _to_compute_measurement(self, look: PointObservation) -> Measurement:
        """A look's computing, alone, as a measurement of its minibatch; watts are those of computing alone too."""
        means = look.means
        share = _host_share(self.priors_[0], self.spec, look.mode)
        alone_s = uncontended_compute_s(look, self.feeding_.top.host, share)
        setting = EpochSetting(
            means.batch_size,
            steps=look.steps,
            workers=means.workers,
            prefetch=means.prefetch,
            storage=look.point.storage,
            cached=look.cached,
        )
        watts = 1.0 if look.power_w is None else look.power_w
        seen = Measurement(look.mode, OBSERVATION_STEPS, means.step_s, watts, stall_s=means.stall_s)
        (rid,) = remove_stalls([seen], self._make_loading(setting))
        return dataclasses.replace(rid, step_s=alone_s)

    def _make_compute_predictor(self, batch_size: int) -> _ComputePredictor:
        """The predictor of computing at a batch size: what was seen at others is carried to it."""
        carried = [
            dataclasses.replace(one, step_s=one.step_s * self._batch_growth(size, batch_size))
            for size, one in self.computing_
        ]
        ratio = float(np.exp(np.mean([np.log(one.step_s / self._prior_step_s(one.mode)) for one in carried])))
        priors = tuple(_scale_prior(prior, ratio) for prior in self.priors_)
        return _ComputePredictor(
            self.predictor, PriorKnowledge(self.spec.maxn, priors, idle_w=self.spec.idle_w.value), carried
        )

    def _prior_step_s(self, mode: PowerMode) -> float:
        return float(compute_step_s(self.priors_[0], self.spec.maxn, stack_modes([mode]))[0])

    def _batch_growth(self, size: int, wanted: int) -> float:
        """How many times as long a minibatch of ``wanted`` samples takes as one of ``size``."""
        return _relative_compute_s(self.computing_, wanted) / _relative_compute_s(self.computing_, size)

    def _batch_sd_log(self, batch_size: int) -> float:
        sizes = [size for size, _ in self.computing_]
        beyond = max(0.0, math.log2(batch_size / max(sizes)), math.log2(min(sizes) / batch_size))
        return OTHER_BATCH_SD_LOG * beyond


def _host_share(prior: Coefficients, spec: DeviceSpec, mode: PowerMode) -> float:
    """The part of computing in which the device waits for the host, as is believed of such a workload."""
    parts = compute_time_parts(prior.time, knob_shares(spec.maxn, stack_modes([mode])))
    return float(np.clip((parts.launch_s + parts.host_s) / parts.total_s, 0.0, 1.0)[0])


@dataclass(frozen=True, slots=True, eq=False)
class _ComputePredictor:
    """A predictor of computing, and what it learns from."""

    name: str
    knowledge: PriorKnowledge
    seen: Sequence[Measurement]

    def predict(self, modes: Modes) -> Predictions:
        """Seconds and watts in every mode; those that were measured as they were measured."""
        made = load_predictor(self.name, self.knowledge).fit(self.seen).predict(modes)
        return correct_with_measurements(made, self.seen)


def _build_priors(spec: DeviceSpec, workload: str, looks: Sequence[PointObservation]) -> tuple[Priors, Priors]:
    """What is believed of computing alone beforehand: other workloads on such a board, with no loading in them.

    The second ones wait for the host, as small networks do: of what was measured none is that small.
    """
    modes, seen_s = stack_modes(look.mode for look in looks), np.array([look.means.compute_s for look in looks])

    def as_long(prior: Coefficients) -> Coefficients:
        return _scale_prior(prior, float(np.exp(np.mean(np.log(seen_s / compute_step_s(prior, spec.maxn, modes))))))

    known = [
        as_long(_replace_time_parameters(one.coefficients, prep_s=NO_LOADING_LOG))
        for one in transfer_priors(spec, workload, load_catalogue())
    ]
    small = [_make_host_bound(prior) for prior in known[:SMALL]]
    return tuple(known), tuple(as_long(prior) for prior in small)


def _make_host_bound(prior: Coefficients) -> Coefficients:
    """The same with the launches ``LAUNCHES`` times as long as the device's own work."""
    logs = dict(zip(TIME_NAMES, prior.time, strict=True))
    return _replace_time_parameters(
        prior, launch_s=math.log(LAUNCHES) + max(logs["gpu_s"], logs["mem_s"]), fixed_s=logs["gpu_s"] - 3.0
    )


def _replace_time_parameters(prior: Coefficients, **logs: float) -> Coefficients:
    """The same with some of the time's parameters at other values, in logarithms."""
    time = prior.time.copy()
    for name, value in logs.items():
        time[TIME_NAMES.index(name)] = value
    return Coefficients(time, prior.power)


def _scale_prior(prior: Coefficients, ratio: float) -> Coefficients:
    """The same with every second so many times as long."""
    more = np.array([math.log(ratio) if name.endswith("_s") else 0.0 for name in TIME_NAMES])
    return Coefficients(prior.time + more, prior.power)


def _relative_compute_s(computing: Sequence[tuple[int, Measurement]], wanted: int) -> float:
    """Seconds of a minibatch of ``wanted`` samples, in units that are the same for all sizes."""
    by_size: dict[int, dict[PowerMode, list[float]]] = {}
    for size, one in computing:
        by_size.setdefault(size, {}).setdefault(one.mode, []).append(math.log(one.step_s))
    base = max(by_size, key=lambda size: (len(by_size[size]), size))
    known = {base: 0.0}
    for size, modes in by_size.items():
        common = [mode for mode in modes if mode in by_size[base]]
        if size != base and common:
            known[size] = float(np.mean([np.mean(modes[mode]) - np.mean(by_size[base][mode]) for mode in common]))
    sizes = sorted(known)
    inside = min(max(wanted, sizes[0]), sizes[-1])
    log = float(np.interp(math.log(inside), np.log(sizes), [known[size] for size in sizes]))
    return math.exp(log) * (wanted + BATCH_OFFSET) / (inside + BATCH_OFFSET)
