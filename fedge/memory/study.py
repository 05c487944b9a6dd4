"""How well memory and time are predicted: within a network, from some pruning levels to the others, and left out.

``within`` learns from the levels ``TRAIN_LEVELS`` of a network and is judged on its other levels. ``left-out`` learns
from all steps of all other networks and is judged on all steps of the one that was left out. Steps that ran out of
memory are not in either; the error is the mean absolute one in percent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedge.errors import BadInput, UnknownName
from fedge.memory import smooth, transfer
from fedge.memory.features import features
from fedge.memory.forest import forest
from fedge.memory.model import ceiling_of, fit_memory, fit_time, own_weight
from fedge.memory.table import StepTable
from fedge.memory.terms import memory_terms, own_time_terms, time_terms
from fedge.types import Floats

TRAIN_LEVELS = (0, 30, 50, 70, 90)
"""The paper's: percent of the parameters that were pruned away."""
Split = Literal["within", "left-out"]
TargetName = Literal["memory", "latency"]
TARGETS: tuple[TargetName, ...] = ("memory", "latency")
MEMORY_NOISE, TIME_NOISE = (0.025, 0.05, 0.04, 0.5), (0.04, 0.1, 0.1, 0.3)
"""For ``smooth.grid``: a step's noise, a network's offset, the curve over batch size and its length; chosen by us."""


@dataclass(frozen=True, slots=True)
class Row:
    """One error: ``mape`` in percent over ``n`` steps."""

    method: str
    network: str
    split: Split
    target: TargetName
    mape: float
    n: int


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Measured steps (n,) of some networks with all their terms; NaN where a step ran out of memory."""

    network: np.ndarray
    level: Floats
    batch: Floats
    layers: Floats
    measured: Mapping[TargetName, Floats]
    terms: Mapping[str, Floats]

    def __getitem__(self, rows: np.ndarray) -> Steps:
        measured = {name: values[rows] for name, values in self.measured.items()}
        terms = {name: values[rows] for name, values in self.terms.items()}
        network, level, batch, layers = (of[rows] for of in (self.network, self.level, self.batch, self.layers))
        return Steps(network, level, batch, layers, measured, terms)

    @property
    def places(self) -> Floats:
        """Level as a share and log batch size, (n, 2)."""
        return np.stack([self.level / 100.0, np.log(self.batch)], axis=1)


Method = Callable[[Steps, Steps, TargetName, Split, int], Floats]
"""Predicts the second steps from the first, which all hold the target; the last is a seed."""


def evaluate(
    tables: Sequence[StepTable],
    methods: Sequence[str],
    *,
    left_out: bool,
    seed: int = 0,
    told: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """The errors of every method on every network; raises ``BadInput`` where there is nothing to learn from."""
    check(tables, methods, left_out)
    steps = gather(tables)
    rows: list[Row] = []
    for method, split, table in cells(tables, methods, left_out):
        rows += [_row(steps, method, table.network, split, target, seed) for target in TARGETS]
        told(f"{method} {split} {table.network}")
    return rows


def cells(
    tables: Sequence[StepTable], methods: Sequence[str], left_out: bool
) -> Iterator[tuple[str, Split, StepTable]]:
    """What is judged, in order."""
    splits: tuple[Split, ...] = ("within", "left-out") if left_out else ("within",)
    return ((method, split, table) for method in methods for split in splits for table in tables)


def check(tables: Sequence[StepTable], methods: Sequence[str], left_out: bool) -> None:
    """Raise ``BadInput`` for an unknown method, a table that cannot be split, or nothing to leave out."""
    for method in methods:
        if method not in METHODS:
            raise UnknownName("--method", method, tuple(METHODS))
    if left_out and len(tables) < 2:
        raise BadInput("--leave-network-out", f"{len(tables)} network", "at least two: one is left out")
    for table in tables:
        trained = np.isin(table.pruned_pct, TRAIN_LEVELS)
        for target in (table.memory_mb, table.step_ms):
            if not (np.isfinite(target) & trained).any() or not (np.isfinite(target) & ~trained).any():
                levels = ", ".join(map(str, TRAIN_LEVELS))
                raise BadInput(table.network, "no steps to learn from or to judge", f"levels {levels} and others")


def gather(tables: Sequence[StepTable]) -> Steps:
    """All steps of the tables."""
    return _joined([_steps(table, level) for table in tables for level in table.layers])


def _steps(table: StepTable, level: int) -> Steps:
    rows, layers = table.pruned_pct == level, table.layers[level]
    batch = table.batch_size[rows]
    raw = features(layers, batch)
    count = len(batch)
    return Steps(
        np.full(count, table.network),
        np.full(count, float(level)),
        batch,
        np.full(count, float(len(layers))),
        {"memory": table.memory_mb[rows], "latency": table.step_ms[rows]},
        {
            "features": raw,
            "memory": memory_terms(layers, batch),
            "own": own_time_terms(layers, batch),
            "time": time_terms(layers, batch),
        },
    )


def _joined(parts: Sequence[Steps]) -> Steps:
    first = parts[0]
    measured = {name: np.concatenate([part.measured[name] for part in parts]) for name in first.measured}
    terms = {name: np.concatenate([part.terms[name] for part in parts]) for name in first.terms}
    network, level, batch, layers = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("network", "level", "batch", "layers")
    )
    return Steps(network, level, batch, layers, measured, terms)


def _row(steps: Steps, method: str, network: str, split: Split, target: TargetName, seed: int) -> Row:
    there = steps[np.isfinite(steps.measured[target])]
    own, trained = there.network == network, np.isin(there.level, TRAIN_LEVELS)
    learn, judge = (trained, own & ~trained) if split == "within" else (~own, own)
    judged = there[judge]
    predicted = METHODS[method](there[learn], judged, target, split, seed)
    mape = 100.0 * float(np.mean(np.abs(predicted / judged.measured[target] - 1.0)))
    return Row(method, network, split, target, mape, int(judge.sum()))


# Methods --------------------------------------------------------------------------------------------------------------


def perf4sight(learn: Steps, judge: Steps, target: TargetName, split: Split, seed: int) -> Floats:
    """The paper's model: within a network it sees that network alone."""
    if split == "within":
        learn = learn[learn.network == judge.network[0]]
    grown = forest(learn.terms["features"], learn.measured[target], seed)
    predicted: Floats = grown.predict(judge.terms["features"])
    return predicted


