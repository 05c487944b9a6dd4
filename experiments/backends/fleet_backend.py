"""The ``fleet`` backend: real boards through a SuperLink that already runs on this machine."""

from __future__ import annotations

import os
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
from fedge.workloads import TASK_FILE_SUFFIX


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
        submit(launch, log=log, config_file=config_file, options=[], check=lambda: None)


def _drop_references(experiment: Experiment) -> Experiment:
    """Return the experiment without paths of reference tables: a board does not have the files, and gets the rows."""
    fleet = tuple(entry.model_copy(update={"references": ()}) for entry in experiment.fleet)
    return experiment.model_copy(update={"fleet": fleet})
