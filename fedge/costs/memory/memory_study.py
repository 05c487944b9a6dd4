"""Comparison of memory and time predictors for training steps: perf4sight as published, and fedge's models.

References:
    perf4sight (arXiv 2108.05580): extremely randomised trees on 56 features, separately for memory and time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedge.costs.memory import residual_process
from fedge.costs.memory.step_model import estimate_ceiling_mb, find_unbounded_steps, fit_memory_model, fit_time_model
from fedge.costs.memory.step_table import StepTable, read_step_tables
from fedge.costs.memory.step_terms import (
    compute_features,
    compute_memory_terms,
    compute_own_time_terms,
    compute_time_terms,
)
from fedge.errors import BadInput, UnknownName
from fedge.extras import build_install_command
from fedge.types import Floats

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor


FOREST_TREES = 300


def fit_forest(features: Floats, target: Floats, seed: int) -> ExtraTreesRegressor:
    """Fit extremely randomised trees to raw features, shape (n, 56), and a raw target, shape (n,).

    Raises:
        BadInput: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ModuleNotFoundError as error:
        raise BadInput("--methods perf4sight", "no scikit-learn", build_install_command("train")) from error
    return ExtraTreesRegressor(FOREST_TREES, random_state=seed, n_jobs=1).fit(features, target)


TRAIN_LEVELS = (0, 30, 50, 70, 90)
"""Pruning levels of the training rows in the paper: percent of the parameters removed."""
StudySplit = Literal["within", "left-out"]
TargetName = Literal["memory", "latency"]
TARGETS: tuple[TargetName, ...] = ("memory", "latency")
MEMORY_NOISE, TIME_NOISE = (0.025, 0.05, 0.04, 0.5), (0.04, 0.1, 0.1, 0.3)
"""Arguments of ``residual_process.list_scale_candidates``: noise of a step, offset of a network, curve over batch size
and its length. Set by hand with the evaluated rows in sight; see docs/explanation/memory.md."""


@dataclass(frozen=True, slots=True)
class MemoryErrorRow:
    """One error of the comparison.

    Attributes:
        split: ``within`` the network's pruning levels, or with the network ``left-out``.
        target: ``memory`` or ``latency``.
        mape: Mean absolute relative error in percent.
    """

    method: str
    network: str
    split: StudySplit
    target: TargetName
    mape: float
    n: int


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSteps:
    """Measured steps of several networks with all their terms.

    Attributes:
        level: Pruning level in percent, shape (n,).
        batch: Batch size, shape (n,).
        measured: Memory in MB and latency in ms, shape (n,); NaN where the step ran out of memory.
        terms: Features and model terms by name, shape (n, terms).
    """

    network: np.ndarray
    level: Floats
    batch: Floats
    layers: Floats
    measured: Mapping[TargetName, Floats]
    terms: Mapping[str, Floats]

    def __getitem__(self, rows: np.ndarray) -> MeasuredSteps:
        measured = {name: values[rows] for name, values in self.measured.items()}
        terms = {name: values[rows] for name, values in self.terms.items()}
        network, level, batch, layers = (of[rows] for of in (self.network, self.level, self.batch, self.layers))
        return MeasuredSteps(network, level=level, batch=batch, layers=layers, measured=measured, terms=terms)

    @property
    def level_and_log_batch(self) -> Floats:
        """Return the level as a share and the log batch size, shape (n, 2)."""
        return np.stack([self.level / 100.0, np.log(self.batch)], axis=1)