def fedge(learn: Steps, judge: Steps, target: TargetName, split: Split, seed: int) -> Floats:
    """Ours: the terms, and what is left of them as far as it is smooth."""
    way = {
        ("within", "memory"): _own_memory,
        ("within", "latency"): _own_time,
        ("left-out", "memory"): _other_memory,
        ("left-out", "latency"): _other_time,
    }[split, target]
    return way(learn, judge)


def _own_memory(learn: Steps, judge: Steps) -> Floats:
    """The network's own levels; of the others' steps only where the board is full."""
    ceiling_mb = ceiling_of(learn.measured["memory"])
    own = learn[learn.network == judge.network[0]]
    memory_mb = own.measured["memory"]
    model = fit_memory(own.terms["memory"], memory_mb, own.network, ceiling_mb)
    shows = own_weight(memory_mb, model.floor_mb, ceiling_mb)
    need_mb = model.need_mb(judge.terms["memory"])
    if shows.any():
        residual = np.log(memory_mb[shows] / model.need_mb(own.terms["memory"][shows]))
        left = smooth.smooth_fit(own.places[shows], residual, smooth.grid(*MEMORY_NOISE))
        need_mb = need_mb * np.exp(left.predict(judge.places))
    return model.seen_mb(need_mb)


def _own_time(learn: Steps, judge: Steps) -> Floats:
    own = learn[learn.network == judge.network[0]]
    step_ms = own.measured["latency"]
    model = fit_time(own.terms["own"], step_ms, own.layers, own.network)
    residual = np.log(step_ms / model.step_ms(own.terms["own"], own.layers))
    left = smooth.smooth_fit(own.places, residual, smooth.grid(*TIME_NOISE))
    predicted: Floats = model.step_ms(judge.terms["own"], judge.layers) * np.exp(left.predict(judge.places))
    return predicted


def _other_memory(learn: Steps, judge: Steps) -> Floats:
    memory_mb = learn.measured["memory"]
    model = fit_memory(learn.terms["memory"], memory_mb, learn.network, ceiling_of(memory_mb))
    return model.seen_mb(model.need_mb(judge.terms["memory"]))


def _other_time(learn: Steps, judge: Steps) -> Floats:
    step_ms = learn.measured["latency"]
    model = fit_time(learn.terms["time"], step_ms, learn.layers, learn.network)
    at, places = (transfer.places(s.terms["time"], s.terms["features"][:, 12]) for s in (learn, judge))
    left = transfer.transfer_fit(at, np.log(step_ms / model.step_ms(learn.terms["time"], learn.layers)))
    predicted: Floats = model.step_ms(judge.terms["time"], judge.layers) * np.exp(left.predict(places))
    return predicted


METHODS: Mapping[str, Method] = {"perf4sight": perf4sight, "fedge": fedge}
