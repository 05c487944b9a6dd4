"""Run tasks side by side on Ray, on this machine or a cluster; a single one at a time runs in this process."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import pickle
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Generic, TypeVar

import fedge
from fedge import phases
from fedge.child_processes import count_cores
from fedge.errors import BadInput, FedgeError, RunFailed
from fedge.import_path import ROOT
from fedge.phases import begin_phase
from fedge.studies.ray_session import RayWatch, open_ray, uses_cluster

J = TypeVar("J")
R = TypeVar("R")

PACKAGES = ("fedge", "clients", "server", "experiments")
"""Packages that a task may run, which must be equal on all machines."""
PACKAGE_SUFFIXES = {".py", ".yaml"}
MACHINES_FIELD = "fedge on Ray's machines"
USER_FOLDER = "configs"
"""Folder of experiments, which users edit and tasks do not read."""
JOINS_WITHIN_S = 60.0
"""Default limit for a machine that is large enough to join a cluster that is just being started, in seconds."""
NOTES_EVERY_S = 1.0
QUEUED_PER_CORE = 2
"""Tasks per core of a cluster that are submitted at a time: one runs, one waits for the core."""


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How tasks run.

    Attributes:
        workers: Number of tasks at a time at most; None for as many as this machine or the cluster has cores for.
        cpus: Cores that a task reserves on its machine; above 0.
        gpus: GPUs that it reserves.
        memory_mb: Memory that it reserves; None for no reservation.
        retries: How often a task is repeated whose process or machine is lost. A task that raises is not repeated.
    """

    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    memory_mb: float | None = None
    retries: int = 2


@dataclass(frozen=True, slots=True)
class TaskOutcome(Generic[R]):
    """A task that ended, by its place among the jobs, with a result or an error."""

    place: int
    result: R | None = None
    error: FedgeError | None = None

    def unwrap(self) -> R:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # None is a result where R allows it


def run_jobs(
    run: Callable[[J], R], jobs: Sequence[J], report: Callable[[str], None], workers: int | None = None
) -> list[R]:
    """Run all jobs of a study in parallel.

    Args:
        run: Module-level function that runs one job, or a partial of one.
        jobs: The jobs; they and their results must be picklable.
        report: Called with ``str(job)`` whenever a job has finished.
        workers: Number of jobs at a time; None for the cores that this process may use, or the cluster's.

    Returns:
        The results in the order of ``jobs``.

    Raises:
        FedgeError: That of the first job that fails with one; ``RunFailed`` if a worker process dies.
    """
    results: dict[int, R] = {}
    with closing(run_tasks(run, jobs, TaskOptions(workers))) as outcomes:
        for outcome in outcomes:
            results[outcome.place] = outcome.unwrap()
            report(str(jobs[outcome.place]))
    return [results[place] for place in range(len(jobs))]


def run_tasks(
    run: Callable[[J], R], jobs: Sequence[J], options: TaskOptions = TaskOptions()
) -> Generator[TaskOutcome[R], None, None]:
    """Run ``run`` for every job and yield the outcomes as they end; closing the iterator ends all tasks.

    On Ray, ``run`` is sent to every worker process once, so a partial may hold data that all jobs share. Each task has
    the name ``str(job)`` there.

    Raises:
        BadInput: If the cluster at RAY_ADDRESS cannot be used, has another fedge, or no machine for such a task.
        RunFailed: If Ray does not start.
    """
    workers = _count_workers(options, len(jobs))
    if workers == 1 and not uses_cluster(os.environ):
        for place, job in enumerate(jobs):
            with phases.open_task(f"{place} of {len(jobs)} done, now {job}"):
                outcome = _run_here(run, place, job)
            yield outcome
    elif jobs:
        begin_phase("starting Ray", announce=True)
        with open_ray(workers * options.cpus):
            yield from _run_on_ray(run, jobs, options, workers)


@contextmanager
def open_pool(options: TaskOptions, count: int) -> Iterator[None]:
    """Keep what ``run_tasks`` starts for ``count`` jobs, so that its calls inside the block need not start it again."""
    workers = _count_workers(options, count)
    if workers == 1 and not uses_cluster(os.environ):
        yield
    else:
        with open_ray(workers * options.cpus):
            yield


def _count_workers(options: TaskOptions, jobs: int) -> int:
    """Return the number of tasks at a time on this machine: one without Ray, unless more are asked for."""
    if options.workers is None and importlib.util.find_spec("ray") is None:
        return 1
    return max(1, min(options.workers or int(count_cores() / options.cpus), jobs))


def _run_here(run: Callable[[J], R], place: int, job: J) -> TaskOutcome[R]:
    try:
        return TaskOutcome(place, run(job))
    except FedgeError as error:
        return TaskOutcome(place, error=error)


