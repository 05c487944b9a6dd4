"""The ``sim`` backend: Flower's simulation runtime on Ray, on a SuperLink that belongs to this run alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.backends.flower_app import stage_app
from experiments.backends.simulation import simulate
from fedge.experiment import Experiment, list_boards


def run_sim(experiment: Experiment, folder: Path, on_round: Callable[[], None]) -> None:
    """Play the experiment in ``folder``; raises ``RunFailed`` when it cannot go on."""
    plugins = [Path(plugin) for plugin in experiment.plugins]
    app = stage_app(folder, plugins, config={"experiment": "", "folder": ""})
    config = {"experiment": experiment.model_dump_json(), "folder": str(folder)}
    simulate(app, folder, config, len(list_boards(experiment)), on_poll=on_round)
