"""The ``fleet`` backend: real boards through a SuperLink that already runs on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from experiments.backends.flower_app import stage_app
from experiments.backends.run_processes import end_processes_on_exit, private_environment
from experiments.backends.run_submission import (
    open_serverapp_log,
    prepare_launch,
    stop_run_on_error,
    submit,
    write_connection,
)
from experiments.spec.user_plugins import list_plugin_files
from fedge.experiment import Experiment
from fedge.phases import begin_phase
from fedge.telemetry.run_folder import STORE
from fedge.workloads import TASK_FILE_SUFFIX

SLOW_START_S = 120.0
"""Seconds without a first row after which the run counts as slow to start: several of Flower's attempts."""
SLOW_START = "waiting for the server's program, which Flower starts anew every 30 s: is this machine too busy (uptime)?"
"""Flower 1.41 takes a start for dead that has not reported within its HEARTBEAT_DEFAULT_INTERVAL, a constant that no
setting changes, and lets it run on until it asks for its task and is refused. On a server with a load of 30, twelve
such starts slowed each other down and none succeeded; so the SuperLink's service has a CPUWeight.
"""


def run_fleet(experiment: Experiment, folder: Path, on_round: Callable[[], None]) -> None:
    """Run a checked experiment on real boards, with results in ``folder``.

    The SuperLink must run on this machine, because its ServerApp writes the run folder. If the launcher is interrupted,
    the run is stopped and its clients are cancelled. ``on_round`` is called repeatedly while the run goes on, to
    refresh a display.

    Raises:
        RunFailed: If the run cannot continue.
    """
    task = experiment.workload.task
    own_task = [Path(task)] if task.endswith(TASK_FILE_SUFFIX) else []
    plugins = (*list_plugin_files(experiment.plugins), *own_task)
    app = stage_app(folder, plugins, config={"experiment": "", "folder": ""})
    config = {"experiment": _drop_references(experiment).model_dump_json(), "folder": str(folder)}
    env = private_environment(os.environ, folder)
    launch, config_file = prepare_launch(app, folder, env, on_round, config=config)
    write_connection(launch.flwr_home, experiment.superlink)
    log = open_serverapp_log(launch)
    with end_processes_on_exit(launch), stop_run_on_error(launch, log):
        submit(launch, log=log, config_file=config_file, options=[], check=watch_start(folder))


def watch_start(folder: Path, now_s: Callable[[], float] = time.monotonic) -> Callable[[], None]:
    """Return a check that says, once, what may keep the run in ``folder`` from beginning."""
    late_s = now_s() + SLOW_START_S
    notes = [SLOW_START]

    def check() -> None:
        if notes and now_s() > late_s and not (folder / STORE).exists():
            begin_phase(notes.pop(), announce=True)

    return check


def _drop_references(experiment: Experiment) -> Experiment:
    """Return the experiment without paths of reference tables: a board does not have the files, and gets the rows."""
    fleet = tuple(entry.model_copy(update={"references": ()}) for entry in experiment.fleet)
    return experiment.model_copy(update={"fleet": fleet})
