"""Prediction of epochs including stalls: time, stall and energy in every mode, also for loaders never measured.

The model is fitted to a sweep's observations of one workload on one board. Computing is learnt by one of fedge's
predictors (the physical model with a Gaussian process on its residuals) from measured compute times, corrected for
shared cores. Loading is the input-pipeline model fitted to the observations (``observed_pipeline``); both meet in the
steady state (``fedge.costs.input_pipeline.pipeline_model``). Power is learnt as that of computing, after subtracting
the power of waiting (``fedge.client.loader_stalls``).

    epoch = fill + steps x (computing + stall + copy + overhead),  energy = epoch x mean power

The fill is the additional stall of the first minibatch: the start of the workers and the making of the batch.

The other model, ``predict_linear_epochs``, is that of the characterisation paper: two least-squares lines.
Symbols: T seconds of an epoch, E joules, f clocks of CPU, GPU and memory.

    T_epoch = a f_cpu + b cores + c f_gpu + d f_mem + e            one line per network
    E_epoch = a' f_cpu + b' cores + c' f_gpu + d' f_mem + g T + e' one line for all networks

The paper's four training modes do not determine the five unknowns of T. Of all lines that fit equally well, the one
with the smallest slopes is taken, where each knob is a share of the board's top value (its clock or core count; the
seconds of g as a share of the longest epoch). This scaling is ours: it weighs a clock step by its relative size.
``fedge.predictors.linear_regression`` has the same two lines for one minibatch of one network, as a predictor for
experiments.

References:
    SIGMETRICS 2022, doi 10.1145/3570604.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.characterisation.observed_pipeline import PointObservation, fit_input_pipeline
from fedge.characterisation.sweep_plan import StoragePlan
from fedge.client.loader_stalls import LoaderModel, add_stalls, remove_stalls
from fedge.costs.cost_priors import build_priors
from fedge.costs.input_pipeline.pipeline_fit import FittedPipeline, uncontended_compute_s
from fedge.costs.input_pipeline.pipeline_model import compute_host_factor
from fedge.decisions.measured_correction import correct_with_measurements
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput, UnknownName
from fedge.modes import stack_modes
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import TIME_NAMES, Coefficients, compute_step_s, compute_time_parts, knob_shares
from fedge.predictors import DEFAULT_PREDICTOR, load_predictor
from fedge.predictors.linear_regression import fit_line
from fedge.predictors.measurement_columns import PREDICTION_FLOOR, apply_floor
from fedge.types import DeviceSpec, Floats, Label, Measurement, Modes, PowerMode, Predictions


@dataclass(frozen=True, slots=True)
class MeasuredEpoch:
    network: str
    mode: PowerMode
    epoch_s: float
    energy_j: float | None = None


def predict_linear_epochs(
    seen: Sequence[MeasuredEpoch], network: str, modes: Modes, maxn: PowerMode
) -> tuple[Floats, Floats | None]:
    """Predict seconds, and joules if any were metered, of an epoch of a network in every mode by the two lines.

    Knobs are scaled by the board's top mode ``maxn``. Lines become negative in modes much faster than the measured
    ones; predictions are therefore at least ``PREDICTION_FLOOR`` times the smallest measured value, of the network for
    time and of all networks for energy.

    Raises:
        UnknownName: No epoch of the network was measured.
    """

    def shares(of: Modes) -> Floats:
        found: Floats = of.knobs / np.array(maxn.knobs)
        return found

    own = [one for one in seen if one.network == network]
    if not own:
        raise UnknownName("the network", network, tuple(dict.fromkeys(one.network for one in seen)))
    own_s = np.array([one.epoch_s for one in own])
    line = fit_line(shares(stack_modes(one.mode for one in own)), own_s, np.ones(4))
    epoch_s: Floats = apply_floor(line.predict(shares(modes)), own_s)
    metered = [(one, one.energy_j) for one in seen if one.energy_j is not None]
    if not metered:
        return epoch_s, None
    # Fit to measured times, as in ``fedge.predictors.linear_regression``: with a single network, times predicted by its
    # line are a linear combination of the knobs and carry no further information.
    metered_s, energy_j = (np.array(values) for values in zip(*((one.epoch_s, j) for one, j in metered), strict=True))
    columns = np.column_stack([shares(stack_modes(one.mode for one, _ in metered)), metered_s])
    energy = fit_line(columns, energy_j, np.array([1.0, 1.0, 1.0, 1.0, metered_s.max()]))
    joules = energy.predict(np.column_stack([shares(modes), epoch_s]))
    return epoch_s, np.maximum(joules, PREDICTION_FLOOR * energy_j.min())


NO_LOADING_LOG = -12.0
"""Log seconds of preprocessing in a prior of computing alone: practically zero."""
MIN_STALL_SD_LOG = 0.03
"""Lower limit of a predicted stall's standard deviation, log units; a default against overconfidence after few
points."""
MODEL_SD_LOG = 0.02
"""Lower limit of a predicted epoch's standard deviation, log units: about the difference between runs of one point."""
WAITING_SD_LOG = 0.15
"""Standard deviation of the power while waiting, log units; a default, since that power is rarely measured by
itself."""
OTHER_BATCH_SD_LOG = 0.2
"""Additional standard deviation of computing per doubling of the batch size beyond those observed, log units; a
default."""
BATCH_OFFSET = 16
"""With one observed batch size B, a minibatch of b samples takes (b + 16) / (B + 16) times as long: a default for
the part of a step that does not depend on the batch size."""
SMALL, LAUNCHES = 2, 4.0
"""Number of priors that get a host-bound variant, and its launch time relative to its device time at the top
clocks; defaults that represent networks smaller than any of the measured ones."""
OBSERVATION_STEPS = 40
"""Minibatches that each observation counts for in the predictor; a default equal for all points, since their means
are equally reliable."""


