"""Layout of a run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedge.atomic_files import write_text
from fedge.errors import BadInput
from fedge.json_reader import read_json

RUNS = Path("runs")
"""Folder of runs whose path is not given, in the working directory."""
RUN_YAML = "run.yaml"
SUMMARY = "summary.json"
MODEL = "model.safetensors"
REPORT = "report.html"
CHECKPOINTS = "checkpoints"
STORE = "store"
LIVE = "live"
"""Folder with the progress files of emulated boards."""


def describe_absence(folder: Path) -> str:
    """Return what is found where a run's folder is asked for."""
    if folder.is_dir():
        return f"a folder without {RUN_YAML}"
    return "a file" if folder.exists() else "no such folder"


def build_absence_error(folder: Path) -> BadInput:
    """Return the error for what is no run's folder, with a run within it, or the command for an experiment's file."""
    inner = next((path.parent for place in ("*", "*/*") for path in sorted(folder.glob(f"{place}/{RUN_YAML}"))), None)
    right = "the folder of a run"
    if inner is not None:
        right = f"the folder of a run, such as {inner}"
    elif folder.is_file() and folder.suffix in {".yaml", ".yml"}:
        right = f"the folder of a run; `fedge run {folder}` makes one, and a sweep compares experiments (`fedge sweep`)"
    return BadInput(str(folder), describe_absence(folder), right)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary in a run's folder, without figures if there is none; ``labels`` and ``knowledge`` are there.

    Raises:
        BadInput: It cannot be read or is no JSON.
    """
    path = folder / SUMMARY
    content = read_json(path, "the summary that the run wrote", finite=False) if path.is_file() else {}
    summary = content if isinstance(content, dict) else {}
    parts = {name: summary.get(name) for name in ("labels", "knowledge")}
    wall_s = summary.get("wall_s")
    return {
        **summary,
        **{name: part if isinstance(part, dict) else {} for name, part in parts.items()},
        "wall_s": wall_s if isinstance(wall_s, int | float) else None,
    }


def write_json(path: Path, value: Any) -> None:
    """Replace a file by indented JSON."""
    write_text(path, json.dumps(value, indent=2, sort_keys=False) + "\n")
