"""Comparison of memory and time predictors for training steps, and the Gaussian processes of models' residuals.

Compared are perf4sight as published and fedge's models. The processes have Matern-3/2 and Matern-5/2 correlations.

References:
    perf4sight (arXiv 2108.05580): extremely randomised trees on 56 features, separately for memory and time. Ours is
    within 0.7 points of an independent implementation on the four networks of the published tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedge.costs.memory.step_model import (
    estimate_ceiling_mb,
    find_unbounded_steps,
    fit_memory_model,
    fit_time_model,
)
from fedge.costs.memory.step_table import MeasuredSteps, StepTable, TargetName, gather_steps, read_step_tables
from fedge.errors import BadInput, UnknownName
from fedge.extras import build_install_command
from fedge.physics.matern import matern3, matern5
from fedge.types import Floats

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor


ROOT3, ROOT5 = np.sqrt(3.0), np.sqrt(5.0)
SMOOTH_OUTLIER_SDS = 2.0
"""Noise standard deviations beyond which a residual is down-weighted."""
SMOOTH_ROUNDS = 3
BOTH_LENGTH, OWN_LENGTH = 0.7, 3.0
"""Correlation lengths over the log batch size: of the joint curve, and of a level's own offset."""


@dataclass(frozen=True, slots=True)
class ProcessScales:
    """Standard deviations of log memory or log time, and correlation lengths.

    Levels are shares and batch sizes are logarithms.

    Attributes:
        noise: Of a single step.
        offset: Of the whole network.
        batch: Of a curve over the batch size that all levels share.
        level: Of a curve over the level, and of one over level and batch size.
        own: Of a level's own offset.
        level_length: Correlation length of curves over the level.
        batch_length: Correlation length of the shared curve over the batch size.
    """

    noise: float
    offset: float
    batch: float
    level: float
    own: float
    level_length: float
    batch_length: float


def list_scale_candidates(noise: float, offset: float, batch: float, batch_length: float) -> Iterator[ProcessScales]:
    """Yield the scales, in log units, among which the likelihood selects. The grid is a default; a finer one takes
    longer.
    """
    for own in (0.003, 0.03, 0.06, 0.1, 0.15):
        for length in (0.1, 0.2, 0.4):
            for level in (0.04, 0.08):
                yield ProcessScales(
                    noise,
                    offset=offset,
                    batch=batch,
                    level=level,
                    own=own,
                    level_length=length,
                    batch_length=batch_length,
                )


def predict_smooth_residuals(at: Floats, residual: Floats, scales: Iterable[ProcessScales], to: Floats) -> Floats:
    """Predict the residuals of a network's other steps by the process with the most likely scales.

    Args:
        at: Level as a share and log batch size of the known steps, shape (n, 2).
        residual: Their log measured minus log modelled, shape (n,).
        scales: The candidates, at least one.
        to: Level and log batch size of the wanted steps, shape (m, 2).

    Returns:
        Log residuals, shape (m,).
    """
    tried = [(*_fit_scales(one, at, residual), one) for one in scales]
    _, weights, best = max(tried, key=lambda fitted: fitted[0])
    predicted: Floats = _shared_covariance(best, to, at) @ weights
    return predicted


def _fit_scales(scales: ProcessScales, at: Floats, residual: Floats) -> tuple[float, Floats]:
    """Return the log likelihood and the weights of the steps, shape (n,)."""
    same_level = at[:, None, 0] == at[None, :, 0]
    near = matern3(ROOT3 * (_distances(at[:, 1], at[:, 1]) / OWN_LENGTH))
    covariance = _shared_covariance(scales, at, at) + np.where(same_level, scales.own**2 * near, 0.0)
    noise = np.full(len(at), scales.noise**2)
    weights = _solve_weights(covariance, noise, residual)[1]
    for _ in range(SMOOTH_ROUNDS):
        off = np.abs(noise * weights) / scales.noise
        noise = scales.noise**2 * np.maximum(1.0, off / SMOOTH_OUTLIER_SDS)
        likelihood, weights = _solve_weights(covariance, noise, residual)
    return likelihood, weights


def _solve_weights(covariance: Floats, noise: Floats, residual: Floats) -> tuple[float, Floats]:
    """Return the log likelihood without its constant, and the weights."""
    root = np.linalg.cholesky(covariance + np.diag(noise))
    weights = np.linalg.solve(root.T, np.linalg.solve(root, residual))
    return float(-0.5 * residual @ weights - np.log(np.diag(root)).sum()), weights


def _shared_covariance(scales: ProcessScales, one: Floats, other: Floats) -> Floats:
    level = matern5(ROOT5 * (_distances(one[:, 0], other[:, 0]) / scales.level_length))
    batch = _distances(one[:, 1], other[:, 1])
    both = level * matern3(ROOT3 * (batch / BOTH_LENGTH))
    shared: Floats = (
        scales.offset**2
        + scales.batch**2 * matern3(ROOT3 * (batch / scales.batch_length))
        + scales.level**2 * (level + both)
    )
    return shared


def _distances(one: Floats, other: Floats) -> Floats:
    return np.abs(one[:, None] - other[None, :])