@dataclass(frozen=True, slots=True)
class EpochSetting:
    """The setting to predict.

    Attributes:
        prefetch: Batches prepared ahead per worker.
        storage: Name of a storage of the plan, or of an emulated one.
        cached: Share of the reads that the page cache serves, 0 to 1.
    """

    batch_size: int
    steps: int
    workers: int = 0
    prefetch: int = 2
    storage: str = "default"
    cached: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class EpochPredictions:
    """Predicted epochs; arrays of shape (n,), one element per mode, spreads (``_sd_log``) in log units.

    Energy is None if no power was observed; ``label`` says whether the observations were measured or emulated.
    """

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
    """Predictor of the epochs of one workload on one board; ``plans`` are the plan's storages by name.

    Priors fitted to this very workload are left out.
    """

    def __init__(self, spec: DeviceSpec, workload: str, plans: Mapping[str, StoragePlan]) -> None:
        self.spec, self.workload, self.plans = spec, workload, plans

    def fit(self, observations: Sequence[PointObservation]) -> EpochModel:
        """Fit the model and return it; raises ``BadInput`` without an observation of counted epochs."""
        counted = [one for one in observations if one.is_counted]
        if not counted:
            right = "one at least, with epochs that the plan counts"
            raise BadInput("the sweep", "no finished point of this workload on this board in a known mode", right)
        known, small = _build_priors(self.spec, self.workload, counted)
        # The host's share of computing depends on whether the network is large or small for the board; try both.
        fits = (
            self._fit_with_priors((*known, *small), observations),
            self._fit_with_priors((*small, *known), observations),
        )
        self.priors_, self.pipeline_, _ = min(fits, key=lambda one: one[2])
        self.metered_ = [one for one in counted if one.power_w is not None]
        self.computing_ = tuple((one.means.batch_size, self._to_compute_measurement(one)) for one in counted)
        self.label_: Label = "estimated" if any(one.label == "estimated" for one in counted) else "calibrated"
        return self

    def predict(self, setting: EpochSetting, modes: Modes) -> EpochPredictions:
        """Predict epochs at a setting in every mode; raises ``UnknownName`` if the setting's storage is not known."""
        loading = self._make_loading(setting)
        alone = self._predict_computing(setting.batch_size, modes)
        made = add_stalls(loading, modes, alone.step_s, alone.power_w)
        fill_s = self._fill_s(setting, loading, modes)
        fill_s = np.maximum(0.0, fill_s - made.stall_s) if setting.workers else np.zeros(len(modes))
        e2e_s = fill_s + setting.steps * made.step_s
        waits = made.stall_s / made.step_s
        loaded = (made.stall_s > 0).astype(np.float64) if setting.workers else waits
        feeding_sd = max(MIN_STALL_SD_LOG, self.pipeline_.sd_log)
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
        self, priors: Priors, observations: Sequence[PointObservation]
    ) -> tuple[Priors, FittedPipeline, float]:
        """Fit the pipeline with the host share of the first prior; return also that prior's log error (RMS)."""
        made = fit_input_pipeline(
            observations, self.spec.maxn, lambda mode: _host_share(priors[0], self.spec, mode), self.plans
        )
        by_size: dict[int, list[float]] = {}
        for one in (one for one in observations if one.is_counted):
            share = _host_share(priors[0], self.spec, one.mode)
            alone_s = uncontended_compute_s(one.means, made.top.host, one.mode.cores, share)
            believed_s = self._prior_step_s(priors[0], one.mode)
            by_size.setdefault(one.means.batch_size, []).append(math.log(alone_s / believed_s))
        off = np.concatenate([np.array(logs) - np.mean(logs) for logs in by_size.values()])
        return priors, made, float(np.sqrt(np.mean(np.square(off))))

    def _make_loading(self, setting: EpochSetting) -> LoaderModel:
        pipeline = self.pipeline_.pipeline_at(
            setting.batch_size,
            workers=setting.workers,
            prefetch=setting.prefetch,
            storage=setting.storage,
            cached=setting.cached,
        )
        return LoaderModel(pipeline, self.spec.maxn, self.priors_[0], self.spec.idle_w.value)

    def _fill_s(self, setting: EpochSetting, loading: LoaderModel, modes: Modes) -> Floats:
        """Return the time to make the very first batch, in seconds, shape (n,)."""
        pipeline, x = loading.pipeline, knob_shares(self.spec.maxn, modes)
        samples = pipeline.samples
        missing = (1.0 - setting.cached) if samples.file_mb > 0 else 0.0
        reading_s = missing * (pipeline.storage.latency_s + samples.file_mb / pipeline.storage.mb_per_s)
        making_s = setting.batch_size * (samples.fetch_s + samples.preprocess_s) + pipeline.step.collate_s
        host_s = making_s + setting.workers * pipeline.start_s
        fill_s: Floats = host_s * compute_host_factor(x[:, 1], x[:, 3]) + setting.batch_size * reading_s
        return fill_s

    def _to_compute_measurement(self, one: PointObservation) -> Measurement:
        """Convert an observation to a measurement of computing alone, in time and in power."""
        means = one.means
        share = _host_share(self.priors_[0], self.spec, one.mode)
        alone_s = uncontended_compute_s(one.means, self.pipeline_.top.host, one.mode.cores, share)
        loader = {"workers": means.workers, "prefetch": means.prefetch}
        setting = EpochSetting(means.batch_size, one.steps, storage=one.point.storage, cached=one.cached, **loader)
        watts = 1.0 if one.power_w is None else one.power_w
        seen = Measurement(one.mode, OBSERVATION_STEPS, means.step_s, watts, stall_s=means.stall_s)
        (corrected,) = remove_stalls([seen], self._make_loading(setting))
        return dataclasses.replace(corrected, step_s=alone_s)

    def _predict_computing(self, batch_size: int, modes: Modes) -> Predictions:
        """Predict computing at a batch size, from observations scaled to it; measured modes keep their values."""
        carried = [
            dataclasses.replace(one, step_s=one.step_s * self._batch_growth(size, batch_size))
            for size, one in self.computing_
        ]
        ratio = float(
            np.exp(np.mean([np.log(one.step_s / self._prior_step_s(self.priors_[0], one.mode)) for one in carried]))
        )
        priors = tuple(_scale_prior(prior, ratio) for prior in self.priors_)
        knowledge = PriorKnowledge(self.spec.maxn, priors, idle_w=self.spec.idle_w.value)
        made = load_predictor(DEFAULT_PREDICTOR, knowledge).fit(carried).predict(modes)
        return correct_with_measurements(made, carried)

    def _prior_step_s(self, prior: Coefficients, mode: PowerMode) -> float:
        return float(compute_step_s(prior, self.spec.maxn, stack_modes([mode]))[0])

    def _batch_growth(self, size: int, wanted: int) -> float:
        """Return how many times as long a minibatch of ``wanted`` samples takes as one of ``size``."""
        return _relative_compute_s(self.computing_, wanted) / _relative_compute_s(self.computing_, size)

    def _batch_sd_log(self, batch_size: int) -> float:
        sizes = [size for size, _ in self.computing_]
        beyond = max(0.0, math.log2(batch_size / max(sizes)), math.log2(min(sizes) / batch_size))
        return OTHER_BATCH_SD_LOG * beyond


