"""This board under profiling: measured while its own worker trains on generated images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from fedge.characterisation.profiling.profiling_bench import ProfilingBench
from fedge.characterisation.profiling.real_bench import build_real_bench
from fedge.client.worker_training import STRETCH_LIMIT_S, WorkerTraining, load_worker_task, translate_worker_errors
from fedge.devices.local_board import open_local_board
from fedge.devices.node_settings import NodeSettings
from fedge.errors import BadInput, WorkerFailed
from fedge.modes import build_grid
from fedge.types import TrainOptions, Workload
from fedge.worker import builtin_tasks
from fedge.worker.refusal import Refusal
from fedge.worker.worker_client import WorkerClient

RESTART_STEPS = 20_000
# A training with more steps is restarted between two modes, because the worker stores loss and accuracy of every step.
ENDLESS_STEPS = 10**9
# Steps announced for every training, so that none ends within a mode.
LEARNING_RATE = 1e-3
# Small, so that the weights stay finite over a long campaign; the step time does not depend on it.


@contextmanager
def open_worker_bench(settings: NodeSettings, workload: Workload, seed: int) -> Iterator[ProfilingBench]:
    """Open the bench of this board, which is held during the context.

    Args:
        settings: The board's settings.
        workload: A built-in task and its batch size.
        seed: Seed of the training and of random choices.

    Raises:
        BadInput: If the workload has no network here.
        BoardError: If the power daemon or the worker fails.
    """
    try:
        source = builtin_tasks.synthetic_source(workload.name)
    except Refusal as error:
        raise BadInput("--workload", error.got, error.right) from error

    def ready() -> object:
        return load_worker_task(settings.worker_socket, {"builtin": workload.name}, source)

    with (
        closing(WorkerClient(settings.worker_socket, STRETCH_LIMIT_S)) as worker,
        open_local_board(settings.place) as here,
    ):
        ready()
        with translate_worker_errors():
            status = worker.status()
        software = {name: str(status[name]) for name in ("python", "torch")} | {"l4t": str(here.identity.l4t)}
        work = EndlessTraining(worker, ready, workload.batch_size, seed)
        with here.board.hold():
            bench = build_real_bench(
                here.board,
                workload,
                work.advance,
                here.hottest_c,
                prepare=work.prepare,
                candidates=build_grid(here.board.spec),
                seed=seed,
                software=software,
            )
            yield bench if settings.root == "/" else _mark_recorded(bench, settings.root)


def _mark_recorded(bench: ProfilingBench, root: str) -> ProfilingBench:
    """Mark the bench of a recorded folder as estimated: its power was written into it and is not measured."""
    return replace(bench, emulated=True, label="estimated", source=f"a recorded folder ({root}), no board")


class EndlessTraining:
    """Unlimited training steps in the worker from a new model; ``ready`` loads the task."""

    def __init__(self, worker: WorkerClient, ready: Callable[[], object], batch_size: int, seed: int) -> None:
        self._worker, self._ready, self._seed = worker, ready, seed
        self._options = TrainOptions(ENDLESS_STEPS, batch_size, LEARNING_RATE)
        self._training: WorkerTraining | None = None
        self._done = 0

    def prepare(self) -> None:
        """Begin a training if none is running or the current one is long; nothing is measured meanwhile."""
        if self._training is None or self._done > RESTART_STEPS:
            self._ready()
            self._training, self._done = (
                WorkerTraining(self._worker, arrays={}, share=None, seed=self._seed, options=self._options),
                0,
            )

    def advance(self, steps: int) -> None:
        """Run the next ``steps`` steps; after a failure, ``prepare`` begins a new training."""
        if self._training is None:
            self.prepare()
        assert self._training is not None
        try:
            self._training.advance(steps)
        except WorkerFailed:
            self._training = None
            raise
        self._done += steps