NOISE, BATCH, CURVE = 0.1, 0.1, 0.05
"""Standard deviations of log time: of a single step, of a curve over the batch size, of one over all three inputs."""
TRANSFER_LENGTHS = np.array([1.5, 1.0, 1.0])
TRANSFER_BATCH_LENGTH = 0.5
TRANSFER_OUTLIER_SDS = 2.0
TRANSFER_ROUNDS = 3


def build_transfer_points(terms: Floats, flop: Floats) -> Floats:
    """Return log batch size, log traffic per image and log FLOP per element moved, shape (n, 3).

    The terms are those of ``step_model.compute_time_terms``, shape (n, 6); FLOP are of shape (n,).
    """
    batch, traffic = terms[:, 1], terms[:, 4]
    return np.stack([np.log(batch), np.log(traffic / batch), np.log(flop / traffic)], axis=1)


def predict_transferred_residuals(at: Floats, residual: Floats, to: Floats) -> Floats:
    """Predict the residuals of another network's steps; outliers are down-weighted.

    Args:
        at: Inputs of the known steps (``build_transfer_points``), shape (n, 3).
        residual: Their log measured minus log modelled, shape (n,).
        to: Inputs of the wanted steps, shape (m, 3).

    Returns:
        Log residuals, shape (m,).
    """
    covariance = _transfer_covariance(at, at)
    noise: Floats = np.full(len(at), NOISE**2)
    weights: Floats = np.zeros(len(at))
    for _ in range(TRANSFER_ROUNDS):
        weights = np.asarray(np.linalg.solve(covariance + np.diag(noise), residual), dtype=np.float64)
        noise = NOISE**2 * np.maximum(1.0, np.abs(noise * weights) / (TRANSFER_OUTLIER_SDS * NOISE))
    predicted: Floats = _transfer_covariance(to, at) @ weights
    return predicted


def _transfer_covariance(one: Floats, other: Floats) -> Floats:
    distance = np.sqrt((((one[:, None, :] - other[None, :, :]) / TRANSFER_LENGTHS) ** 2).sum(axis=2))
    batch = np.abs(one[:, None, 0] - other[None, :, 0]) / TRANSFER_BATCH_LENGTH
    covariance: Floats = CURVE**2 * matern5(ROOT5 * distance) + BATCH**2 * matern3(ROOT3 * batch)
    return covariance


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
TARGETS: tuple[TargetName, ...] = ("memory", "latency")
MEMORY_NOISE, TIME_NOISE = (0.025, 0.05, 0.04, 0.5), (0.04, 0.1, 0.1, 0.3)
"""Arguments of ``list_scale_candidates``: noise of a step, offset of a network, curve over batch size
and its length. Set by hand with the evaluated rows in sight; see docs/explanation/memory.md."""


@dataclass(frozen=True, slots=True)
class MemoryErrorRow:
    """One error of the comparison.

    Attributes:
        split: ``within`` the network's pruning levels, or with the network ``left-out``.
        mape: Mean absolute relative error in percent.
    """

    method: str
    network: str
    split: StudySplit
    target: TargetName
    mape: float
    n: int


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
    predict = _predict_memory if target == "memory" else _predict_time
    return predict(learn, judge, split == "within")


def _predict_memory(learn: MeasuredSteps, judge: MeasuredSteps, within: bool) -> Floats:
    # Within a network, other networks only determine where the board is full.
    ceiling_mb = estimate_ceiling_mb(learn.measured["memory"])
    if within:
        learn = learn[learn.network == judge.network[0]]
    memory_mb = learn.measured["memory"]
    model = fit_memory_model(learn.terms["memory"], memory_mb, learn.network, ceiling_mb)
    need_mb = model.need_mb(judge.terms["memory"])
    shows = find_unbounded_steps(memory_mb, model.floor_mb, ceiling_mb)
    if within and shows.any():
        at = learn.level_and_log_batch[shows]
        residual = np.log(memory_mb[shows] / model.need_mb(learn.terms["memory"][shows]))
        scales = list_scale_candidates(*MEMORY_NOISE)
        need_mb = need_mb * np.exp(predict_smooth_residuals(at, residual, scales, judge.level_and_log_batch))
    return model.clip_to_board_mb(need_mb)


def _predict_time(learn: MeasuredSteps, judge: MeasuredSteps, within: bool) -> Floats:
    if within:
        learn = learn[learn.network == judge.network[0]]
    step_ms, terms = learn.measured["latency"], "own" if within else "time"
    model = fit_time_model(learn.terms[terms], step_ms, learn.layers, learn.network)
    residual = np.log(step_ms / model.step_ms(learn.terms[terms], learn.layers))
    if within:
        scales = list_scale_candidates(*TIME_NOISE)
        left = predict_smooth_residuals(learn.level_and_log_batch, residual, scales, judge.level_and_log_batch)
    else:
        at, to = (build_transfer_points(of.terms["time"], of.terms["features"][:, 12]) for of in (learn, judge))
        left = predict_transferred_residuals(at, residual, to)
    predicted: Floats = model.step_ms(judge.terms[terms], judge.layers) * np.exp(left)
    return predicted


METHODS: Mapping[str, PredictionMethod] = {"perf4sight": predict_perf4sight, "fedge": predict_fedge}
