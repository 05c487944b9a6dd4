"""The ``local`` backend: clients are called in this process and its workers, on the simulated clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from experiments.backends.client_workers import open_clients
from fedge.experiment import Experiment
from server.run import run_experiment
from server.transport.client_port import LocalPort


def run_local(experiment: Experiment, folder: Path, on_round: Callable[[], None]) -> None:
    """Run a checked experiment in this process, with results in ``folder``.

    Raises:
        RunFailed: If the run cannot continue.
    """
    # Flower's strategies log every aggregation to the terminal, which belongs to the launcher.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with open_clients(experiment, folder) as clients:
        run_experiment(experiment, LocalPort(clients.respond), folder, lambda _: on_round())
