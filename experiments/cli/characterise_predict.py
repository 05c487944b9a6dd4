"""``fedge characterise-predict``: predicts an epoch at settings that a sweep did not measure."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedge.characterisation import knob_values
from fedge.characterisation.epoch_model import EpochModel, EpochPredictions, EpochSetting
from fedge.characterisation.knob_values import parse_mode
from fedge.characterisation.linear_epoch_model import LinearEpochModel, MeasuredEpoch
from fedge.characterisation.point_measurement import count_epoch_steps
from fedge.characterisation.point_observations import PointObservation, extract_observations
from fedge.characterisation.sweep_plan import WorkKind
from fedge.characterisation.sweep_store import SweepResult, read_result
from fedge.costs.input_pipeline.emulated_pipeline import load_storages
from fedge.decisions.candidate_modes import mask_candidates
from fedge.errors import BadInput, UnknownName
from fedge.modes import build_grid, stack_modes
from fedge.types import DeviceSpec, Label, Modes, PowerMode

METHODS, BESTS = ("epochs", "simple"), ("time", "energy", "balanced")
KINDS: tuple[WorkKind, ...] = ("train", "infer")
EQUAL_TIME_RATIO = 1.005
"""Ratio below which epochs count as equally fast, so that energy decides. A default below the noise of one epoch."""
CACHED_SHARES = {"warm": 1.0, "dropped": 0.0}


@dataclass(frozen=True, slots=True)
class EpochPredictionOptions:
    """Command-line options; None means the sweep's most frequent value. ``cache`` refers to the predicted epoch."""

    folder: Path
    modes: tuple[str, ...] = ()
    board: str | None = None
    workload: str | None = None
    kind: str = "train"
    batch_size: int | None = None
    workers: int | None = None
    prefetch: int | None = None
    storage: str | None = None
    cache: str | None = None
    method: str = "epochs"
    best: str | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class EpochPrediction:
    """Prediction for one epoch.

    Attributes:
        e2e_s: End-to-end time, in seconds.
        stall_s: Time that training waits for data, in seconds.
        energy_j: Energy, in joules.
        e2e_spread: Standard deviation of ``e2e_s``, as a share of it.
        energy_spread: Standard deviation of ``energy_j``, as a share of it.
        seen_s: Measured time of the same setting; None if the sweep did not measure it.
        seen_j: Measured energy of the same setting.
        method: Prediction method.
        label: Provenance.
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


def predict(asked: EpochPredictionOptions) -> None:
    """Print predicted epochs.

    Raises:
        BadInput: If the sweep lacks the data for a prediction.
        UnknownName: If a board, workload or storage is not part of the sweep.
    """
    lines = predict_epochs(read_result(asked.folder), asked)
    if asked.as_json:
        sys.stdout.write(json.dumps([asdict(line) for line in lines]) + "\n")
        return
    _print_predictions(lines, asked)


def predict_epochs(result: SweepResult, asked: EpochPredictionOptions) -> list[EpochPrediction]:
    """Predict an epoch for every requested workload and mode, or the best mode of each workload.

    Args:
        result: The sweep's measurements.
        asked: The command-line options.
    """
    _check_options(asked)
    stored = tuple(dict.fromkeys((*result.plan.storages, *load_storages())))
    if asked.storage is not None and asked.storage not in stored:
        raise UnknownName("--storage", asked.storage, stored)
    board = _resolve_name("--board", asked.board, result.plan.boards)
    spec = knob_values.load_board_spec(board)
    if spec is None:
        right = "a board whose power modes can be set, an emulated one or a Jetson"
        raise BadInput("--board", f"{board}, a machine whose modes are not known", right)
    names = (
        (_resolve_name("--workload", asked.workload, tuple(result.plan.workloads)),)
        if asked.workload
        else _list_workloads(result)
    )
    return [
        line for name in names for line in _predict_workload(result, asked=asked, board=board, workload=name, spec=spec)
    ]


def _check_options(asked: EpochPredictionOptions) -> None:
    for option, given, known in (
        ("--kind", asked.kind, KINDS),
        ("--method", asked.method, METHODS),
        ("--best", asked.best, BESTS),
        ("--cache", asked.cache, tuple(CACHED_SHARES)),
    ):
        if given is not None and given not in known:
            raise UnknownName(option, given, known)
    for option, value, least in (("--workers", asked.workers, 0), ("--prefetch", asked.prefetch, 1)):
        if value is not None and value < least:
            raise BadInput(option, str(value), f"{least} or more")
    if asked.batch_size is not None and asked.batch_size < 1:
        raise BadInput("--batch-size", str(asked.batch_size), "1 or more")


def _point_kind(asked: EpochPredictionOptions) -> WorkKind:
    return "infer" if asked.kind == "infer" else "train"


def _resolve_name(option: str, given: str | None, known: Sequence[str]) -> str:
    if given is None and len(known) == 1:
        return known[0]
    if given is None:
        raise BadInput(option, "nothing", f"one of {', '.join(known)}")
    if given not in known:
        raise UnknownName(option, given, tuple(known))
    return given


def _list_workloads(result: SweepResult) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.point.workload for one in result.points))


@dataclass(frozen=True, slots=True)
class _Case:
    """One workload on one board with its measured points and the requested setting."""

    result: SweepResult
    asked: EpochPredictionOptions
    board: str
    workload: str
    spec: DeviceSpec
    looks: tuple[PointObservation, ...]
    setting: EpochSetting

    @property
    def counted_looks(self) -> list[PointObservation]:
        return [look for look in self.looks if look.is_counted]


def _predict_workload(
    result: SweepResult, asked: EpochPredictionOptions, board: str, workload: str, spec: DeviceSpec
) -> list[EpochPrediction]:
    looks = extract_observations(result, board, workload, _point_kind(asked))
    counted = [look for look in looks if look.is_counted]
    if not counted:
        right = "a sweep with a finished point of it, in a mode that is known"
        raise BadInput(str(asked.folder), f"nothing of {workload} on {board} ({asked.kind})", right)
    case = _Case(
        result,
        asked=asked,
        board=board,
        workload=workload,
        spec=spec,
        looks=looks,
        setting=_build_setting(asked, counted, result, workload),
    )
    modes = _select_modes(asked, counted, spec)
    if asked.method == "simple":
        said = _predict_simple(case, modes)
    else:
        said = EpochModel(spec, workload, result.plan.storages).fit(looks).predict(case.setting, modes)
    rows = range(len(modes)) if asked.best is None else [_find_best_row(said, asked.best)]
    return [_to_prediction(case, said, row) for row in rows]


def _build_setting(
    asked: EpochPredictionOptions, looks: Sequence[PointObservation], result: SweepResult, workload: str
) -> EpochSetting:
    """Build the requested setting; missing values come from the plan if fixed there, otherwise from most points."""

    def usual(knob: str, given: int | str | None) -> str:
        base = result.plan.base.get(knob)
        most = Counter(getattr(look.point, knob) for look in looks).most_common(1)[0][0]
        return str(next(value for value in (given, base, most) if value is not None))

    size = int(usual("batch_size", asked.batch_size))
    cached = float(np.median([look.cached for look in looks])) if asked.cache is None else CACHED_SHARES[asked.cache]
    return EpochSetting(
        batch_size=size,
        steps=count_epoch_steps(result.plan.workloads[workload].images.count, size, result.plan.course),
        workers=int(usual("workers", asked.workers)),
        prefetch=int(usual("prefetch", asked.prefetch)),
        storage=usual("storage", asked.storage),
        cached=cached,
    )


def _select_modes(asked: EpochPredictionOptions, looks: Sequence[PointObservation], spec: DeviceSpec) -> Modes:
    """Return the named modes, all selectable modes if the best is wanted, or the modes of the sweep."""
    if asked.modes:
        found = [parse_mode(text, {}, spec, "--mode") for text in asked.modes]
        return stack_modes(mode for mode in found if mode is not None)
    if asked.best is not None:
        every = build_grid(spec)
        return Modes(every.knobs[mask_candidates(every)])
    tried = dict.fromkeys(look.mode for look in looks)
    return stack_modes(sorted(tried, reverse=True))


def _predict_simple(case: _Case, modes: Modes) -> EpochPredictions:
    """Predict with the paper's simple method, which uses epochs with the same loader setting only."""
    workload, setting = case.workload, case.setting
    seen = [
        MeasuredEpoch(name, look.mode, look.e2e_s, look.energy_j)
        for name in _list_workloads(case.result)
        for look in extract_observations(case.result, case.board, name, _point_kind(case.asked))
        if look.is_counted and _has_same_loader(look, setting)
    ]
    if all(one.network != workload for one in seen):
        got = f"no point at batch {setting.batch_size}, {setting.workers} workers, {setting.storage}"
        raise BadInput("--method simple", got, "a setting that the sweep tried in some modes: it predicts modes alone")
    made = LinearEpochModel(case.spec.maxn).fit(seen).predict(workload, modes)
    nothing = np.full(len(modes), np.nan)
    return EpochPredictions(
        modes,
        e2e_s=made.epoch_s,
        stall_s=nothing,
        compute_s=nothing,
        e2e_sd_log=nothing,
        energy_j=made.energy_j,
        energy_sd_log=nothing,
        label="estimated",
    )