PredictionMethod = Callable[[MeasuredSteps, MeasuredSteps, TargetName, StudySplit, int], Floats]
"""Function that predicts the second steps from the first, all of which have the target; the last argument is a seed."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryStudy:
    """A comparison of methods on measured steps, one table per network, also on networks left out of the fit.

    Raises:
        UnknownName: There is no such method.
        BadInput: A table cannot be split, or there is no network to leave out.
    """

    tables: Sequence[StepTable]
    methods: Sequence[str]
    left_out: bool
    seed: int = 0

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                raise UnknownName("--methods", method, tuple(METHODS))
        if self.left_out and len(self.tables) < 2:
            raise BadInput("--leave-network-out", f"{len(self.tables)} network", "at least two: one is left out")
        for table in self.tables:
            trained = np.isin(table.pruned_pct, TRAIN_LEVELS)
            for target in (table.memory_mb, table.step_ms):
                if not (np.isfinite(target) & trained).any() or not (np.isfinite(target) & ~trained).any():
                    levels = ", ".join(map(str, TRAIN_LEVELS))
                    raise BadInput(table.network, "no steps to learn from or to judge", f"levels {levels} and others")

    @property
    def cells(self) -> list[tuple[str, StudySplit, StepTable]]:
        """The evaluations as (method, split, table), in order."""
        splits: tuple[StudySplit, ...] = ("within", "left-out") if self.left_out else ("within",)
        return [(method, split, table) for method in self.methods for split in splits for table in self.tables]

    @property
    def dropped_rows(self) -> Mapping[str, int]:
        """Number of rows without a geometry by network, where there are any."""
        return {table.network: table.dropped for table in self.tables if table.dropped}

    def run(self, report_cell: Callable[[str], None] = lambda _: None) -> list[MemoryErrorRow]:
        """Evaluate every method on every network; ``report_cell`` is called with a line of text after each."""
        steps = gather_steps(self.tables)
        rows: list[MemoryErrorRow] = []
        for method, split, table in self.cells:
            rows += [
                _evaluate_cell(steps, method=method, network=table.network, split=split, target=target, seed=self.seed)
                for target in TARGETS
            ]
            report_cell(f"{method} {split} {table.network}")
        return rows


def read_memory_study(data: Path, methods: str, *, left_out: bool, seed: int = 0) -> MemoryStudy:
    """Read the measured steps of a study for the methods named, separated by commas.

    Raises:
        BadInput: The names, the folder or a table are invalid, or there is no network to leave out.
    """
    names = tuple(word.strip() for word in methods.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise BadInput("--methods", repr(methods), f"{', '.join(METHODS)}, separated by commas, each once")
    return MemoryStudy(read_step_tables(data), names, left_out, seed)


def gather_steps(tables: Sequence[StepTable]) -> MeasuredSteps:
    """Concatenate the steps of all tables, and compute their terms."""
    return _concatenate_steps([_gather_level(table, level) for table in tables for level in table.layers])


def _gather_level(table: StepTable, level: int) -> MeasuredSteps:
    rows, layers = table.pruned_pct == level, table.layers[level]
    batch = table.batch_size[rows]
    raw = compute_features(layers, batch)
    count = len(batch)
    return MeasuredSteps(
        np.full(count, table.network),
        level=np.full(count, float(level)),
        batch=batch,
        layers=np.full(count, float(len(layers))),
        measured={"memory": table.memory_mb[rows], "latency": table.step_ms[rows]},
        terms={
            "features": raw,
            "memory": compute_memory_terms(layers, batch),
            "own": compute_own_time_terms(layers, batch),
            "time": compute_time_terms(layers, batch),
        },
    )


def _concatenate_steps(parts: Sequence[MeasuredSteps]) -> MeasuredSteps:
    first = parts[0]
    measured = {name: np.concatenate([part.measured[name] for part in parts]) for name in first.measured}
    terms = {name: np.concatenate([part.terms[name] for part in parts]) for name in first.terms}
    network, level, batch, layers = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("network", "level", "batch", "layers")
    )
    return MeasuredSteps(network, level=level, batch=batch, layers=layers, measured=measured, terms=terms)


def _evaluate_cell(
    steps: MeasuredSteps, method: str, network: str, split: StudySplit, target: TargetName, seed: int
) -> MemoryErrorRow:
    there = steps[np.isfinite(steps.measured[target])]
    own, trained = there.network == network, np.isin(there.level, TRAIN_LEVELS)
    learn, judge = (trained, own & ~trained) if split == "within" else (~own, own)
    judged = there[judge]
    predicted = METHODS[method](there[learn], judged, target, split, seed)
    mape = 100.0 * float(np.mean(np.abs(predicted / judged.measured[target] - 1.0)))
    return MemoryErrorRow(method, network=network, split=split, target=target, mape=mape, n=int(judge.sum()))


# Methods --------------------------------------------------------------------------------------------------------------


def predict_perf4sight(
    learn: MeasuredSteps, judge: MeasuredSteps, target: TargetName, split: StudySplit, seed: int
) -> Floats:
    """Predict m steps of one network as perf4sight does, in MB or ms, shape (m,).

    Within a network it is trained on that network alone.
    """
    if split == "within":
        learn = learn[learn.network == judge.network[0]]
    grown = fit_forest(learn.terms["features"], learn.measured[target], seed)
    predicted: Floats = grown.predict(judge.terms["features"])
    return predicted


def predict_fedge(
    learn: MeasuredSteps, judge: MeasuredSteps, target: TargetName, split: StudySplit, seed: int
) -> Floats:
    """Predict m steps of one network by fedge's terms and a smooth process of their residuals; the seed is unused."""
    way = {
        ("within", "memory"): _predict_own_memory,
        ("within", "latency"): _predict_own_time,
        ("left-out", "memory"): _predict_other_memory,
        ("left-out", "latency"): _predict_other_time,
    }[split, target]
    return way(learn, judge)


