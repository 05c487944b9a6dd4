"""Launches a run: check everything, make the folder, let the backend play, then write summary and report."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from experiments import checks
from experiments.schema import load_experiment
from experiments.summary import summarise
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.telemetry import run_folder
from fedge.telemetry.rows import ClientRow, RoundRow
from fedge.telemetry.store import read_rows

Refresh = Callable[[], None]


def new_folder(experiment: Experiment, out: Path | None) -> Path:
    """The run's folder, not made yet; raises ``BadInput`` when something is there already."""
    folder = out or Path("runs") / f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput("--out", str(folder), "a folder that is new or empty; `fedge resume` goes on with a run")
    return folder.resolve()


def check(experiment: Experiment) -> None:
    """Everything that can be known to be wrong before a run; raises ``BadInput``."""
    checks.check(experiment)
    from experiments.backends import strategies

    strategies.check(experiment)


def start(experiment: Experiment, folder: Path, refresh: Refresh) -> dict[str, Any]:
    """Start a checked experiment in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    dumped = yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False)
    run_folder.write_text(folder / run_folder.RUN_YAML, dumped)
    return go_on(experiment, folder, refresh)


def go_on(experiment: Experiment, folder: Path, refresh: Refresh) -> dict[str, Any]:
    """Play what is left of a run, then write ``summary.json`` and ``report.html``; returns the summary."""
    started_s = time.monotonic()
    _backend(experiment.backend)(experiment, folder, refresh)
    wall_s = time.monotonic() - started_s
    summary = summarise(experiment, read_rows(folder, RoundRow), read_rows(folder, ClientRow), wall_s)
    summary["labels"] = checks.labels(experiment)
    run_folder.write_json(folder / run_folder.SUMMARY, summary)
    from experiments.report.page import write_report

    write_report([folder], folder / run_folder.REPORT)
    return summary


def saved(folder: Path) -> Experiment:
    """The experiment of an existing run folder."""
    path = folder / run_folder.RUN_YAML
    if not path.is_file():
        raise BadInput(str(folder), f"a folder without {run_folder.RUN_YAML}", "the folder of a run")
    return load_experiment(path)


def _backend(name: str) -> Callable[[Experiment, Path, Refresh], None]:
    if name == "local":
        from experiments.backends.local import run_local

        return run_local
    from experiments.backends.sim import run_sim

    return run_sim
