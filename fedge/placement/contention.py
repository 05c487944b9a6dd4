"""Instances beside each other: how much each is held up by the others, as a fixed point; many placements at once.

Arrays are (n placements, g columns); a column is a place in the board, with ``count`` instances alike.

    K  how much an engine's share stretches an instance's time on it; S the same for memory
    T  = K fixed + ((K compute)^n + (S memory)^n)^(1/n) + F fallback
    u  = K fixed / T, v = K compute / T     shares of its time in which it holds, and computes on, its engine
    m  = S memory / T, w = F fallback / T   ... in which it moves bytes, and runs on the GPU what fell back
    K  = 1 + h (sum over the others on the engine of u + o v, and of w from elsewhere)
    S  = 1 + sum over the others of m times their share of the bandwidth
    F  = 1 + sum over the others on the GPU of u + v, and of w

o is 1 between instances of one accelerator, and the board's overlap between two kinds of cores of one GPU; h is 1 but
on a processor of several cores. Whoever holds an engine or moves bytes shares it evenly with those that do so at that
moment: processor sharing, by mean numbers. So what is drawn never exceeds an engine (o = h = 1), nor the bandwidth: a
sum of shares over their stretches is convex in every share taken singly, so largest where all are 0 or 1: there 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.placement.accelerators import Board
from fedge.placement.demand import Demand
from fedge.types import Floats

STEPS, TOLERANCE, DAMPING = 400, 1e-10, 0.35
"""The fixed point is taken as found when no stretch changes by more than the tolerance, relative. Chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Which accelerator each column stands for, as matrices of who holds up whom."""

    same_engine: Floats
    """(g, g): 1 where two columns share an engine."""
    compute: Floats
    """(g, g): how much a column's computing holds up another on its engine: 1, the overlap, or 0."""
    on_fallback: Floats
    """(g,): 1 for columns on the engine to which operators fall back."""
    hindrance: Floats
    """(g,): h."""
    corner: float


@dataclass(frozen=True, slots=True, eq=False)
class Demands:
    """Of every placement and column: how many instances, and what a batch of one asks for; all (n, g)."""

    count: Floats
    batch: Floats
    fixed_s: Floats
    compute_s: Floats
    memory_s: Floats
    fallback_s: Floats
    joules: Floats
    share: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """K, S and F of this file's head, (n, g)."""

    engine: Floats
    memory: Floats
    fallback: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """u, v, m times the share of the bandwidth, and w, (n, g)."""

    held: Floats
    computing: Floats
    moving: Floats
    fallen: Floats


def columns_of(board: Board, names: Sequence[str]) -> Columns:
    """The matrices for columns that stand for the accelerators ``names``, which may repeat."""
    places = [board.accelerator(name) for name in names]
    engine: NDArray[np.bool_] = np.array([[a.engine == b.engine for b in places] for a in places])
    same: NDArray[np.bool_] = np.array([[a.name == b.name for b in places] for a in places])
    fallback = board.fallback.engine if board.fallback is not None else None
    return Columns(
        same_engine=engine.astype(np.float64),
        compute=np.where(same, 1.0, np.where(engine, board.overlap, 0.0)),
        on_fallback=np.array([float(a.engine == fallback) for a in places]),
        hindrance=np.array([a.hindrance for a in places]),
        corner=board.corner,
    )


def demands_of(rows: Sequence[Sequence[tuple[int, Demand]]]) -> Demands:
    """Arrays from counts and demands, (n placements) x (g columns)."""
    fields = ("batch_size", "fixed_s", "compute_s", "memory_s", "fallback_s", "joules", "bandwidth_share")
    count = np.array([[n for n, _ in row] for row in rows], dtype=np.float64)
    arrays = [np.array([[getattr(one, name) for _, one in row] for row in rows], dtype=np.float64) for name in fields]
    return Demands(count, *arrays)


def settle(columns: Columns, demands: Demands) -> Floats:
    """Seconds of a batch (n, g) at the fixed point of this file's head, found from nobody in anybody's way, damped."""
    one = np.ones_like(demands.count)
    here = Stretches(one, one, one)
    for _ in range(STEPS):
        there = stretches(columns, demands, shares(columns, demands, here))
        moved = _distance(here, there)
        here = Stretches(
            _between(here.engine, there.engine),
            _between(here.memory, there.memory),
            _between(here.fallback, there.fallback),
        )
        if moved < TOLERANCE:
            break
    return batch_seconds(columns, demands, here)


def batch_seconds(columns: Columns, d: Demands, by: Stretches) -> Floats:
    """T."""
    roof = _roof(by.engine * d.compute_s, by.memory * d.memory_s, columns.corner)
    result: Floats = by.engine * d.fixed_s + roof + by.fallback * d.fallback_s
    return result


def _roof(compute_s: Floats, memory_s: Floats, corner: float) -> Floats:
    """(compute^n + memory^n)^(1/n); of the shipped corner without powers, which take most of a search's time."""
    if corner == 3.0:
        root: Floats = np.cbrt(compute_s * compute_s * compute_s + memory_s * memory_s * memory_s)
        return root
    power: Floats = (compute_s**corner + memory_s**corner) ** (1.0 / corner)
    return power


def shares(columns: Columns, d: Demands, by: Stretches) -> Shares:
    """Which shares of its time an instance spends where."""
    batch_s = batch_seconds(columns, d, by)
    return Shares(
        by.engine * d.fixed_s / batch_s,
        by.engine * d.compute_s / batch_s,
        d.share * by.memory * d.memory_s / batch_s,
        by.fallback * d.fallback_s / batch_s,
    )


def stretches(columns: Columns, d: Demands, by: Shares) -> Stretches:
    """How much every instance is held up by the others. Its own part is taken out of the sums."""
    fallen_all = (d.count * by.fallen).sum(axis=1, keepdims=True)
    own = by.held + by.computing
    on_engine = (d.count * by.held) @ columns.same_engine + (d.count * by.computing) @ columns.compute - own
    elsewhere = columns.on_fallback * (fallen_all - by.fallen)
    gpu = ((d.count * own) * columns.on_fallback).sum(axis=1, keepdims=True) - own * columns.on_fallback
    # Columns without an instance would have their own part taken out of nothing.
    used = d.count > 0
    return Stretches(
        engine=1.0 + np.where(used, columns.hindrance * (on_engine + elsewhere), 0.0),
        memory=1.0 + np.where(used, (d.count * by.moving).sum(axis=1, keepdims=True) - by.moving, 0.0),
        fallback=1.0 + np.where(used, gpu + fallen_all - by.fallen, 0.0),
    )


def _between(old: Floats, new: Floats) -> Floats:
    return old + (1.0 - DAMPING) * (new - old)


def _distance(a: Stretches, b: Stretches) -> float:
    """The largest relative change."""
    pairs = ((a.engine, b.engine), (a.memory, b.memory), (a.fallback, b.fallback))
    return max(float(np.max(np.abs(new / old - 1.0), initial=0.0)) for old, new in pairs)
