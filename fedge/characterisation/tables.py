"""A sweep's points as tables in the normal form: what predictors, calibration and emulated boards read.

One table for every board, kind, workload and loader setting, since a table's minibatch is from end to end, waiting for
its data included. It lies in ``tables/<board>_<setting>/<device>/<kind>/<workload>.csv``, which is where readers take
its names from. Beside each lies its record, as with tables of ``fedge profile``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedge.characterisation.judging.setting import kind_of_board
from fedge.characterisation.plans.plan import Course
from fedge.characterisation.point import Point
from fedge.characterisation.result import Finished, Result
from fedge.characterisation.seen import Epoch, Minibatches
from fedge.errors import BadInput
from fedge.modes import modes_of
from fedge.profiles.write import write_table
from fedge.profiling.record import path_of
from fedge.types import Label, PowerMode, ProfileTable

FOLDER = "tables"
RULE = (
    "time: of every epoch that counts the mean minibatch from end to end, without the epoch's first, which starts the "
    "loader; the median of the epochs. power: the joules of these epochs over their seconds."
)
NO_MODE = "no power mode: the board's clocks were left as they were"
NO_POWER = "nobody metered the power"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: a point's minibatch from end to end, and the module's mean power meanwhile."""

    point: Point
    mode: PowerMode
    step_s: float
    power_w: float
    epochs: int
    label: Label
    power_label: Label
    source: str


def write_tables(result: Result) -> list[Path]:
    """Write the tables of a sweep and return their paths; none where no point has both a mode and power.

    Points without give no row; the record beside each table names them, and ``left_out`` all of them. Raises
    ``BadInput`` for a folder that cannot be written.
    """
    groups: dict[Path, list[Row]] = {}
    for finished in result.points:
        row = row_of(finished, result.plan.course)
        if isinstance(row, Row):
            groups.setdefault(_path(result.folder, finished.point), []).append(row)
    gone = left_out(result)
    for path, rows in groups.items():
        _write(path_of(path), json.dumps(_record(path, rows, gone, result.folder), indent=1) + "\n")
        write_table(path, *_tables(path, rows))
    return list(groups)


def left_out(result: Result) -> tuple[tuple[Point, str], ...]:
    """The points that give no row of a table, and why."""
    rows = ((one.point, row_of(one, result.plan.course)) for one in result.points)
    return (*((point, why) for point, why in rows if isinstance(why, str)), *result.skipped, *result.failed)


def row_of(finished: Finished, course: Course) -> Row | str:
    """A point's line, or why it has none."""
    mode, epochs = finished.point.mode, counted(finished.epochs, course)
    if mode is None:
        return NO_MODE
    metered = [one for one in epochs if one.energy_j is not None]
    if finished.power_label is None or not metered:
        return NO_POWER
    joules, seconds = sum(one.energy_j or 0.0 for one in metered), sum(one.e2e_s for one in metered)
    step_s = step_seconds(finished.minibatches(), epochs)
    return Row(
        finished.point,
        mode,
        step_s,
        joules / seconds,
        len(epochs),
        finished.label,
        finished.power_label,
        finished.source,
    )


def counted(epochs: Sequence[Epoch], course: Course) -> tuple[Epoch, ...]:
    """The epochs that count: without the first ones that the plan discards, unless these are all."""
    return tuple(one for one in epochs if one.epoch >= course.discard) or tuple(epochs)


def step_seconds(minibatches: Minibatches, epochs: Sequence[Epoch]) -> float:
    """Seconds of a minibatch from end to end, as ``RULE`` says.

    Means, not medians, within an epoch: workers hand their batches over in bursts, so that most wait for nothing.
    """
    means = []
    for epoch in epochs:
        step_s = minibatches.step_s[minibatches.epoch == epoch.epoch]
        means.append(float(step_s[1:].mean() if len(step_s) > 1 else step_s.mean()))
    return float(np.median(means))


def setting_of(point: Point) -> str:
    """The loader's setting in a word that a folder can be called by."""
    parts = [f"workers-{point.workers}"]
    if point.workers:
        parts.append(f"prefetch-{point.prefetch}")
    parts += [point.storage, point.cache]
    parts += [word for word, given in (("pinned", point.pinned), ("dvfs", point.dvfs)) if given]
    if point.runtime != "bare":
        parts.append(point.runtime)
    return re.sub(r"[^A-Za-z0-9._+-]", "-", "_".join(parts))


def _path(folder: Path, point: Point) -> Path:
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", point.workload)
    return (
        folder / FOLDER / f"{point.board}_{setting_of(point)}" / kind_of_board(point.board) / point.kind / f"{name}.csv"
    )


def _tables(path: Path, rows: Sequence[Row]) -> list[ProfileTable]:
    """One for every batch size, ascending; all of them make one file."""
    made = []
    for size in sorted({row.point.batch_size for row in rows}):
        own = sorted((row for row in rows if row.point.batch_size == size), key=lambda row: row.mode)
        point = own[0].point
        step_s, power_w = np.array([row.step_s for row in own]), np.array([row.power_w for row in own])
        modes = modes_of(row.mode for row in own)
        made.append(
            ProfileTable(kind_of_board(point.board), point.workload, size, modes, step_s, power_w, "", str(path))
        )
    return made


def _record(path: Path, rows: Sequence[Row], gone: Sequence[tuple[Point, str]], folder: Path) -> dict[str, Any]:
    point = rows[0].point
    label = "measured" if all(row.label == "measured" for row in rows) else "emulated"
    return {
        "label": label,
        "board": kind_of_board(point.board),
        "its_name": point.board,
        "workload": point.workload,
        "batch_sizes": sorted({row.point.batch_size for row in rows}),
        "kind": point.kind,
        "source": rows[0].source,
        "truth_label": rows[0].label,
        "power_label": rows[0].power_label,
        "method": {"rule": RULE},
        "loader": _loader(point),
        "finished": True,
        "modes": [_mode(row) for row in sorted(rows, key=lambda row: (row.point.batch_size, row.mode))],
        "left_out": [
            {"point": other.key, "reason": why} for other, why in gone if _path(folder, other) == path
        ],
    }  # fmt: skip


def _loader(point: Point) -> Mapping[str, Any]:
    named = ("workers", "prefetch", "pinned", "storage", "cache", "runtime", "dvfs")
    return {name: getattr(point, name) for name in named}


def _mode(row: Row) -> dict[str, Any]:
    mode = row.mode
    return {
        "cores": mode.cores,
        "cpu_mhz": mode.cpu_mhz,
        "gpu_mhz": mode.gpu_mhz,
        "mem_mhz": mode.mem_mhz,
        "batch_size": row.point.batch_size,
        "point": row.point.key,
        "repeat": row.point.repeat,
        "epochs": row.epochs,
        "step_s": row.step_s,
        "power_w": row.power_w,
    }


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        right = "a folder that can be written"
        raise BadInput(str(path), f"a file that cannot be written ({error.strerror})", right) from error
    finally:
        unfinished.unlink(missing_ok=True)
