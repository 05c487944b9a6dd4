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
from fedge.characterisation.point_knobs import MODE_KNOBS, format_mode
from fedge.characterisation.point_measurement import EpochSummary
from fedge.characterisation.sweep_plan import CharacterisationPlan, SweepPoint, plan_as_data
from fedge.characterisation.sweep_store import FinishedPoint, SweepResult, replace_synced
from fedge.types import PowerMode

PLAN_FILE, EPOCHS_FILE, FINDINGS_FILE = "plan.yaml", "epochs.csv", "findings.json"


def write_plan(folder: Path, resolved: ResolvedPlan) -> Path:
    """Write ``plan.yaml`` for people to read; a resumed sweep relies on its journal."""
    path = folder / PLAN_FILE
    text = yaml.safe_dump(_plan_data(resolved), sort_keys=False, allow_unicode=True, width=120)
    header = f"# The plan {resolved.plan.name!r} as resolved, with the points in the order of measurement.\n"
    with replace_synced(path) as file:
        file.write_text(header + text, encoding="utf-8")
    return path


def write_epochs(result: SweepResult) -> Path:
    """Write ``epochs.csv`` with one row per epoch; columns without a sensor are empty."""
    text = io.StringIO()
    rows = [row for point in result.points for row in _epoch_rows(point, result.plan)]
    writer = csv.DictWriter(text, _epoch_columns(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path = result.folder / EPOCHS_FILE
    with replace_synced(path) as file:
        file.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


def _plan_data(resolved: ResolvedPlan) -> dict[str, Any]:
    modes = {board: {text: _mode_text(mode) for text, mode in own.items()} for board, own in resolved.modes.items()}
    points = [{"key": point.key, **point.as_data(), "mode": _mode_text(point.mode)} for point in resolved.plan.points]
    return {**plan_as_data(resolved.plan), "modes": modes, "points": points}


def _mode_text(mode: PowerMode | None) -> str:
    return "as found" if mode is None else format_mode(mode)


def _epoch_columns() -> list[str]:
    knobs = [one.name for one in fields(SweepPoint) if one.name != "mode"]
    own = [one.name for one in fields(EpochSummary)]
    return ["key", *knobs, *MODE_KNOBS, *own, "discarded", "label", "power_label"]


def _epoch_rows(finished: FinishedPoint, plan: CharacterisationPlan) -> list[Mapping[str, Any]]:
    point = finished.point
    mode = {name: None if point.mode is None else getattr(point.mode, name) for name in MODE_KNOBS}
    setting = {**{name: value for name, value in point.as_data().items() if name != "mode"}, **mode, "key": point.key}
    labels = {"label": finished.label, "power_label": finished.power_label}
    return [
        {**setting, **asdict(epoch), "discarded": epoch.epoch < plan.course.discard, **labels}
        for epoch in finished.epochs
    ]
