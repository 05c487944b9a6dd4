"""Export of a sweep's points as mode tables, which predictors, calibration and emulated boards read.

There is one table per board, kind, workload and loader setting, since a table's minibatch is measured from end to end,
including its stall. Tables are in ``tables/<board>_<setting>/<device>/<kind>/<workload>.csv``, a path from which
readers take the names. Next to each table is its record, as with tables of ``fedge profile``.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedge.characterisation.plan_reader import ResolvedPlan
from fedge.characterisation.point_measurement import (
    EpochSummary,
    MinibatchTimes,
    PointMeasurement,
    select_counted_epochs,
)
from fedge.characterisation.profiling_journal import profiling_record_path
from fedge.characterisation.sweep_plan import (
    MODE_KNOBS,
    MeasurementSchedule,
    SweepPoint,
    format_mode,
    get_knob_value,
    kind_of_board,
    plan_as_data,
)
from fedge.characterisation.sweep_store import SweepResult, replace_synced
from fedge.devices.tables.mode_table import write_mode_table
from fedge.modes import stack_modes
from fedge.types import PowerMode, ProfileTable, weakest_label

TABLES_FOLDER = "tables"
MEAN_RULE = (
    "time: of every epoch that counts the mean minibatch from end to end, without the epoch's first, which starts the "
    "loader; the median of the epochs. power: the joules of these epochs over their seconds."
)
LOADER_KNOBS = ("workers", "prefetch", "pinned", "storage", "cache", "runtime", "dvfs")
NO_MODE = "no power mode: the board's clocks were left as they were"
NO_POWER = "nobody metered the power"


@dataclass(frozen=True, slots=True)
class SweepTableRow:
    """A row of a table: seconds per minibatch from end to end, and mean power of the module over the counted epochs."""

    finished: PointMeasurement
    mode: PowerMode
    step_s: float
    power_w: float
    epochs: int

    @property
    def point(self) -> SweepPoint:
        return self.finished.point


def write_tables(result: SweepResult) -> list[Path]:
    """Write the tables of a sweep and return their paths.

    Points without a mode or without power are left out; the record next to each table lists them, and
    ``list_omitted_points`` lists all of them.

    Raises:
        BadInput: The folder cannot be written.
    """
    groups: dict[Path, list[SweepTableRow]] = {}
    rows, omitted = _split_points(result)
    for row in rows:
        groups.setdefault(_table_path(result.folder, row.point), []).append(row)
    for path, own in groups.items():
        with replace_synced(profiling_record_path(path)) as file:
            file.write_text(json.dumps(_build_record(path, own, omitted, result.folder), indent=1) + "\n", "utf-8")
        write_mode_table(path, *_build_tables(path, own))
    return list(groups)


def list_omitted_points(result: SweepResult) -> tuple[tuple[SweepPoint, str], ...]:
    """Return the points that are in no table, each with the reason."""
    return _split_points(result)[1]


def _split_points(result: SweepResult) -> tuple[list[SweepTableRow], tuple[tuple[SweepPoint, str], ...]]:
    """Return the rows of the points that have one, and the other points with the reason."""
    found = [(one.point, to_table_row(one, result.plan.course)) for one in result.points]
    omitted = ((point, why) for point, why in found if isinstance(why, str))
    return [row for _, row in found if not isinstance(row, str)], (*omitted, *result.skipped, *result.failed)


def to_table_row(finished: PointMeasurement, course: MeasurementSchedule) -> SweepTableRow | str:
    """Return a point's row, or the reason why it has none."""
    mode, epochs = finished.point.mode, select_counted_epochs(finished.epochs, course)
    if mode is None:
        return NO_MODE
    metered = [one for one in epochs if one.energy_j is not None]
    if finished.power_label is None or not metered:
        return NO_POWER
    joules, seconds = sum(one.energy_j or 0.0 for one in metered), sum(one.e2e_s for one in metered)
    step_s = mean_step_s(finished.read_minibatches(), epochs)
    return SweepTableRow(finished, mode, step_s=step_s, power_w=joules / seconds, epochs=len(epochs))


def mean_step_s(minibatches: MinibatchTimes, epochs: Sequence[EpochSummary]) -> float:
    """Return the seconds per minibatch from end to end, as ``MEAN_RULE`` defines.

    Within an epoch this is a mean, not a median: workers deliver batches in bursts, so that most do not stall.
    """
    means = []
    for epoch in epochs:
        step_s = minibatches.step_s[minibatches.epoch == epoch.epoch]
        means.append(float(step_s[1:].mean() if len(step_s) > 1 else step_s.mean()))
    return float(np.median(means))


