"""Predictions of an epoch at settings that a sweep did not measure, by a model of its loader or by the mode alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedge.characterisation import sweep_plan
from fedge.characterisation.epoch_model import (
    EpochModel,
    EpochPredictions,
    EpochSetting,
    MeasuredEpoch,
    predict_linear_epochs,
)
from fedge.characterisation.observed_pipeline import PointObservation, extract_observations
from fedge.characterisation.plan_reader import parse_mode
from fedge.characterisation.point_measurement import count_epoch_steps
from fedge.characterisation.sweep_plan import WorkKind, format_mode
from fedge.characterisation.sweep_store import SweepResult, read_result
from fedge.confidence_interval import mean_of_known
from fedge.costs.input_pipeline.emulated_pipeline import load_storages
from fedge.costs.input_pipeline.pipeline_fit import FittedLoader
from fedge.decisions.candidate_modes import mask_candidates
from fedge.errors import BadInput, UnknownName, check_known
from fedge.modes import build_grid, stack_modes
from fedge.types import DeviceSpec, Label, Modes, PowerMode

METHODS, BESTS = ("epochs", "simple"), ("time", "energy", "balanced")
EQUAL_TIME_RATIO = 1.005
"""Ratio below which epochs count as equally fast, so that energy decides. A default below the noise of one epoch."""
CACHED_SHARES = {"warm": 1.0, "dropped": 0.0}


@dataclass(frozen=True, slots=True)
class EpochPredictionOptions:
    """Options of a prediction; None means the sweep's most frequent value.

    Attributes:
        modes: Power modes as cores/CPU/GPU/memory in MHz, or ``maxn``; empty for those of the sweep.
        workload: The workload; None for all.
        storage: A storage of the plan, or an emulated one.
        cache: Page cache of the predicted epoch, ``warm`` or ``dropped``.
        formula: ``epochs`` with stalls, or ``simple`` by the mode alone.
        best: Return only the best mode by ``time``, ``energy`` or ``balanced``.
    """

    folder: Path
    modes: tuple[str, ...] = ()
    board: str | None = None
    workload: str | None = None
    kind: str = "train"
    batch_size: int | None = None
    loader_workers: int | None = None
    prefetch: int | None = None
    storage: str | None = None
    cache: str | None = None
    formula: str = "epochs"
    best: str | None = None


@dataclass(frozen=True, slots=True)
class EpochPrediction:
    """Prediction for one epoch, with what the sweep measured at the same setting, else None (``seen_s``, ``seen_j``).

    Attributes:
        stall_s: Time that training waits for data.
        e2e_spread: Standard deviation of ``e2e_s``, as a share of it; likewise ``energy_spread``.
    """

    board: str
    workload: str
    mode: str
    batch_size: int
    workers: int
    prefetch: int
    storage: str
    cached: float
    e2e_s: float
    stall_s: float | None
    energy_j: float | None
    e2e_spread: float | None
    energy_spread: float | None
    seen_s: float | None
    seen_j: float | None
    method: str
    label: Label


def predict_epochs(options: EpochPredictionOptions) -> list[EpochPrediction]:
    """Predict an epoch for every requested workload and mode, or the best mode of each workload.

    Raises:
        BadInput: If the sweep lacks the data for a prediction.
        UnknownName: If a board, workload or storage is not part of the sweep.
    """
    return predict_result_epochs(read_result(options.folder), options)


def fit_loader(options: EpochPredictionOptions) -> FittedLoader:
    """Fit the input pipeline of a sweep's board and workload, of which the options name one if there are several.

    Raises:
        BadInput: If the sweep lacks the data, or the board's modes are not known.
    """
    result = read_result(options.folder)
    board, spec = _find_board(options, result)
    workload = _resolve_name("--workload", options.workload, _list_workloads(result))
    observations = extract_observations(result, board, workload, options.kind)
    model = EpochModel(spec, workload, result.plan.storages).fit(observations)
    source = f"{len(observations)} observations of {board} in {options.folder.name}"
    return FittedLoader(spec.name, workload, label=model.label_, source=source, pipeline=model.pipeline_)


def predict_result_epochs(result: SweepResult, options: EpochPredictionOptions) -> list[EpochPrediction]:
    """Predict as ``predict_epochs`` does, from the measurements of a sweep that was read already."""
    _check_options(options)
    stored = tuple(dict.fromkeys((*result.plan.storages, *load_storages())))
    if options.storage is not None and options.storage not in stored:
        raise UnknownName("--storage", options.storage, stored)
    board, spec = _find_board(options, result)
    names = _list_workloads(result)
    if options.workload:
        names = (_resolve_name("--workload", options.workload, tuple(result.plan.workloads)),)
    return [
        prediction
        for name in names
        for prediction in _predict_workload(result, options=options, board=board, workload=name, spec=spec)
    ]


def _find_board(options: EpochPredictionOptions, result: SweepResult) -> tuple[str, DeviceSpec]:
    board = _resolve_name("--board", options.board, result.plan.boards)
    spec = sweep_plan.load_board_spec(board)
    if spec is None:
        right = "a board whose power modes can be set, an emulated one or a Jetson"
        raise BadInput("--board", f"{board}, a machine whose modes are not known", right)
    return board, spec


def _check_options(options: EpochPredictionOptions) -> None:
    for option, given, known in (
        ("--kind", options.kind, get_args(WorkKind)),
        ("--formula", options.formula, METHODS),
        ("--best", options.best, BESTS),
        ("--cache", options.cache, tuple(CACHED_SHARES)),
    ):
        if given is not None and given not in known:
            raise UnknownName(option, given, known)
    for option, value, least in (
        ("--loader-workers", options.loader_workers, 0),
        ("--prefetch", options.prefetch, 1),
        ("--batch-size", options.batch_size, 1),
    ):
        if value is not None and value < least:
            raise BadInput(option, str(value), f"{least} or more")


def _resolve_name(option: str, given: str | None, known: Sequence[str]) -> str:
    if given is None and len(known) == 1:
        return known[0]
    if given is None:
        raise BadInput(option, "nothing", f"one of {', '.join(known)}")
    check_known(option, given, known)
    return given


def _list_workloads(result: SweepResult) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.point.workload for one in result.points))


def _predict_workload(
    result: SweepResult, options: EpochPredictionOptions, board: str, workload: str, spec: DeviceSpec
) -> list[EpochPrediction]:
    observations = extract_observations(result, board, workload, options.kind)
    counted = [one for one in observations if one.is_counted]
    if not counted:
        right = "a sweep with a finished point of it, in a mode that is known"
        raise BadInput(str(options.folder), f"nothing of {workload} on {board} ({options.kind})", right)
    setting = _build_setting(options, counted, result, workload)
    modes = _select_modes(options, counted, spec)
    if options.formula == "simple":
        names = _list_workloads(result)
        every = {name: extract_observations(result, board, name, options.kind) for name in names}
        predictions = _predict_simple(every, workload, setting, spec.maxn, modes=modes)
    else:
        predictions = EpochModel(spec, workload, result.plan.storages).fit(observations).predict(setting, modes)
    rows = range(len(modes)) if options.best is None else [_find_best_row(predictions, options.best)]
    alike = [one for one in counted if _has_same_loader(one, setting) and abs(one.cached - setting.cached) < 0.01]
    about = {"board": board, "workload": workload, "method": options.formula}
    return [_to_prediction(predictions, row, setting, alike, **about) for row in rows]


def _build_setting(
    options: EpochPredictionOptions, observations: Sequence[PointObservation], result: SweepResult, workload: str
) -> EpochSetting:
    """Build the requested setting; missing values come from the plan if fixed there, otherwise from most points."""

    def usual(knob: str, given: int | str | None) -> str:
        base = result.plan.base.get(knob)
        most = Counter(getattr(one.point, knob) for one in observations).most_common(1)[0][0]
        return str(next(value for value in (given, base, most) if value is not None))

    size = int(usual("batch_size", options.batch_size))
    cached = (
        float(np.median([one.cached for one in observations]))
        if options.cache is None
        else CACHED_SHARES[options.cache]
    )
    return EpochSetting(
        batch_size=size,
        steps=count_epoch_steps(result.plan.workloads[workload].images.count, size, result.plan.course),
        workers=int(usual("workers", options.loader_workers)),
        prefetch=int(usual("prefetch", options.prefetch)),
        storage=usual("storage", options.storage),
        cached=cached,
    )


def _select_modes(options: EpochPredictionOptions, observations: Sequence[PointObservation], spec: DeviceSpec) -> Modes:
    """Return the named modes, all selectable modes if the best is wanted, or the modes of the sweep."""
    if options.modes:
        named = [parse_mode(text, {}, spec, "--mode") for text in options.modes]
        return stack_modes(mode for mode in named if mode is not None)
    if options.best is not None:
        every = build_grid(spec)
        return Modes(every.knobs[mask_candidates(every)])
    tried = dict.fromkeys(one.mode for one in observations)
    return stack_modes(sorted(tried, reverse=True))


def _predict_simple(
    observations: Mapping[str, Sequence[PointObservation]],
    workload: str,
    setting: EpochSetting,
    maxn: PowerMode,
    modes: Modes,
) -> EpochPredictions:
    """Predict with the paper's simple method, which uses epochs with the same loader setting only."""
    epochs = [
        MeasuredEpoch(name, one.mode, one.e2e_s, one.energy_j)
        for name, own in observations.items()
        for one in own
        if one.is_counted and _has_same_loader(one, setting)
    ]
    if all(one.network != workload for one in epochs):
        got = f"no point at batch {setting.batch_size}, {setting.workers} workers, {setting.storage}"
        raise BadInput("--formula simple", got, "a setting that the sweep tried in some modes: it predicts modes alone")
    epoch_s, energy_j = predict_linear_epochs(epochs, workload, modes, maxn)
    unknown = np.full(len(modes), np.nan)
    return EpochPredictions(
        modes,
        e2e_s=epoch_s,
        stall_s=unknown,
        compute_s=unknown,
        e2e_sd_log=unknown,
        energy_j=energy_j,
        energy_sd_log=unknown,
        label="estimated",
    )


