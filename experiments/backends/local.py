"""The ``local`` backend: clients are called in this process, one after the other, on the fleet's virtual clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedge.experiment import Board, Experiment, boards
from fedge.fleetsim import client
from server.port import LocalPort, Question, Reply
from server.runs import play


def run_local(experiment: Experiment, folder: Path, on_round: Callable[[], None]) -> None:
    """Play the experiment in ``folder``; raises ``RunFailed`` when it cannot go on."""
    # Flower's strategies report every aggregation on the terminal, which is the launcher's.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    port = LocalPort({board.name: partial(_respond, experiment, folder, board) for board in boards(experiment)})
    play(experiment, port, folder, lambda _: on_round())


def _respond(experiment: Experiment, folder: Path, board: Board, question: Question) -> Reply:
    answer, trained = client.answer(experiment, board.index, question.ask, question.arrays, folder)
    return Reply(answer, trained)