def loader_folder_name(point: SweepPoint) -> str:
    """Return the loader setting as a name that is valid for a folder."""
    parts = [f"workers-{point.workers}"]
    if point.workers:
        parts.append(f"prefetch-{point.prefetch}")
    parts += [point.storage, point.cache]
    parts += [word for word, given in (("pinned", point.pinned), ("dvfs", point.dvfs)) if given]
    if point.runtime != "bare":
        parts.append(point.runtime)
    return re.sub(r"[^A-Za-z0-9._+-]", "-", "_".join(parts))


def _table_path(folder: Path, point: SweepPoint) -> Path:
    name, setting = re.sub(r"[^A-Za-z0-9._+-]", "-", point.workload), f"{point.board}_{loader_folder_name(point)}"
    return folder / TABLES_FOLDER / setting / kind_of_board(point.board) / point.kind / f"{name}.csv"


def _build_tables(path: Path, rows: Sequence[SweepTableRow]) -> list[ProfileTable]:
    """Return one table per batch size, ascending; all of them make one file."""
    made = []
    for size in sorted({row.point.batch_size for row in rows}):
        own = sorted((row for row in rows if row.point.batch_size == size), key=lambda row: row.mode)
        point, labels = own[0].point, [(row.finished.label, row.finished.power_label) for row in own]
        made.append(
            ProfileTable(
                kind_of_board(point.board),
                workload=point.workload,
                batch_size=size,
                modes=stack_modes(row.mode for row in own),
                step_s=np.array([row.step_s for row in own]),
                power_w=np.array([row.power_w for row in own]),
                sha256="",
                path=str(path),
                label=weakest_label(label for pair in labels for label in pair if label),
            )
        )
    return made


def _build_record(
    path: Path, rows: Sequence[SweepTableRow], omitted: Sequence[tuple[SweepPoint, str]], folder: Path
) -> dict[str, Any]:
    point = rows[0].point
    return {
        "label": weakest_label(row.finished.label for row in rows),
        "board": kind_of_board(point.board),
        "its_name": point.board,
        "workload": point.workload,
        "batch_sizes": sorted({row.point.batch_size for row in rows}),
        "kind": point.kind,
        "source": rows[0].finished.source,
        "power_label": rows[0].finished.power_label,
        "method": {"rule": MEAN_RULE},
        "loader": {name: getattr(point, name) for name in LOADER_KNOBS},
        "finished": True,
        "modes": [
            asdict(row.mode)
            | {"batch_size": row.point.batch_size, "point": row.point.key, "repeat": row.point.repeat}
            | {name: getattr(row, name) for name in ("epochs", "step_s", "power_w")}
            for row in sorted(rows, key=lambda row: (row.point.batch_size, row.mode))
        ],
        "left_out": [
            {"point": other.key, "reason": why} for other, why in omitted if _table_path(folder, other) == path
        ],
    }  # fmt: skip


PLAN_FILE, EPOCHS_FILE, FINDINGS_FILE = "plan.yaml", "epochs.csv", "findings.json"


def write_plan(folder: Path, resolved: ResolvedPlan) -> Path:
    """Write ``plan.yaml`` for people to read; a resumed sweep relies on its journal."""
    plan = resolved.plan
    modes = {board: {text: _mode_text(mode) for text, mode in own.items()} for board, own in resolved.modes.items()}
    points = [{"key": point.key, **point.as_data(), "mode": _mode_text(point.mode)} for point in plan.points]
    data = {**plan_as_data(plan), "modes": modes, "points": points}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    header = f"# The plan {plan.name!r} as resolved, with the points in the order of measurement.\n"
    return _write_text(folder / PLAN_FILE, header + text)


def write_epochs(result: SweepResult) -> Path:
    """Write ``epochs.csv`` with one row per epoch; columns without a sensor are empty."""
    text, knobs = io.StringIO(), [one.name for one in fields(SweepPoint) if one.name != "mode"]
    own = [one.name for one in fields(EpochSummary)]
    columns = ["key", *knobs, *MODE_KNOBS, *own, "discarded", "label", "power_label"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for finished in result.points:
        about = {name: get_knob_value(finished.point, name) for name in (*knobs, *MODE_KNOBS)}
        about |= {"key": finished.point.key, "label": finished.label, "power_label": finished.power_label}
        for epoch in finished.epochs:
            writer.writerow({**about, **asdict(epoch), "discarded": epoch.epoch < result.plan.course.discard})
    return _write_text(result.folder / EPOCHS_FILE, text.getvalue())


def _write_text(path: Path, text: str) -> Path:
    with replace_synced(path) as file:
        file.write_text(text, encoding="utf-8", newline="")
    return path


def _mode_text(mode: PowerMode | None) -> str:
    return "as found" if mode is None else format_mode(mode)