def _has_same_loader(look: PointObservation, setting: EpochSetting) -> bool:
    point = look.point
    mine = (point.batch_size, point.workers, point.storage)
    return mine == (setting.batch_size, setting.workers, setting.storage)


def _find_best_row(said: EpochPredictions, best: str) -> int:
    """Return the row with the least time (ties: least energy), least energy or least energy-delay product."""
    if best == "time":
        near = said.e2e_s <= EQUAL_TIME_RATIO * said.e2e_s.min()
        second = said.e2e_s if said.energy_j is None else said.energy_j
        return int(np.argmin(np.where(near, second, np.inf)))
    if said.energy_j is None:
        raise BadInput("--best", best, "time: nobody metered the power of these points")
    return int(np.argmin(said.energy_j if best == "energy" else said.energy_j * said.e2e_s))


def _to_prediction(case: _Case, said: EpochPredictions, row: int) -> EpochPrediction:
    setting = case.setting
    mode = said.modes[row]
    same = [look for look in case.counted_looks if look.mode == mode and _has_same_setting(look, setting)]
    return EpochPrediction(
        board=case.board,
        workload=case.workload,
        mode=_format_mode(mode),
        batch_size=setting.batch_size,
        workers=setting.workers,
        prefetch=setting.prefetch,
        storage=setting.storage,
        cached=setting.cached,
        e2e_s=float(said.e2e_s[row]),
        stall_s=_finite_or_none(said.stall_s[row]),
        energy_j=None if said.energy_j is None else float(said.energy_j[row]),
        e2e_spread=_finite_or_none(said.e2e_sd_log[row]),
        energy_spread=None if said.energy_sd_log is None else _finite_or_none(said.energy_sd_log[row]),
        seen_s=_mean_or_none([look.e2e_s for look in same]),
        seen_j=_mean_or_none([look.energy_j for look in same]),
        method=case.asked.method,
        label=said.label,
    )