def _host_share(prior: Coefficients, spec: DeviceSpec, mode: PowerMode) -> float:
    """Return the part of computing in which the device waits for the host, according to a prior."""
    parts = compute_time_parts(prior.time, knob_shares(spec.maxn, stack_modes([mode])))
    return float(np.clip((parts.launch_s + parts.host_s) / parts.total_s, 0.0, 1.0)[0])


def _build_priors(spec: DeviceSpec, workload: str, observations: Sequence[PointObservation]) -> tuple[Priors, Priors]:
    """Build priors of computing alone, from other workloads on such a board with their loading removed.

    The second group is bound to the host, as small networks are; none of the measured workloads is that small.
    """
    modes = stack_modes(one.mode for one in observations)
    seen_s = np.array([one.means.compute_s for one in observations])

    def as_long(prior: Coefficients) -> Coefficients:
        return _scale_prior(prior, float(np.exp(np.mean(np.log(seen_s / compute_step_s(prior, spec.maxn, modes))))))

    known = [
        as_long(_replace_time_parameters(one.coefficients, prep_s=NO_LOADING_LOG))
        for one in build_priors(spec, workload, load_catalogue(), layered=False)
    ]
    small = [_make_host_bound(prior) for prior in known[:SMALL]]
    return tuple(known), tuple(as_long(prior) for prior in small)


def _make_host_bound(prior: Coefficients) -> Coefficients:
    """Return the prior with launches ``LAUNCHES`` times as long as the device's own work."""
    logs = dict(zip(TIME_NAMES, prior.time, strict=True))
    return _replace_time_parameters(
        prior, launch_s=math.log(LAUNCHES) + max(logs["gpu_s"], logs["mem_s"]), fixed_s=logs["gpu_s"] - 3.0
    )


def _replace_time_parameters(prior: Coefficients, **logs: float) -> Coefficients:
    time = prior.time.copy()
    for name, value in logs.items():
        time[TIME_NAMES.index(name)] = value
    return Coefficients(time, prior.power)


def _scale_prior(prior: Coefficients, ratio: float) -> Coefficients:
    more = np.array([math.log(ratio) if name.endswith("_s") else 0.0 for name in TIME_NAMES])
    return Coefficients(prior.time + more, prior.power)


def _relative_compute_s(computing: Sequence[tuple[int, Measurement]], wanted: int) -> float:
    """Return the compute time of a minibatch of ``wanted`` samples in a unit common to all batch sizes."""
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