def _predict_own_memory(learn: MeasuredSteps, judge: MeasuredSteps) -> Floats:
    """Predict from the network's own levels; other networks only determine where the board is full."""
    ceiling_mb = estimate_ceiling_mb(learn.measured["memory"])
    own = learn[learn.network == judge.network[0]]
    memory_mb = own.measured["memory"]
    model = fit_memory_model(own.terms["memory"], memory_mb, own.network, ceiling_mb)
    shows = find_unbounded_steps(memory_mb, model.floor_mb, ceiling_mb)
    need_mb = model.need_mb(judge.terms["memory"])
    if shows.any():
        residual = np.log(memory_mb[shows] / model.need_mb(own.terms["memory"][shows]))
        left = residual_process.fit_smooth_process(
            own.level_and_log_batch[shows], residual, residual_process.list_scale_candidates(*MEMORY_NOISE)
        )
        need_mb = need_mb * np.exp(left.predict(judge.level_and_log_batch))
    return model.clip_to_board_mb(need_mb)


def _predict_own_time(learn: MeasuredSteps, judge: MeasuredSteps) -> Floats:
    own = learn[learn.network == judge.network[0]]
    step_ms = own.measured["latency"]
    model = fit_time_model(own.terms["own"], step_ms, own.layers, own.network)
    residual = np.log(step_ms / model.step_ms(own.terms["own"], own.layers))
    left = residual_process.fit_smooth_process(
        own.level_and_log_batch, residual, residual_process.list_scale_candidates(*TIME_NOISE)
    )
    predicted: Floats = model.step_ms(judge.terms["own"], judge.layers) * np.exp(
        left.predict(judge.level_and_log_batch)
    )
    return predicted


def _predict_other_memory(learn: MeasuredSteps, judge: MeasuredSteps) -> Floats:
    memory_mb = learn.measured["memory"]
    model = fit_memory_model(learn.terms["memory"], memory_mb, learn.network, estimate_ceiling_mb(memory_mb))
    return model.clip_to_board_mb(model.need_mb(judge.terms["memory"]))


def _predict_other_time(learn: MeasuredSteps, judge: MeasuredSteps) -> Floats:
    step_ms = learn.measured["latency"]
    model = fit_time_model(learn.terms["time"], step_ms, learn.layers, learn.network)
    at, places = (
        residual_process.build_transfer_points(s.terms["time"], s.terms["features"][:, 12]) for s in (learn, judge)
    )
    left = residual_process.fit_transfer_process(at, np.log(step_ms / model.step_ms(learn.terms["time"], learn.layers)))
    predicted: Floats = model.step_ms(judge.terms["time"], judge.layers) * np.exp(left.predict(places))
    return predicted


METHODS: Mapping[str, PredictionMethod] = {"perf4sight": predict_perf4sight, "fedge": predict_fedge}