def _has_same_loader(one: PointObservation, setting: EpochSetting) -> bool:
    point = one.point
    mine = (point.batch_size, point.workers, point.storage)
    return mine == (setting.batch_size, setting.workers, setting.storage)


def _find_best_row(predictions: EpochPredictions, best: str) -> int:
    """Return the row with the least time (ties: least energy), least energy or least energy-delay product."""
    if best == "time":
        near = predictions.e2e_s <= EQUAL_TIME_RATIO * predictions.e2e_s.min()
        second = predictions.e2e_s if predictions.energy_j is None else predictions.energy_j
        return int(np.argmin(np.where(near, second, np.inf)))
    if predictions.energy_j is None:
        raise BadInput("--best", best, "time: the power of these points was not measured")
    return int(np.argmin(predictions.energy_j if best == "energy" else predictions.energy_j * predictions.e2e_s))


def _to_prediction(
    predictions: EpochPredictions, row: int, setting: EpochSetting, alike: Sequence[PointObservation], **about: str
) -> EpochPrediction:
    """Return one mode's prediction, with the means of the observations at the same setting in this mode."""
    mode = predictions.modes[row]
    same = [one for one in alike if one.mode == mode]
    loader = {name: getattr(setting, name) for name in ("batch_size", "workers", "prefetch", "storage", "cached")}
    names = ("e2e_s", "stall_s", "energy_j", "e2e_sd_log", "energy_sd_log")
    columns = {name: getattr(predictions, name) for name in names}
    figures = {name: None if own is None or np.isnan(own[row]) else float(own[row]) for name, own in columns.items()}
    spreads = {"e2e_spread": figures.pop("e2e_sd_log"), "energy_spread": figures.pop("energy_sd_log")}
    known: dict[str, Any] = {**about, **loader, **figures, **spreads}
    return EpochPrediction(
        mode=format_mode(mode),
        seen_s=mean_of_known([one.e2e_s for one in same]),
        seen_j=mean_of_known([one.energy_j for one in same]),
        label=predictions.label,
        **known,
    )
