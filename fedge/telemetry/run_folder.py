"""Layout of a run's folder, and atomic writing of its files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

RUN_YAML = "run.yaml"
SUMMARY = "summary.json"
MODEL = "model.safetensors"
REPORT = "report.html"
CHECKPOINTS = "checkpoints"
STORE = "store"


def write_text(path: Path, text: str) -> None:
    """Write a file through a temporary name and a rename; on failure neither remains."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=False) + "\n")
