"""What is known of two jobs on one board, mode by mode and batch size by batch size: a pair, and its grid of knobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput
from fedge.modes import CLOCK_TOLERANCE_MHZ
from fedge.types import Floats, Modes, ProfileTable

ModeKey = tuple[float, ...]
"""A mode's knobs without what a conversion of units adds: equal for what is one mode in two tables."""

FULCRUM_GRID = (
    (4.0, 8.0, 12.0),
    (422.4, 729.6, 1036.8, 1344.0, 1651.2, 1958.4, 2201.6),
    (114.75, 318.75, 522.75, 726.75, 930.75, 1134.75, 1300.5),
    (665.6, 2133.0, 3199.0),
)
"""The 441 modes of AGX Orin among which Fulcrum chooses: cores, CPU, GPU and memory MHz."""


@dataclass(frozen=True, slots=True, eq=False)
class KnobGrid:
    """Every combination of some values of the four knobs; ``rows`` holds the place of each in a table of modes."""

    values: tuple[tuple[float, ...], ...]
    """Per knob its values, rising."""
    rows: NDArray[np.intp]
    """One axis per knob."""

    def row(self, at: Sequence[int]) -> int:
        """The row of the mode whose knobs are at these places of their values."""
        return int(self.rows[tuple(at)])


@dataclass(frozen=True, slots=True, eq=False)
class JobPair:
    """A training job, an inference job or both: seconds per minibatch and module watts, as a table says.

    ``train_s`` and ``train_w`` have the shape (n,), ``infer_s`` and ``infer_w`` (batch sizes, n); row i of all belongs
    to ``modes[i]``. A job that there is not has no rows: shape (0,) and (0, n). What no table says is not finite.
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
    """The pair of a training table and an inference table at its batch sizes; either may be missing.

    The modes are those that all tables have; for training alone Fulcrum's 441 where the table has them. Raises
    ``BadInput`` when there is no table, or no mode that all have.
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
    """The pair in the modes that are kept, (n,); raises ``BadInput`` when there are none."""
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
    """The key of every mode."""
    return [
        tuple(round(float(value) / CLOCK_TOLERANCE_MHZ) * CLOCK_TOLERANCE_MHZ for value in row) for row in modes.knobs
    ]


def build_knob_grid(modes: Modes) -> KnobGrid:
    """The grid that ``modes`` are; raises ``BadInput`` when they are not every combination of some values."""
    values = [np.unique(np.round(knob, 6)) for knob in modes.knobs.T]
    at = [np.searchsorted(v, np.round(knob, 6)) for v, knob in zip(values, modes.knobs.T, strict=True)]
    rows = np.full([len(v) for v in values], -1, dtype=np.intp)
    rows[tuple(at)] = np.arange(len(modes))
    if (rows < 0).any():
        missing = int((rows < 0).sum())
        raise BadInput(
            "the modes",
            f"a grid in which {missing} of {rows.size} are missing",
            "every combination of their values, which a search along the knobs needs",
        )
    return KnobGrid(tuple(tuple(v.tolist()) for v in values), rows)


def _select_fulcrum_modes(keys: list[ModeKey]) -> list[ModeKey]:
    wanted = [{round(value / CLOCK_TOLERANCE_MHZ) * CLOCK_TOLERANCE_MHZ for value in knob} for knob in FULCRUM_GRID]
    found = [key for key in keys if all(value in known for value, known in zip(key, wanted, strict=True))]
    return found if len(found) == int(np.prod([len(knob) for knob in FULCRUM_GRID])) else keys
