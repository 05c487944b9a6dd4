"""Reader of measured training steps: time and peak memory over pruning level and batch size, with layer geometry.

A network consists of two files in a folder: ``NETWORK.csv`` (pruned_pct, batch_size, step_ms, memory_mb; an empty cell
means out of memory) and ``NETWORK.layers.json`` (``columns``, and under ``levels`` the convolutions of every pruned
network).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedge.costs.memory.step_model import (
    compute_features,
    compute_memory_terms,
    compute_own_time_terms,
    compute_time_terms,
)
from fedge.errors import BadInput
from fedge.json_reader import MalformedJson, parse_json
from fedge.types import Floats

GEOMETRY_COLUMNS = ("in_channels", "out_channels", "kernel", "padding", "stride", "groups", "input_size")
"""Columns of a convolution's geometry, in the order of ``fedge.costs.layers.network_cost.Convolution``."""
STEP_COLUMNS = ("pruned_pct", "batch_size", "step_ms", "memory_mb")
LAYERS_SUFFIX = ".layers.json"
OUT_OF_MEMORY_CELLS = ("", "nan")
"""Contents of a cell whose step ran out of memory."""


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Measured steps of a network, arrays of shape (n,); NaN where a step ran out of memory.

    Attributes:
        pruned_pct: Pruning level in percent of the parameters.
        memory_mb: Peak memory in MB.
        layers: Convolutions by pruning level, as rows of ``GEOMETRY_COLUMNS``, shape (layers, 7).
        dropped: Number of rows left out because the geometry of their level is unknown.
    """

    network: str
    pruned_pct: Floats
    batch_size: Floats
    step_ms: Floats
    memory_mb: Floats
    layers: Mapping[int, Floats]
    dropped: int = 0


def read_step_tables(folder: Path) -> tuple[StepTable, ...]:
    """Read all networks of a folder, sorted by name.

    Raises:
        BadInput: The folder does not exist or holds no network, or a file is invalid.
    """
    where = str(folder)
    if not folder.is_dir():
        raise BadInput(where, "no folder", "a folder of NETWORK.csv and NETWORK.layers.json")
    geometries = sorted(folder.glob(f"*{LAYERS_SUFFIX}"))
    if not geometries:
        raise BadInput(where, "no NETWORK.layers.json", "NETWORK.csv and NETWORK.layers.json of at least one network")
    return tuple(read_step_table(path) for path in geometries)


def read_step_table(geometry: Path) -> StepTable:
    """Read one network from ``NETWORK.layers.json`` and the ``NETWORK.csv`` beside it.

    Raises:
        BadInput: A file cannot be read or is invalid.
    """
    name = geometry.name[: -len(LAYERS_SUFFIX)]
    layers = _parse_levels(str(geometry), _read_text(geometry))
    path = geometry.with_name(f"{name}.csv")
    rows = _parse_rows(str(path), _read_text(path))
    known = np.isin(rows[:, 0], list(layers))
    if not known.any():
        raise BadInput(str(path), "no row of a level that the geometry knows", f"levels of {geometry.name}")
    pruned_pct, batch_size, step_ms, memory_mb = rows[known].T.copy()
    return StepTable(
        name,
        pruned_pct=pruned_pct,
        batch_size=batch_size,
        step_ms=step_ms,
        memory_mb=memory_mb,
        layers=layers,
        dropped=int((~known).sum()),
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadInput(str(path), str(reason), "a text file that can be read") from error


# The steps ------------------------------------------------------------------------------------------------------------


def _parse_rows(where: str, text: str) -> Floats:
    """Return the measured steps in the order of ``STEP_COLUMNS``, shape (n, 4)."""
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in STEP_COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise BadInput(where, f"no column {missing[0]}", f"the columns {', '.join(STEP_COLUMNS)}")
    rows = [
        [_parse_cell(f"{where}: line {reader.line_num}", name, row[name]) for name in STEP_COLUMNS] for row in reader
    ]
    if not rows:
        raise BadInput(where, "no rows", "one row per pruning level and batch size")
    return np.array(rows, dtype=np.float64)


def _parse_cell(where: str, name: str, text: str | None) -> float:
    measured = name in STEP_COLUMNS[2:]
    if measured and text is not None and text.strip().lower() in OUT_OF_MEMORY_CELLS:
        return math.nan
    right = "a number above 0, or empty (out of memory)" if measured else "a whole number"
    try:
        value = float(text or "")
    except ValueError as error:
        raise BadInput(f"{where}: {name}", repr(text or ""), right) from error
    lowest = 0.0 if name == "pruned_pct" else 1e-9
    if not (math.isfinite(value) and value >= lowest and (measured or value == int(value))):
        raise BadInput(f"{where}: {name}", repr(text), right)
    return value


# The geometry ---------------------------------------------------------------------------------------------------------


def _parse_levels(where: str, text: str) -> dict[int, Floats]:
    try:
        data = parse_json(text)
    except MalformedJson as error:
        raise BadInput(where, "no JSON", "columns and levels, as JSON") from error
    right = f"columns {', '.join(GEOMETRY_COLUMNS)}, and levels: lists of such rows"
    if not isinstance(data, dict) or data.get("columns") != list(GEOMETRY_COLUMNS):
        raise BadInput(f"{where}: columns", "others" if isinstance(data, dict) else type(data).__name__, right)
    levels = data.get("levels")
    if not isinstance(levels, dict) or not levels:
        raise BadInput(f"{where}: levels", repr(levels)[:60], right)
    return {
        _parse_level(where, level): _parse_geometry(f"{where}: level {level}", rows) for level, rows in levels.items()
    }


def _parse_level(where: str, level: str) -> int:
    if not level.isascii() or not level.isdigit():
        raise BadInput(f"{where}: levels", repr(level), "pruning levels in whole percent")
    return int(level)


def _parse_geometry(where: str, rows: Any) -> Floats:
    right = f"rows of {len(GEOMETRY_COLUMNS)} numbers: {', '.join(GEOMETRY_COLUMNS)}"
    try:
        layers = np.array(rows, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise BadInput(where, "rows that differ in length or kind", right) from error
    if layers.ndim != 2 or layers.shape[1] != len(GEOMETRY_COLUMNS) or not len(layers):
        raise BadInput(where, f"an array of shape {layers.shape}", right)
    padding = GEOMETRY_COLUMNS.index("padding")
    if not np.isfinite(layers).all() or (np.delete(layers, padding, axis=1) <= 0).any() or (layers < 0).any():
        raise BadInput(where, "a size that is not above 0", right)
    if (layers[:, 6] + 2 * layers[:, 3] < layers[:, 2]).any():
        raise BadInput(where, "a kernel larger than its input", right)
    return layers


# The steps of several networks with their terms --------------------------------------------------------------------

TargetName = Literal["memory", "latency"]


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
        return _join_steps([self], lambda arrays: arrays[0][rows])

    @property
    def level_and_log_batch(self) -> Floats:
        """Return the level as a share and the log batch size, shape (n, 2)."""
        return np.stack([self.level / 100.0, np.log(self.batch)], axis=1)


def gather_steps(tables: Sequence[StepTable]) -> MeasuredSteps:
    """Concatenate the steps of all tables, and compute their terms."""
    return _join_steps([_gather_level(table, level) for table in tables for level in table.layers], np.concatenate)


def _gather_level(table: StepTable, level: int) -> MeasuredSteps:
    rows, layers = table.pruned_pct == level, table.layers[level]
    batch = table.batch_size[rows]
    count = len(batch)
    return MeasuredSteps(
        np.full(count, table.network),
        level=np.full(count, float(level)),
        batch=batch,
        layers=np.full(count, float(len(layers))),
        measured={"memory": table.memory_mb[rows], "latency": table.step_ms[rows]},
        terms={
            "features": compute_features(layers, batch),
            "memory": compute_memory_terms(layers, batch),
            "own": compute_own_time_terms(layers, batch),
            "time": compute_time_terms(layers, batch),
        },
    )


def _join_steps(parts: Sequence[MeasuredSteps], join: Callable[[list[Any]], Any]) -> MeasuredSteps:
    """Apply ``join`` to the arrays that the parts have under the same name."""
    plain = {name: join([getattr(part, name) for part in parts]) for name in ("network", "level", "batch", "layers")}
    named: dict[str, Any] = {
        name: {key: join([getattr(part, name)[key] for part in parts]) for key in getattr(parts[0], name)}
        for name in ("measured", "terms")
    }
    return MeasuredSteps(**plain, **named)
