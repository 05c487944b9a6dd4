"""The ``local`` backend: clients are called in this process, one after the other, on the fleet's virtual clock."""

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
    """Play the experiment in ``folder``; raises ``RunFailed`` when it cannot go on."""
    # Flower's strategies report every aggregation on the terminal, which is the launcher's.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    port = LocalPort({board.name: partial(_respond, experiment, folder, board) for board in list_boards(experiment)})
    run_experiment(experiment, port, folder, lambda _: on_round())


def _respond(experiment: Experiment, folder: Path, board: FleetBoard, question: OutgoingRequest) -> IncomingReply:
    answer, trained = emulated.answer_request(
        experiment, index=board.index, ask=question.ask, arrays=question.arrays, folder=folder
    )
    return IncomingReply(answer, trained)
