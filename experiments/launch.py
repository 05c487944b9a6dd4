"""Launches a run: check everything, make the folder, let the backend play, then write summary and report."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from experiments import checks, memory_notes
from experiments.schema import load_experiment
from experiments.summary import ended_by_budget, summarise
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment
from fedge.telemetry import run_folder
from fedge.telemetry.locking import Lock
from fedge.telemetry.reading import read_rows
from fedge.telemetry.rows import RECORDED, ClientRow, EventRow, RoundRow

Refresh = Callable[[], None]
LOCK = ".lock"
"""The file of a run's folder that its launcher holds."""


def new_folder(experiment: Experiment, out: Path | None) -> Path:
    """The run's folder, not made yet; raises ``BadInput`` when something is there already."""
    folder = out or _unused(Path("runs") / f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput("--out", str(folder), "a folder that is new or empty; `fedge resume` goes on with a run")
    return folder.resolve()


def _unused(folder: Path) -> Path:
    """``folder``, or the first of ``folder-2``, ``folder-3`` ... where runs start in the same second."""
    names = (folder.with_name(f"{folder.name}-{i}") for i in itertools.count(2))
    return next(name for name in itertools.chain([folder], names) if not name.exists())


def check(experiment: Experiment) -> None:
    """Everything that can be known to be wrong before a run; raises ``BadInput``."""
    checks.check(experiment)
    from experiments.backends import strategies

    strategies.check(experiment)
    if experiment.exporters:
        from experiments.backends import export

        export.check(experiment)
    if experiment.backend == checks.FLEET:
        from experiments.fleet import superlink

        superlink.reach(experiment.superlink)


def start(experiment: Experiment, folder: Path, refresh: Refresh, written: Experiment | None = None) -> dict[str, Any]:
    """Start a checked experiment in a new folder; ``written`` is what is noted of it, where that is not all of it."""
    dumped = yaml.safe_dump((written or experiment).model_dump(mode="json"), sort_keys=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run_folder.write_text(folder / run_folder.RUN_YAML, dumped)
    except OSError as error:
        raise BadInput("--out", str(folder), f"a folder that can be written ({error.strerror})") from error
    return go_on(experiment, folder, refresh)


def go_on(experiment: Experiment, folder: Path, refresh: Refresh) -> dict[str, Any]:
    """Play what is left of a run, if anything, then write ``summary.json`` and ``report.html``; returns the summary.

    Raises ``BadInput`` while another process does that.
    """
    lock = Lock(folder / LOCK, "a run")
    try:
        return _gone_on(experiment, folder, refresh)
    finally:
        lock.release()


def _gone_on(experiment: Experiment, folder: Path, refresh: Refresh) -> dict[str, Any]:
    earlier_s = _wall_s(folder)
    started_s = time.monotonic()
    if not _finished(experiment, folder):
        _backend(experiment.backend)(experiment, folder, refresh)
        earlier_s += time.monotonic() - started_s
    rounds, events = read_rows(folder, RoundRow), read_rows(folder, EventRow)
    ended = ended_by_budget(rounds, events)
    if ended and not rounds:
        raise RunFailed(f"no round was played: {ended}; raise policy.budget_j in {run_folder.RUN_YAML}")
    summary = summarise(experiment, rounds, read_rows(folder, ClientRow), earlier_s, events)
    summary["labels"] = checks.labels(experiment, {row.board for row in events if row.kind == RECORDED and row.board})
    run_folder.write_json(folder / run_folder.SUMMARY, summary)
    memory_notes.note(folder, summary)
    from experiments.report.page import write_report

    write_report([folder], folder / run_folder.REPORT)
    if experiment.exporters:
        from experiments.backends import export

        export.hand_over(experiment, folder)
    return summary


def saved(folder: Path) -> Experiment:
    """The experiment of an existing run folder."""
    path = folder / run_folder.RUN_YAML
    if not path.is_file():
        got = f"a folder without {run_folder.RUN_YAML}" if folder.is_dir() else "no such folder"
        raise BadInput(str(folder), got, "the folder of a run")
    return load_experiment(path)


def _finished(experiment: Experiment, folder: Path) -> bool:
    """Every round was played, or as many as this energy budget allowed; a backend writes the model last of all."""
    if not (folder / run_folder.MODEL).is_file():
        return False
    rounds = read_rows(folder, RoundRow)
    spent = ended_by_budget(rounds, read_rows(folder, EventRow)) is not None
    return len(rounds) >= experiment.rounds or (spent and _told(folder).get("budget_j") == experiment.policy.budget_j)


def _wall_s(folder: Path) -> float:
    """Real seconds that the run took until now, as far as a summary knows."""
    try:
        return float(_told(folder)["wall_s"])
    except (ValueError, KeyError, TypeError):
        return 0.0


def _told(folder: Path) -> dict[str, Any]:
    """The summary as it was written last; empty where there is none that can be read."""
    try:
        told = json.loads((folder / run_folder.SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _backend(name: str) -> Callable[[Experiment, Path, Refresh], None]:
    if name == "local":
        from experiments.backends.local import run_local

        return run_local
    if name == "fleet":
        from experiments.backends.fleet import run_fleet

        return run_fleet
    from experiments.backends.sim import run_sim

    return run_sim
