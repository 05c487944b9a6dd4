"""Launches a run: checks it, creates its folder, runs the backend, then writes summary and report."""

from __future__ import annotations

import itertools
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from experiments.backends import run_knowledge
from experiments.report.run import run_summary
from experiments.report.run.run_names import describe_changes
from experiments.report.run.run_summary import find_budget_end, summarise_run
from experiments.report.run.run_tables import summarize_knowledge
from experiments.spec import experiment_checks, resource_checks, user_plugins
from experiments.spec.experiment_loader import load_experiment
from fedge.atomic_files import FileLock, write_text
from fedge.errors import BadInput, RunFailed, describe_error
from fedge.experiment import WORD, Experiment
from fedge.phases import begin_phase
from fedge.studies.ray_session import ADDRESS_VARIABLE
from fedge.telemetry import run_folder
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow

logger = logging.getLogger(__name__)

Refresh = Callable[[], None]
Backend = Callable[[Experiment, Path, Refresh], None]
LOCK_FILE = ".lock"
"""Lock file in the run folder, held by the launcher."""


def choose_folder(
    experiment: Experiment,
    out: Path | None,
    *,
    name: str | None = None,
    changes: Iterable[tuple[str, Any]] = (),
) -> Path:
    """Return the path of the run folder without creating it.

    Args:
        out: The path; None stands for a folder in ``RUNS``.
        name: The folder's name in ``RUNS``; None makes one of the experiment's name, the changes and the time.
        changes: The keys of the experiment's file that were overridden, with their values.

    Raises:
        BadInput: If the path already exists, the name is invalid, or both are given.
    """
    if name is not None:
        if out is not None:
            right = f"one of them: a run with a name is in {run_folder.RUNS}/NAME"
            raise BadInput("--name", f"{name}, with --folder", right)
        _check_word("--name", name)
        out = run_folder.RUNS / name
    made = "-".join((experiment.name, *describe_changes(changes), time.strftime("%Y%m%d-%H%M%S")))
    folder = out or _find_unused(run_folder.RUNS / made)
    if folder.exists() and not (folder.is_dir() and _is_free(folder)):
        raise BadInput("--folder", str(folder), "a folder that is new or empty; `fedge resume` goes on with a run")
    return folder.resolve()


def _is_free(folder: Path) -> bool:
    """Return whether a folder is empty, or has nothing but what a start that was killed before ``run.yaml`` leaves."""
    names = {path.name for path in folder.iterdir()}
    written = {name for name in names if not name.startswith(".")} - run_knowledge.WRITTEN_BEFORE_RUN
    return not names or (LOCK_FILE in names and not written)


def add_tags(experiment: Experiment, tags: Iterable[str]) -> Experiment:
    """Return the experiment with further tags; raises ``BadInput`` if one of them is not a word."""
    for tag in (given := tuple(tags)):
        _check_word("--tag", tag)
    return experiment.model_copy(update={"tags": tuple(dict.fromkeys((*experiment.tags, *given)))})


def _check_word(where: str, text: str) -> None:
    if re.fullmatch(WORD, text) is None:
        raise BadInput(where, repr(text), "letters, digits, '.', '_' and '-', beginning with a letter or digit")


def _find_unused(folder: Path) -> Path:
    """Return ``folder``, or the first unused of ``folder-2``, ``folder-3`` ... for runs started in the same second."""
    names = (folder.with_name(f"{folder.name}-{i}") for i in itertools.count(2))
    return next(name for name in itertools.chain([folder], names) if not name.exists())


def start_local_workers(experiment: Experiment) -> None:
    """Start the ``local`` backend's fork server, so that it imports torch beside this process."""
    if experiment.backend == "local":
        from experiments.backends import local_backend

        local_backend.start_fork_server(experiment)


def check_runnable(experiment: Experiment) -> None:
    """Check everything about an experiment that can be known before it runs.

    Raises:
        BadInput: For the first error; on the fleet backend also if the SuperLink is not reachable.
    """
    experiment_checks.check_experiment(experiment)
    elsewhere = experiment.backend == "sim" and os.environ.get(ADDRESS_VARIABLE, "local") != "local"
    resource_checks.check_gpus(experiment, elsewhere)
    from experiments.backends import strategy_check

    strategy_check.check_strategy(experiment)
    if experiment.plugins and experiment.backend != "local":
        from experiments.backends import flower_app

        flower_app.check_plugins(user_plugins.list_plugin_files(experiment.plugins))
    if experiment.exporters:
        from server.exporters import exporting_tables

        exporting_tables.check_exporters(experiment.exporters)
    if experiment.backend == experiment_checks.FLEET_BACKEND:
        from experiments.fleet import superlink_check

        superlink_check.check_reachable(experiment.superlink)


def start_run(
    experiment: Experiment,
    folder: Path,
    refresh: Refresh,
    written: Experiment | None = None,
    backend: Backend | None = None,
) -> dict[str, Any]:
    """Start a checked experiment in a new folder and return the run's summary.

    ``refresh`` is called repeatedly while the run goes on. ``written`` is stored in the folder if it differs from the
    experiment that runs. ``backend`` replaces the experiment's own.

    Raises:
        BadInput: If the folder cannot be written.
        RunFailed: If the run cannot continue.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _hold_folder(folder):
            if (folder / run_folder.RUN_YAML).exists():
                raise BadInput("--folder", f"{folder}, which another run has taken just now", "to start it again")
            recalled = run_knowledge.recall_for_run(
                experiment, folder, name=secrets.token_hex(6), now=datetime.now(UTC)
            )
            fleet = run_knowledge.make_relative(recalled.fleet, folder)
            stored = (written or experiment).model_copy(update={"fleet": fleet})
            write_text(folder / run_folder.RUN_YAML, yaml.safe_dump(stored.model_dump(mode="json"), sort_keys=False))
    except OSError as error:
        raise BadInput("--folder", str(folder), f"a folder that can be written ({error.strerror})") from error
    return continue_run(recalled, folder, refresh, backend)


@contextmanager
def _hold_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from writing a run folder; raises ``BadInput`` if one is."""
    lock = FileLock(folder / LOCK_FILE, "a run")
    try:
        yield
    finally:
        lock.release()


