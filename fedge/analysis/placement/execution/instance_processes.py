"""Run instances concurrently, a process each: all get ready, start and stop together, and report their batches."""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from fedge.analysis.placement.execution.inference_jobs import BatchJob, InstanceTask, build_job
from fedge.child_processes import exit_with_parent, limit_to_one_thread, start_children
from fedge.errors import BadInput, FedgeError, RunFailed

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

READY_LIMIT_S = 600.0
"""Limit for an instance to get ready, in seconds: TensorRT may take minutes to build an engine."""
WARM_UP_BATCHES = 3
"""Default number of batches of every instance before timing starts."""
MAX_LATENCIES = 100_000


@dataclass(frozen=True, slots=True)
class InstanceRun:
    """The run of one instance."""

    batches: int
    seconds: float
    median_s: float
    p95_s: float

    @property
    def batches_per_s(self) -> float:
        return self.batches / self.seconds


@dataclass(frozen=True, slots=True)
class InstanceFailure:
    """Why an instance could not run; ``user`` if the user can correct it."""

    text: str
    user: bool


JobBuilder = Callable[[InstanceTask], BatchJob]


def run_instances(tasks: Sequence[InstanceTask], seconds: float, build: JobBuilder = build_job) -> list[InstanceRun]:
    """Run all instances at the same time; no process outlives the call.

    Returns:
        One run per task, in their order.

    Raises:
        RunFailed: If an instance fails or does not answer.
        BadInput: If an instance cannot run for a reason that the user can correct.
    """
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in tasks]
    processes = [
        context.Process(target=run_instance_process, args=(task, seconds, build, there), daemon=True)
        for task, (_, there) in zip(tasks, pipes, strict=True)
    ]
    try:
        with limit_to_one_thread(), start_children():
            for process, (_, there) in zip(processes, pipes, strict=True):
                process.start()
                there.close()
        for task, process, (here, _) in zip(tasks, processes, pipes, strict=True):
            _receive_message(here, process, task, READY_LIMIT_S)
        for here, _ in pipes:
            here.send("go")
        limit_s = READY_LIMIT_S + 2 * seconds
        heard = [
            _receive_message(here, p, task, limit_s) for task, p, (here, _) in zip(tasks, processes, pipes, strict=True)
        ]
        return [ran for ran in heard if isinstance(ran, InstanceRun)]
    finally:
        for process in processes:
            if process.is_alive():
                process.join(timeout=2.0)
            if process.is_alive():
                process.terminate()
                process.join(timeout=2.0)


def run_instance_process(task: InstanceTask, seconds: float, build: JobBuilder, pipe: Connection) -> None:
    """Run one instance's process: send ``ready``, wait for ``go``, run, and send the result."""
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ending instances is left to the process that started them
    try:
        job = build(task)
        for _ in range(WARM_UP_BATCHES):
            job()
        pipe.send("ready")
        pipe.recv()
        pipe.send(time_batches(job, seconds, time.perf_counter))
    except EOFError:
        return
    except FedgeError as error:
        pipe.send(InstanceFailure(str(error), isinstance(error, BadInput)))
    except Exception as error:  # noqa: BLE001 - any error of a library is reported to the waiting process
        pipe.send(
            InstanceFailure(
                f"{task.instance}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", user=False
            )
        )


def time_batches(job: BatchJob, seconds: float, clock: Callable[[], float]) -> InstanceRun:
    """Run batches one after the other for ``seconds``; the last one is finished and counted."""
    begin = before = clock()
    took: list[float] = []
    while before - begin < seconds and len(took) < MAX_LATENCIES:
        job()
        now = clock()
        took.append(now - before)
        before = now
    ordered = sorted(took)
    return InstanceRun(
        len(took), before - begin, statistics.median(ordered), ordered[min(len(took) - 1, int(0.95 * len(took)))]
    )


def _receive_message(here: Connection, process: SpawnProcess, task: InstanceTask, limit_s: float) -> InstanceRun | str:
    """Return the next message of a process; raise ``RunFailed`` if none comes in time, or the process ended."""
    try:
        if not here.poll(limit_s):
            raise RunFailed(f"{task.instance} said nothing for {limit_s:.0f} s")
        heard = here.recv()
    except EOFError as error:
        process.join(timeout=5.0)
        raise RunFailed(f"{task.instance}: its process ended with code {process.exitcode} (out of memory?)") from error
    if isinstance(heard, InstanceFailure):
        if heard.user:
            raise BadInput("placement", heard.text, "what the message asks for")
        raise RunFailed(heard.text)
    assert isinstance(heard, InstanceRun | str)
    return heard
