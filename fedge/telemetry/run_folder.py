"""Layout of a run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedge.atomic_files import write_text

RUN_YAML = "run.yaml"
SUMMARY = "summary.json"
MODEL = "model.safetensors"
REPORT = "report.html"
CHECKPOINTS = "checkpoints"
STORE = "store"
LIVE = "live"
"""Folder with the progress files of emulated boards."""


def write_json(path: Path, value: Any) -> None:
    """Replace a file by indented JSON."""
    write_text(path, json.dumps(value, indent=2, sort_keys=False) + "\n")
