"""The ``sim`` backend: Flower's simulation runtime on Ray, with a private SuperLink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.backends.flower_app import stage_app
from experiments.backends.simulation import simulate
from experiments.spec.user_plugins import list_plugin_files
from fedge.experiment import Experiment, list_boards


def run_sim(experiment: Experiment, folder: Path, on_round: Callable[[], None]) -> None:
    """Run a checked experiment in Flower's simulation, with results in ``folder``.

    ``on_round`` is called repeatedly while the run goes on.

    Raises:
        RunFailed: If the run cannot continue.
    """
    app = stage_app(folder, list_plugin_files(experiment.plugins), config={"experiment": "", "folder": ""})
    config = {"experiment": experiment.model_dump_json(), "folder": str(folder)}
    num_gpus = experiment.backend_options.num_gpus
    simulate(app, folder, config, len(list_boards(experiment)), num_gpus=num_gpus, on_poll=on_round)
