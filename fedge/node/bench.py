"""The board at hand on the bench: measured while its own worker trains on images made on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from fedge.devices.here import board_here
from fedge.errors import BadInput, WorkerFailed
from fedge.modes import grid
from fedge.node.settings import NodeSettings
from fedge.node.training import STRETCH_LIMIT_S, WorkerTraining, failing, load
from fedge.profiling.bench import Bench
from fedge.profiling.real import board_bench
from fedge.types import TrainOptions, Workload
from fedge.worker import networks
from fedge.worker.client import Client
from fedge.worker.refusal import Refusal

COURSE_STEPS = 20_000
"""Between two modes a training of more minibatches is begun anew: the worker keeps loss and accuracy of each."""
ENDLESS_STEPS = 10**9
"""So many are announced for every training: none ends in the middle of a mode."""
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

    def ready() -> object:
        return load(settings.worker_socket, {"builtin": workload.name}, source)

    with closing(Client(settings.worker_socket, STRETCH_LIMIT_S)) as worker, board_here(settings.place) as here:
        ready()
        with failing():
            status = worker.status()
        software = {name: str(status[name]) for name in ("python", "torch")} | {"l4t": str(here.identity.l4t)}
        work = Work(worker, ready, workload.batch_size, seed)
        with here.board.held():
            bench = board_bench(
                here.board,
                workload,
                work.advance,
                here.hottest_c,
                prepare=work.prepare,
                candidates=grid(here.board.spec),
                seed=seed,
                software=software,
            )
            yield bench if settings.root == "/" else _recorded(bench, settings.root)


def _recorded(bench: Bench, root: str) -> Bench:
    """Of a recorded folder nothing is measured: its power is what was written into it."""
    return replace(bench, emulated=True, label="estimated", source=f"a recorded folder ({root}), no board")


class Work:
    """Minibatches without an end, done by the worker from a fresh model; ``ready`` has it load what it needs."""

    def __init__(self, worker: Client, ready: Callable[[], object], batch_size: int, seed: int) -> None:
        self._worker, self._ready, self._seed = worker, ready, seed
        self._options = TrainOptions(ENDLESS_STEPS, batch_size, LEARNING_RATE)
        self._training: WorkerTraining | None = None
        self._done = 0

    def prepare(self) -> None:
        """Begin a training where none is under way or this one is long; nothing is metered meanwhile."""
        if self._training is None or self._done > COURSE_STEPS:
            self._ready()
            self._training, self._done = WorkerTraining(self._worker, {}, None, self._seed, self._options), 0

    def advance(self, steps: int) -> None:
        """Do the next ``steps`` minibatches; after a failure ``prepare`` begins anew."""
        if self._training is None:
            self.prepare()
        assert self._training is not None
        try:
            self._training.advance(steps)
        except WorkerFailed:
            self._training = None
            raise
        self._done += steps
