"""Plain files of a sweep: the resolved plan, and one row per epoch of every point."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml

from fedge.characterisation.plan_reader import ResolvedPlan
from fedge.characterisation.point_measurement import EpochSummary
from fedge.characterisation.sweep_plan import CharacterisationPlan, SweepPoint, workload_as_data
from fedge.characterisation.sweep_store import FinishedPoint, SweepResult, write_file
from fedge.types import PowerMode

PLAN, EPOCHS = "plan.yaml", "epochs.csv"
MODE_COLUMNS = ("cores", "cpu_mhz", "gpu_mhz", "mem_mhz")


def write_plan(folder: Path, asked: ResolvedPlan) -> Path:
    """Write ``plan.yaml`` for people to read; a resumed sweep relies on its journal."""
    path = folder / PLAN
    text = yaml.safe_dump(_plan_data(asked), sort_keys=False, allow_unicode=True, width=120)
    header = f"# The plan {asked.plan.name!r} as it was understood, points in the order in which they are measured.\n"
    write_file(path, lambda file: file.write((header + text).encode()))
    return path


def write_epochs(result: SweepResult) -> Path:
    """Write ``epochs.csv`` with one row per epoch; columns without a sensor are empty."""
    text = io.StringIO()
    rows = [row for point in result.points for row in _epoch_rows(point, result.plan)]
    writer = csv.DictWriter(text, _epoch_columns(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path = result.folder / EPOCHS
    write_file(path, lambda file: file.write(text.getvalue().encode()))
    return path


def _plan_data(asked: ResolvedPlan) -> dict[str, Any]:
    plan = asked.plan
    return {
        "name": plan.name,
        "seed": plan.seed,
        "boards": list(plan.boards),
        "modes": {
            board: {text: _mode_text(mode) for text, mode in modes.items()} for board, modes in asked.modes.items()
        },
        "workloads": {name: workload_as_data(workload) for name, workload in plan.workloads.items()},
        "storages": {name: asdict(storage) for name, storage in plan.storages.items()},
        "course": asdict(plan.course),
        "base": dict(plan.base),
        "swept": [list(knobs) for knobs in plan.swept],
        "points": [{"key": point.key, **_point_data(point)} for point in plan.points],
    }


def _mode_text(mode: PowerMode | None) -> str:
    return "as found" if mode is None else f"{mode.cores}/{mode.cpu_mhz:g}/{mode.gpu_mhz:g}/{mode.mem_mhz:g}"


def _point_data(point: SweepPoint) -> dict[str, Any]:
    return {**point.as_data(), "mode": _mode_text(point.mode)}


def _epoch_columns() -> list[str]:
    knobs = [one.name for one in fields(SweepPoint) if one.name != "mode"]
    own = [one.name for one in fields(EpochSummary)]
    return ["key", *knobs, *MODE_COLUMNS, *own, "discarded", "label", "power_label"]


def _epoch_rows(finished: FinishedPoint, plan: CharacterisationPlan) -> list[Mapping[str, Any]]:
    point = finished.point
    mode = {name: None if point.mode is None else getattr(point.mode, name) for name in MODE_COLUMNS}
    setting = {**{name: value for name, value in point.as_data().items() if name != "mode"}, **mode, "key": point.key}
    labels = {"label": finished.label, "power_label": finished.power_label}
    return [
        {**setting, **asdict(epoch), "discarded": epoch.epoch < plan.course.discard, **labels}
        for epoch in finished.epochs
    ]