def _finite_or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _has_same_setting(look: PointObservation, setting: EpochSetting) -> bool:
    return _has_same_loader(look, setting) and abs(look.cached - setting.cached) < 0.01


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _format_mode(mode: PowerMode) -> str:
    return f"{mode.cores}/{mode.cpu_mhz:g}/{mode.gpu_mhz:g}/{mode.mem_mhz:g}"


def _print_predictions(lines: Sequence[EpochPrediction], asked: EpochPredictionOptions) -> None:
    from rich.console import Console
    from rich.table import Table

    first = lines[0]
    loader = f"prefetch {first.prefetch}, {first.storage}, {100 * first.cached:.0f} % in the page cache"
    table = Table(title=f"{first.board}: an epoch; {loader}; method {asked.method}, {first.label}")
    figures = ("epoch s", "+-", "seen s", "stall s", "energy J", "+-", "seen J")
    for heading in ("workload", "mode", "batch", "workers", *figures):
        table.add_column(heading, justify="left" if heading in {"workload", "mode"} else "right")
    for line in lines:
        table.add_row(
            line.workload,
            line.mode,
            str(line.batch_size),
            str(line.workers),
            _format_figure(line.e2e_s),
            _format_share(line.e2e_spread),
            _format_figure(line.seen_s),
            _format_figure(line.stall_s),
            _format_figure(line.energy_j),
            _format_share(line.energy_spread),
            _format_figure(line.seen_j),
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _format_figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