def continue_run(
    experiment: Experiment, folder: Path, refresh: Refresh, backend: Backend | None = None
) -> dict[str, Any]:
    """Run the remaining rounds, if any, then write ``summary.json`` and ``report.html``; return the run's summary.

    ``refresh`` is called repeatedly while the run goes on. ``backend`` replaces the experiment's own.

    Raises:
        BadInput: If another process holds the run folder.
        RunFailed: If the run cannot continue.
    """
    with _hold_folder(folder):
        return _continue_locked(experiment, folder, refresh, backend)


def _continue_locked(experiment: Experiment, folder: Path, refresh: Refresh, backend: Backend | None) -> dict[str, Any]:
    begun = (folder / run_folder.CHECKPOINTS).is_dir()
    earlier_s = read_wall_s(folder) if begun else 0.0  # unknown if that part of the run was interrupted
    started_s = time.monotonic()
    if not _is_finished(experiment, folder):
        begin_phase("starting the clients")
        try:
            (backend or _load_backend(experiment.backend))(experiment, folder, refresh)
        finally:
            run_knowledge.give_back(experiment, folder)
        earlier_s = None if earlier_s is None else earlier_s + time.monotonic() - started_s
    begin_phase("writing the report")
    rounds, events = read_rows(folder, RoundRow), read_rows(folder, EventRow)
    ended = find_budget_end(rounds, events)
    if ended and not rounds:
        raise RunFailed(f"no round was run: {ended}; raise policy.budget_j in {run_folder.RUN_YAML}")
    summary = summarise_rows(experiment, folder, earlier_s)
    summary["labels"] = run_summary.label_boards(experiment, folder)
    summary["knowledge"] = summarize_knowledge(experiment, folder, read_rows(folder, ClientRow))
    from experiments.report.run.run_page import write_report

    try:
        run_folder.write_json(folder / run_folder.SUMMARY, summary)
        run_summary.write_memory_notes(folder, summary)
        write_report([folder], folder / run_folder.REPORT)
    except OSError as error:
        reason = error.strerror or error
        raise RunFailed(f"the rounds are done and kept, but not summary and report: {reason}") from error
    if experiment.exporters:
        _hand_over(experiment, folder)
    return summary


def summarise_rows(experiment: Experiment, folder: Path, wall_s: float | None = None) -> dict[str, Any]:
    """Return the figures of a run from its rows so far; its wall time is that of its last summary by default."""
    return summarise_run(
        experiment,
        rounds=read_rows(folder, RoundRow),
        clients=read_rows(folder, ClientRow),
        wall_s=read_wall_s(folder) if wall_s is None else wall_s,
        events=read_rows(folder, EventRow),
    )


def _hand_over(experiment: Experiment, folder: Path) -> None:
    """Give report and summary to the exporters that keep files; an exporter's error is logged, the run goes on."""
    from server.exporters import exporting_tables

    for name, make in exporting_tables.build_factories(experiment, folder).items():
        try:
            exporter = make()
            keep = getattr(exporter, "keep", None)
            if keep is not None:
                keep([folder / run_folder.REPORT, folder / run_folder.SUMMARY])
        except Exception as error:  # noqa: BLE001 -- others' code, and others' servers
            reason = describe_error(error)
            logger.warning("exporter %s did not take the report: %s", name, reason)


def load_saved_experiment(folder: Path) -> Experiment:
    """Load the experiment of an existing run folder.

    Raises:
        BadInput: If the folder is not a run folder.
    """
    path = folder / run_folder.RUN_YAML
    if not path.is_file():
        raise run_folder.build_absence_error(folder)
    return load_experiment(path)


def _is_finished(experiment: Experiment, folder: Path) -> bool:
    """Return whether all rounds are done, or as many as this energy budget allows; the model file is written last."""
    if not (folder / run_folder.MODEL).is_file():
        return False
    rounds = read_rows(folder, RoundRow)
    spent = find_budget_end(rounds, read_rows(folder, EventRow)) is not None
    return len(rounds) >= experiment.rounds or (
        spent and _read_summary(folder).get("budget_j") == experiment.policy.budget_j
    )


def read_wall_s(folder: Path) -> float | None:
    """Return the wall time of the run so far in seconds from its last summary; None without one."""
    wall_s: float | None = _read_summary(folder).get("wall_s")
    return wall_s


def _read_summary(folder: Path) -> dict[str, Any]:
    """Return the last summary, or an empty one if none can be read."""
    try:
        return run_folder.read_summary(folder)
    except BadInput:
        return {}


def _load_backend(name: str) -> Backend:
    if name == "local":
        from experiments.backends.local_backend import run_local

        return run_local
    if name == "fleet":
        from experiments.backends.fleet_backend import run_fleet

        return run_fleet
    from experiments.backends.sim_backend import run_sim

    return run_sim