def _run_on_ray(
    run: Callable[[J], R], jobs: Sequence[J], options: TaskOptions, workers: int
) -> Iterator[TaskOutcome[R]]:
    import ray

    _check_resources(options)
    if uses_cluster(os.environ) and options.workers is None:
        workers = max(1, QUEUED_PER_CORE * int(ray.cluster_resources().get("CPU", 1) / options.cpus))
    task = ray.remote(_make_remote_function())
    wanted = {"num_cpus": options.cpus, "num_gpus": options.gpus, "max_retries": options.retries}
    if options.memory_mb is not None:
        wanted["memory"] = int(options.memory_mb * 1e6)
    shared, own = ray.put(pickle.dumps(run)), describe_package()
    waiting = deque(enumerate(jobs))
    running: dict[Any, int] = {}
    watch = RayWatch()
    with tempfile.TemporaryDirectory(prefix="fedge-tasks-") as notes:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    place, job = waiting.popleft()
                    note, arguments = str(Path(notes, str(place))), (pickle.dumps(job), own)
                    running[task.options(name=str(job), **wanted).remote([shared], *arguments, note)] = place
                ended, _ = ray.wait(list(running), timeout=NOTES_EVERY_S)
                watch.check()
                _show_phases(jobs, running, len(jobs) - len(waiting) - len(running), Path(notes))
                for reference in ended:
                    yield _read_outcome(running.pop(reference), reference, own)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _show_phases(jobs: Sequence[object], running: Mapping[Any, int], done: int, notes: Path) -> None:
    """Show how many tasks are done, and the phase that a running one has noted; on a cluster, others' are not seen."""
    texts = {place: _read_note(notes / str(place)) for place in running.values()}
    place = next((place for place, text in texts.items() if text), min(texts, default=None))
    now = "" if place is None else f", now {jobs[place]}{texts[place]}"
    begin_phase(f"{done} of {len(jobs)} done{now}")


def _read_note(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _check_resources(options: TaskOptions) -> None:
    """Refuse tasks for which no machine is large enough: Ray would wait for one without an end."""
    import ray

    wanted = {"CPU": options.cpus, "GPU": options.gpus, "memory": (options.memory_mb or 0.0) * 1e6}
    deadline_s = time.monotonic() + (JOINS_WITHIN_S if uses_cluster(os.environ) else 0.0)
    while True:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0.0) >= amount for name, amount in wanted.items()) for node in nodes):
            return
        if time.monotonic() >= deadline_s:
            break
        time.sleep(0.5)
    most = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in wanted}
    right = f"at most {most['CPU']:g} cores, {most['GPU']:g} GPUs and {most['memory'] / 1e6:.0f} MB on one machine"
    got = f"{options.cpus:g} cores, {options.gpus:g} GPUs and {options.memory_mb or 0:g} MB"
    raise BadInput("resources of a task", got, right)


def _read_outcome(place: int, reference: Any, own: str) -> TaskOutcome[Any]:
    import ray

    try:
        kind, value = ray.get(reference)
    except ray.exceptions.RayTaskError:  # what the task raised, and no FedgeError
        raise
    except ray.exceptions.RayError as error:
        text = f"a worker process ended before its time (out of memory?): {' '.join(str(error).split())[:200]}"
        return TaskOutcome(place, error=RunFailed(text))
    if kind == "package":
        raise BadInput(MACHINES_FIELD, str(value), f"{own}, as in this process")
    return TaskOutcome(place, error=FedgeError(value)) if kind == "error" else TaskOutcome(place, value)


def _make_remote_function() -> Callable[[list[Any], bytes, str, str], tuple[str, Any]]:
    """Return the function of a task, which Ray sends by value: it must run where another fedge is installed, or none.

    It returns a kind and a value: ``result``, ``error`` with the text of a FedgeError, which could not be unpickled, or
    ``package`` with the version of another fedge and its machine.
    """

    def run_task(shared: list[Any], job: bytes, own: str, note: str) -> tuple[str, Any]:
        import importlib
        import platform

        try:
            task_pool = importlib.import_module("fedge.studies.task_pool")
        except ImportError:
            try:
                found = importlib.import_module("fedge").__version__
            except ImportError:
                found = "not installed"
        else:
            found = task_pool.describe_package()
            if found == own:
                outcome: tuple[str, Any] = task_pool.run_pickled(shared[0], job, note)
                return outcome
        return "package", f"{found} on {platform.node()}"

    return run_task


@functools.cache
def describe_package(folder: Path = ROOT) -> str:
    """Return this fedge's version and a digest of the sources in a folder, which tells unreleased states apart."""
    digest = hashlib.sha256()
    for name in PACKAGES:
        spec = PathFinder.find_spec(name, [str(folder)])
        for root in sorted(spec.submodule_search_locations or ()) if spec is not None else ():
            for path in sorted(Path(root).rglob("*")):
                inner = path.relative_to(root)
                if path.suffix in PACKAGE_SUFFIXES and USER_FOLDER not in inner.parts:
                    digest.update(f"{name}/{inner.as_posix()}\0".encode() + path.read_bytes())
    return f"{fedge.__version__} (sources {digest.hexdigest()[:8]})"


_run: tuple[str, Callable[[Any], Any]] | None = None
"""In a worker process: the newest function that it received, by the identity of its object in Ray."""


def run_pickled(shared: Any, job: bytes, note: str) -> tuple[str, Any]:
    """Run a pickled job of Ray's reference to a pickled function in a worker process; see ``_make_remote_function``.

    The task writes its phases to the file ``note``, for the process that waits, if that is on the same machine.
    """
    import ray

    global _run  # noqa: PLW0603 - the one thing that a worker process keeps between its tasks
    if _run is None or _run[0] != shared.hex():
        _run = shared.hex(), pickle.loads(ray.get(shared))  # noqa: S301 - from the process that started this one

    def write_note(name: str, *, announce: bool) -> None:
        with suppress(OSError):
            Path(note).write_text(f": {name}", encoding="utf-8")

    phases.add_listener(write_note)
    try:
        return "result", _run[1](pickle.loads(job))  # noqa: S301
    except FedgeError as error:
        return "error", str(error)
    finally:
        phases.remove_listener(write_note)
