"""The folder of a point: written where the run is, sent to the sweep's folder, and recognised there when finished."""

from __future__ import annotations

import io
import platform
import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.backends import launcher
from experiments.spec.user_plugins import import_plugins
from experiments.sweeps.point_plan import ExperimentPoint
from fedge.atomic_files import sync_folder
from fedge.errors import BadInput
from fedge.json_reader import read_json
from fedge.studies.task_pool import describe_package
from fedge.telemetry import run_folder

POINTS = "points"
RECORD = "point.json"
LEFT_OUT = {run_folder.REPORT, run_folder.LIVE, launcher.LOCK_FILE}
"""Parts of a run folder that a point does without: a report has 5 MB, and `fedge report` writes it at any time."""


def run_point(point: ExperimentPoint) -> bytes:
    """Run a point in a temporary folder and return that folder, packed; called in a worker process.

    The machine of a worker need not see the sweep's folder.

    Raises:
        FedgeError: If the run fails.
    """
    import_plugins(point.experiment)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedge-point-") as temp:
        folder = Path(temp) / point.name
        # The sweep's own tasks share the cores.
        alone = point.experiment.model_copy(update={"jobs": point.experiment.jobs or 1})
        launcher.start_run(alone, folder, refresh=lambda: None, written=point.experiment)
        record = {
            "identity": point.identity,
            "variant": point.variant,
            "overrides": list(point.overrides),
            "seed": point.seed,
            "fedge": describe_package(),
            "machine": platform.node(),
            "wall_s": time.monotonic() - started_s,
        }
        run_folder.write_json(folder / RECORD, record)
        return _pack_folder(folder)


def _pack_folder(folder: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for part in sorted(folder.iterdir()):
            if part.name not in LEFT_OUT:
                archive.add(part, part.name)
    return packed.getvalue()


def commit_point(sweep: Path, point: ExperimentPoint, packed: bytes) -> Path:
    """Write a point's folder and return it: it is there as a whole or not at all.

    Raises:
        OSError: If it cannot be written.
    """
    folder = sweep / POINTS / point.name
    part = folder.with_name(f".{point.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(part, filter="data")
    sync_folder(part)
    shutil.rmtree(folder, ignore_errors=True)  # without a record, see find_point
    part.rename(folder)
    sync_folder(folder.parent)
    return folder


def find_point(sweep: Path, point: ExperimentPoint) -> Path | None:
    """Return the folder of a finished point, which another variant's name may have; None if there is none."""
    for folder in sorted((sweep / POINTS).glob(f"*-{point.identity}")):
        if _read_json(folder / RECORD).get("identity") == point.identity:
            return folder
    return None


def read_point_record(folder: Path) -> dict[str, Any]:
    """Return the record of a finished point."""
    return _read_json(folder / RECORD)


def read_point_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a finished point's run."""
    return _read_json(folder / run_folder.SUMMARY)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path, "a record", finite=False)
    except BadInput:
        return {}
    return content if isinstance(content, dict) else {}
