"""The ``local`` backend: clients are called in this process and in workers that share them, on the simulated clock."""

from __future__ import annotations

import atexit
import gc
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

from fedge.child_processes import count_cores, exit_with_parent, replace_handlers, set_environment
from fedge.client.answers import Answer
from fedge.client.emulated import ClientTask
from fedge.errors import RunFailed, describe_error
from fedge.experiment import Experiment, list_boards
from fedge.flower.emulated_clients import answer_tasks
from fedge.garbage_collection import GC_THRESHOLD, collect_rarely
from fedge.import_path import ROOT, start_children
from fedge.knowledge.evidence_files import find_kinds
from server.rounds.shared_measurements import divide_boards
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest

MIN_CLIENT_ROUNDS = 400
# A process takes some seconds to start and to import torch; fewer rounds of clients than these are done sooner without.
FORK_SERVER = multiprocessing.get_context("forkserver")
"""Context of the workers. They are forked from a process without threads, which imports torch once for all of them: a
child of this process would inherit locks that its threads hold.
"""

ClientQuestion = tuple[int, OutgoingRequest]
"""The index of a client, and a request to it."""


def count_jobs(experiment: Experiment) -> int:
    """Return the number of processes for a run: as many as asked for, or as are worth their start."""
    clients, num_gpus = len(list_boards(experiment)), experiment.backend_options.num_gpus
    if num_gpus > 0:
        clients = min(clients, int(1.0 / num_gpus))  # all of them train on one device
    if experiment.jobs is not None:
        return min(experiment.jobs, clients)
    nested = multiprocessing.parent_process() is not None
    return 1 if nested or clients * experiment.rounds < MIN_CLIENT_ROUNDS else min(count_cores(), clients)


def start_fork_server(experiment: Experiment) -> None:
    """Start the process that the workers of a run are forked from, if it has any and none runs yet.

    It imports torch while this process does the same for itself. It finds fedge before any file of the user's, and a
    Ctrl-C is this process's to act on.
    """
    if count_jobs(experiment) < 2:
        return
    FORK_SERVER.set_forkserver_preload([__name__, "fedge.worker.trainer"])
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = set_environment({"PYTHONSAFEPATH": "1", "PYTHONPATH": paths})
    with environment, replace_handlers({signal.SIGINT: signal.SIG_IGN}):
        forkserver.ensure_running()


class LocalClients:
    """Answers for the clients: for a share of them in this process, and for the others in its workers."""

    def __init__(self, experiment: Experiment, folder: Path, pools: Sequence[ProcessPoolExecutor] = ()) -> None:
        self._experiment, self._folder, self._pools = experiment, folder, pools
        self._index = {board.name: board.index for board in list_boards(experiment)}
        self._kinds = find_kinds(experiment)

    def respond(self, requests: Mapping[str, OutgoingRequest]) -> Mapping[str, IncomingReply]:
        """Answer requests; raises ``RunFailed`` if a worker process died."""
        shares = divide_boards(self._kinds, requests, 1 + len(self._pools))
        questions = [[(self._index[name], requests[name]) for name in share] for share in shares]
        answers = dict[str, IncomingReply]()
        for share, found in zip(shares, self._answer(questions), strict=True):
            answers |= {name: IncomingReply(*answer) for name, answer in zip(share, found, strict=True)}
        return {name: answers[name] for name in requests}

    def _answer(self, shares: list[list[ClientQuestion]]) -> list[list[Answer]]:
        own, *others = shares
        try:
            answering = [
                pool.submit(_answer_share, share) if share else None
                for pool, share in zip(self._pools, others, strict=True)
            ]
            answered = answer_questions(self._experiment, self._folder, own)
            return [answered, *(each.result() if each else [] for each in answering)]
        except BrokenProcessPool as error:
            raise RunFailed("a worker process ended before its time (out of memory?)") from error


@contextmanager
def open_clients(experiment: Experiment, folder: Path) -> Iterator[LocalClients]:
    """Open the clients of a run; the processes that it starts end with the block, or with this process."""
    jobs = count_jobs(experiment)
    if jobs < 2:
        yield LocalClients(experiment, folder)
        return
    start_fork_server(experiment)
    arguments = experiment.model_dump_json(), folder, dict(os.environ)
    before = {process.pid for process in multiprocessing.active_children()}
    # This process answers for a share of its own: it needs torch anyway, to evaluate the model, and would only wait.
    pools = [ProcessPoolExecutor(1, FORK_SERVER, _start_worker, arguments) for _ in range(jobs - 1)]
    try:
        try:
            with start_children():
                for pool in pools:
                    pool.submit(_answer_share, [])  # starts the process now, while this one imports what it needs
        except (EOFError, OSError) as error:
            raise RunFailed(f"a worker process could not be started: {describe_error(error)}") from error
        yield LocalClients(experiment, folder, pools)
    except BaseException:
        for process in multiprocessing.active_children():
            if process.pid not in before:
                process.terminate()
        raise
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def answer_questions(experiment: Experiment, folder: Path, questions: list[ClientQuestion]) -> list[Answer]:
    """Answer questions to clients in this process."""
    return answer_tasks(
        [
            ClientTask(experiment, index, one.ask, one.arrays, folder=folder, residual=one.residual)
            for index, one in questions
        ]
    )


_experiment: Experiment
_folder: Path


def _start_worker(experiment_json: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Prepare a worker process.

    It gets the environment of its run, as the process that it is forked from may have been started in another one; what
    libraries read when they were loaded there, such as ``OMP_NUM_THREADS``, stays.
    """
    global _experiment, _folder
    from experiments.spec.user_plugins import import_plugins

    exit_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    gc.set_threshold(GC_THRESHOLD)
    atexit.register(gc.freeze)  # a process that ends need not look for garbage among all that it has loaded
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    _experiment, _folder = Experiment.model_validate_json(experiment_json), folder
    import_plugins(_experiment)


def _answer_share(questions: list[ClientQuestion]) -> list[Answer]:
    return answer_questions(_experiment, _folder, questions)


def run_local(experiment: Experiment, folder: Path, on_round: Callable[[], None]) -> None:
    """Run a checked experiment in this process, with results in ``folder``.

    Raises:
        RunFailed: If the run cannot continue.
    """
    from server.run import run_experiment  # no worker of this module needs the strategies

    # Flower's strategies log every aggregation to the terminal, which belongs to the launcher.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with collect_rarely(), open_clients(experiment, folder) as clients:
        run_experiment(experiment, LocalPort(clients.respond), folder, lambda _: on_round())
