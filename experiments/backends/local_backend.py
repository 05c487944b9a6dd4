"""The ``local`` backend: clients are called one after the other in this process, on the simulated clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedge.client import emulated
from fedge.experiment import Experiment, FleetBoard, list_boards
from server.run import run_experiment
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest


def run_local(experiment: Experiment, folder: Path, on_round: Callable[[], None]) -> None:
    """Run a checked experiment in this process, with results in ``folder``.

    Raises:
        RunFailed: If the run cannot continue.
    """
    # Flower's strategies log every aggregation to the terminal, which belongs to the launcher.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    port = LocalPort({board.name: partial(_respond, experiment, folder, board) for board in list_boards(experiment)})
    run_experiment(experiment, port, folder, lambda _: on_round())


def _respond(experiment: Experiment, folder: Path, board: FleetBoard, question: OutgoingRequest) -> IncomingReply:
    answer, trained = emulated.answer_request(
        experiment, index=board.index, request=question.ask, arrays=question.arrays, folder=folder
    )
    return IncomingReply(answer, trained)
