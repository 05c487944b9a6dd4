"""The board at hand on the bench: measured while its own worker trains on images made on the spot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from fedge.devices.here import board_here
from fedge.errors import BadInput
from fedge.modes import grid
from fedge.node.settings import NodeSettings
from fedge.node.training import WorkerTraining, load
from fedge.profiling.bench import Bench
from fedge.profiling.real import board_bench
from fedge.types import TrainOptions, Workload
from fedge.worker import networks
from fedge.worker.client import Client
from fedge.worker.refusal import Refusal

COURSE_STEPS = 20_000
"""A training is begun anew after so many minibatches: the worker draws the order of all of them beforehand."""
LEARNING_RATE = 1e-3
"""Small, so that the network's numbers stay finite over a long campaign; a minibatch's time does not depend on it."""


@contextmanager
def bench_here(settings: NodeSettings, workload: Workload, seed: int) -> Iterator[Bench]:
    """The bench of this board, held for as long as the block lasts.

    Raises ``BadInput`` for a workload without a network here, ``BoardError`` for a daemon or worker that fails.
    """
    try:
        source = networks.synthetic(workload.name)
    except Refusal as error:
        raise BadInput("--workload", error.got, error.right) from error
    with closing(Client(settings.worker_socket)) as worker, board_here(settings.place) as here:
        load(worker, {"builtin": workload.name}, source)
        status = worker.status()
        software = {name: str(status[name]) for name in ("python", "torch")} | {"l4t": str(here.identity.l4t)}
        with here.board.held():
            yield board_bench(
                here.board,
                workload,
                Work(worker, workload.batch_size, seed).advance,
                lambda: here.sensor.read().hottest_c,
                candidates=grid(here.board.spec),
                seed=seed,
                software=software,
            )


class Work:
    """Minibatches without an end, done by the worker from a fresh model."""

    def __init__(self, worker: Client, batch_size: int, seed: int) -> None:
        self._worker, self._batch_size, self._seed = worker, batch_size, seed
        self._training: WorkerTraining | None = None
        self._left = 0

    def advance(self, steps: int) -> None:
        """Do the next ``steps`` minibatches."""
        if self._training is None or self._left < steps:
            course = max(COURSE_STEPS, steps)
            options = TrainOptions(course, self._batch_size, LEARNING_RATE)
            self._training, self._left = WorkerTraining(self._worker, {}, None, self._seed, options), course
        self._training.advance(steps)
        self._left -= steps
