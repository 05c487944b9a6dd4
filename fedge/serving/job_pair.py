"""Measured time and power of two jobs on one board by mode and batch size, and the grid of modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedge.costs.table_calibration import FULCRUM_GRID
from fedge.errors import BadInput
from fedge.modes import CLOCK_TOLERANCE_MHZ
from fedge.types import Floats, Modes, ProfileTable

ModeKey = tuple[float, ...]
"""A mode's knobs rounded to remove unit-conversion errors, so that equal modes of two tables compare equal."""

MIN_FULCRUM_SHARE = 0.9
"""Share of Fulcrum's modes from which a table counts as one of them; some may be missing. Default."""


@dataclass(frozen=True, slots=True, eq=False)
class KnobGrid:
    """The grid of all combinations of knob values.

    Attributes:
        values: Ascending values per knob.
        rows: Row of each combination in the table of modes, or of the nearest one; one axis per knob.
    """

    values: tuple[tuple[float, ...], ...]
    rows: NDArray[np.intp]

    def row(self, at: Sequence[int]) -> int:
        """Return the row of the mode with these indices into the knob values."""
        return int(self.rows[tuple(at)])


@dataclass(frozen=True, slots=True, eq=False)
class JobPair:
    """A training job, an inference job or both in n modes.

    A missing job has no rows: shapes (0,) and (0, n). Values missing in the tables are not finite.

    Attributes:
        modes: The n modes.
        batch_sizes: The k inference batch sizes.
        train_s: Seconds per training step, shape (n,).
        train_w: Power of training in watts, shape (n,).
        infer_s: Seconds per inference batch, shape (k, n).
        infer_w: Power of inference in watts, shape (k, n).
    """

    modes: Modes
    batch_sizes: tuple[int, ...]
    train_s: Floats
    train_w: Floats
    infer_s: Floats
    infer_w: Floats
    name: str = ""

    @property
    def has_training(self) -> bool:
        return len(self.train_s) > 0

    @property
    def has_inference(self) -> bool:
        return len(self.infer_s) > 0


def build_pair(train: ProfileTable | None, infer: Sequence[ProfileTable]) -> JobPair:
    """Build a pair from measured tables.

    ``infer`` has one table per batch size, or none.

    Returns:
        The pair in the modes that all tables share; for training alone, in those of Fulcrum's 441 modes
        that the table has, if it has nearly all.

    Raises:
        BadInput: If there is no table or no shared mode.
    """
    tables = ([] if train is None else [train]) + sorted(infer, key=lambda table: table.batch_size)
    if not tables:
        raise BadInput("the pair", "no table", "a training table, an inference table or both")
    places = [{key: i for i, key in enumerate(list_mode_keys(table.modes))} for table in tables]
    shared = sorted(set.intersection(*(set(place) for place in places)))
    if not infer:
        shared = _select_fulcrum_modes(shared)
    if not shared:
        raise BadInput(" and ".join(table.path for table in tables), "no mode in common", "tables of one kind of board")
    rows = [np.array([place[key] for key in shared]) for place in places]
    seconds = np.stack([table.step_s[chosen] for table, chosen in zip(tables, rows, strict=True)])
    watts = np.stack([table.power_w[chosen] for table, chosen in zip(tables, rows, strict=True)])
    first = 0 if train is None else 1
    none = np.empty(0)
    return JobPair(
        Modes(tables[0].modes.knobs[rows[0]]),
        batch_sizes=tuple(table.batch_size for table in tables[first:]),
        train_s=seconds[0] if first else none,
        train_w=watts[0] if first else none,
        infer_s=seconds[first:],
        infer_w=watts[first:],
        name="+".join(
            dict.fromkeys(table.workload for table in (tables[0], tables[-1]))
            if first and infer
            else [tables[0].workload]
        ),
    )


def select_pair_modes(pair: JobPair, kept: NDArray[np.bool_]) -> JobPair:
    """Return the pair in the modes marked by ``kept``, shape (n,).

    Raises:
        BadInput: If no mode is marked.
    """
    if not kept.any():
        raise BadInput(f"the pair {pair.name}", "no mode that is left", "at least one")
    train = kept if pair.has_training else slice(None)
    infer = (slice(None), kept if pair.has_inference else slice(None))
    return replace(
        pair,
        modes=Modes(pair.modes.knobs[kept]),
        train_s=pair.train_s[train],
        train_w=pair.train_w[train],
        infer_s=pair.infer_s[infer],
        infer_w=pair.infer_w[infer],
    )


def list_mode_keys(modes: Modes) -> list[ModeKey]:
    """Return the key of every mode."""
    return [
        tuple(round(float(value) / CLOCK_TOLERANCE_MHZ) * CLOCK_TOLERANCE_MHZ for value in row) for row in modes.knobs
    ]


def build_knob_grid(modes: Modes) -> KnobGrid:
    """Return the grid of ``modes``; a combination that they lack has the row of the nearest one that they have.

    Near is counted in steps of the knobs' values; of equally near ones, the one with the lower cores, then the lower
    clocks of CPU, GPU and memory.
    """
    values = [np.unique(np.round(knob, 6)) for knob in modes.knobs.T]
    at = [np.searchsorted(v, np.round(knob, 6)) for v, knob in zip(values, modes.knobs.T, strict=True)]
    rows = np.full([len(v) for v in values], -1, dtype=np.intp)
    rows[tuple(at)] = np.arange(len(modes))
    present = np.argwhere(rows >= 0)
    for hole in np.argwhere(rows < 0):
        rows[tuple(hole)] = rows[tuple(present[np.argmin(np.abs(present - hole).sum(axis=1))])]
    return KnobGrid(tuple(tuple(v.tolist()) for v in values), rows)


def _select_fulcrum_modes(keys: list[ModeKey]) -> list[ModeKey]:
    wanted = [{round(value / CLOCK_TOLERANCE_MHZ) * CLOCK_TOLERANCE_MHZ for value in knob} for knob in FULCRUM_GRID]
    found = [key for key in keys if all(value in known for value, known in zip(key, wanted, strict=True))]
    return found if len(found) >= MIN_FULCRUM_SHARE * np.prod([len(knob) for knob in FULCRUM_GRID]) else keys
