"""Training beside inference on this machine for a while: the request, its checks, and the runs through workers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from fedge.child_processes import count_cores
from fedge.errors import BadInput, RunFailed, check_known
from fedge.serving import side_by_side
from fedge.serving.private_workers import WorkerSettings, start_workers
from fedge.serving.side_by_side import (
    ALONE,
    BATCH_SIZES,
    MANAGED,
    NATIVE,
    SideBySideJobs,
    SideBySideOutcome,
    WorkerPair,
    describe_arrivals,
    find_largest_batch,
    find_least_latency_s,
)
from fedge.worker import builtin_tasks
from fedge.worker.arrivals import KINDS, MOST_HZ, parse_arrivals
from fedge.worker.refusal import BadField
from fedge.worker.worker_client import WorkerClient, WorkerError

EXECUTIONS = {MANAGED: (MANAGED,), NATIVE: (NATIVE,), ALONE: (ALONE,), "both": (MANAGED, NATIVE)}
DEVICES = ("auto", "cpu", "cuda")
MAX_BATCH = 1024
"""The worker's limit."""
MAX_LATENCY_S = 1000.0
"""Upper end of the latency histogram, in seconds."""


@dataclass(frozen=True, slots=True)
class ConcurrentRunOptions:
    """The request of a run.

    Attributes:
        how: One of ``EXECUTIONS``.
        seconds: Duration of each turn in seconds.
        rate_hz: Mean number of requests per second.
        infer_batch_size: Requests inferred together; None to measure and choose.
        device: One of ``DEVICES``.
        worker_socket: Socket of a worker that already runs, or None to start workers.
        threads: Torch's threads per process; None for torch's own default.
    """

    train_task: str
    infer_task: str
    how: str
    seconds: float
    rate_hz: float
    arrivals: str
    max_latency_s: float
    infer_batch_size: int | None
    batch_size: int
    device: str
    worker_socket: str | None
    seed: int
    threads: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ConcurrentRunResult:
    """The outcomes of a run.

    Attributes:
        outcomes: One outcome per turn; the last one is incomplete if the run ended early.
        ended: What ended the run early, or None.
    """

    options: ConcurrentRunOptions
    jobs: SideBySideJobs
    outcomes: tuple[SideBySideOutcome, ...]
    ended: KeyboardInterrupt | RunFailed | None = None


class ConcurrentRunObserver(Protocol):
    """Shows the progress of a run."""

    def report_step_times(self, step_s: float, infer_s: Mapping[int, float]) -> None:
        """Show the measured seconds of a training step, and of inference by batch size."""

    def report_start(self, jobs: SideBySideJobs, device: str) -> None:
        """Show the jobs and the device that the worker selected."""

    def follow_turn(self, jobs: SideBySideJobs) -> AbstractContextManager[Callable[[SideBySideOutcome], None]]:
        """Return a context whose value is called with the outcome of a turn so far, as often as desired."""


def run_concurrent_jobs(options: ConcurrentRunOptions, observer: ConcurrentRunObserver) -> ConcurrentRunResult:
    """Train one network while serving another, once per way of execution.

    After Ctrl-C or a worker's failure, the outcomes so far are returned.

    Raises:
        BadInput: If an option is invalid, or no batch size meets the latency budget; no turn was started then.
    """
    check_run_options(options)
    outcomes = list[SideBySideOutcome]()
    jobs, ended = _build_jobs(options, options.infer_batch_size or 1), None
    try:
        with _translate_worker_errors(options), _start_workers(options) as pairs:
            device = side_by_side.load_task(pairs[MANAGED].training, options.train_task, options.device)
            jobs = _build_jobs(options, options.infer_batch_size or _choose_batch_size(options, pairs, observer))
            observer.report_start(jobs, device)
            for how in EXECUTIONS[options.how]:
                _run_turn(options, pair=pairs[how], jobs=jobs, how=how, outcomes=outcomes, observer=observer)
    except (KeyboardInterrupt, RunFailed) as error:
        ended = error
    return ConcurrentRunResult(options, jobs, tuple(outcomes), ended)


def concurrent_run_to_dict(result: ConcurrentRunResult) -> dict[str, Any]:
    """Return the result for JSON."""
    head = {
        **asdict(result.options),
        "arrivals": dict(result.jobs.arrivals),
        "infer_batch_size": result.jobs.infer_batch,
        "cores": count_cores(),
    }
    outcomes = [_outcome_to_dict(one) for one in result.outcomes]
    return {"concurrent_run": head, "interrupted": result.ended is not None, "outcomes": outcomes}


def _outcome_to_dict(outcome: SideBySideOutcome) -> dict[str, Any]:
    service = outcome.service
    return {
        "how": outcome.approach,
        "seconds": outcome.seconds,
        "minibatches": outcome.minibatches,
        "minibatches_hz": outcome.minibatches_hz,
        "p50_s": outcome.percentile_s(50),
        "p95_s": outcome.percentile_s(95),
        "p99_s": outcome.percentile_s(99),
        "violations": outcome.violation_share,
        "service": None if service is None else service.as_data(),
    }


# Checks ---------------------------------------------------------------------------------------------------------------


def check_run_options(options: ConcurrentRunOptions) -> None:
    """Raise ``BadInput`` for an invalid or contradictory option."""
    _check_names(options)
    _check_numbers(options)
    if options.worker_socket is not None and NATIVE in EXECUTIONS[options.how]:
        raise BadInput(
            "--how", f"{options.how} with --worker-socket", "managed or alone: native takes two workers of its own"
        )
    if options.worker_socket is not None and options.threads is not None:
        raise BadInput("--threads", f"{options.threads} with --worker-socket", "nothing: that worker has its own")
    try:
        parse_arrivals(describe_arrivals(options.arrivals, options.rate_hz, options.seed))
    except BadField as error:
        raise BadInput("--arrivals", options.arrivals, str(error)) from error


def _check_names(options: ConcurrentRunOptions) -> None:
    for option, name in (("--train-task", options.train_task), ("--infer-task", options.infer_task)):
        if name in builtin_tasks.REFUSED:
            raise BadInput(option, repr(name), f"another one: {builtin_tasks.REFUSED[name]}")
        check_known(option, name, builtin_tasks.NETWORKS)
    check_known("--how", options.how, EXECUTIONS)
    check_known("--arrivals", options.arrivals, KINDS)
    check_known("--device", options.device, DEVICES)


def _check_numbers(options: ConcurrentRunOptions) -> None:
    for option, value in (("--rate-hz", options.rate_hz), ("--max-latency-s", options.max_latency_s)):
        if not (math.isfinite(value) and value > 0.0):
            raise BadInput(option, f"{value:g}", "a number above 0")
    if options.rate_hz > MOST_HZ:
        raise BadInput("--rate-hz", f"{options.rate_hz:g}", f"more than 0 and at most {MOST_HZ:g}")
    if options.max_latency_s > MAX_LATENCY_S:
        raise BadInput("--max-latency-s", f"{options.max_latency_s:g}", f"more than 0 and at most {MAX_LATENCY_S:g} s")
    if not math.isfinite(options.seconds):
        raise BadInput("--seconds", f"{options.seconds:g}", "a number above 0")
    if options.seed < 0:
        raise BadInput("--seed", str(options.seed), "0 or more")
    for option, size in (("--infer-batch-size", options.infer_batch_size), ("--batch-size", options.batch_size)):
        if size is not None and size > MAX_BATCH:
            raise BadInput(option, str(size), f"from 1 to {MAX_BATCH}")


# Turns ----------------------------------------------------------------------------------------------------------------


def _build_jobs(options: ConcurrentRunOptions, infer_batch: int) -> SideBySideJobs:
    return SideBySideJobs(
        options.train_task,
        infer=options.infer_task,
        train_batch=options.batch_size,
        infer_batch=infer_batch,
        latency_s=options.max_latency_s,
        arrivals=describe_arrivals(options.arrivals, options.rate_hz, options.seed),
    )


@contextlib.contextmanager
def _start_workers(options: ConcurrentRunOptions) -> Iterator[dict[str, WorkerPair]]:
    """Start the workers for training and serving, by way of execution."""
    if options.worker_socket is not None:
        with WorkerClient(options.worker_socket) as client:
            yield dict.fromkeys((MANAGED, ALONE), WorkerPair(client, client))
        return
    settings = tuple(WorkerSettings(name, options.device, threads=options.threads) for name in ("one", "two"))
    with start_workers(settings if NATIVE in EXECUTIONS[options.how] else settings[:1]) as clients:
        one = clients["one"]
        yield {
            MANAGED: WorkerPair(one, one),
            ALONE: WorkerPair(one, one),
            NATIVE: WorkerPair(one, clients.get("two", one)),
        }


def _choose_batch_size(
    options: ConcurrentRunOptions, pairs: dict[str, WorkerPair], observer: ConcurrentRunObserver
) -> int:
    """Return the largest batch size that meets the latency budget, from a few measured ones; 1 without a service."""
    if options.how == ALONE:
        return 1
    client = pairs[MANAGED].training
    step_s = side_by_side.measure_step_s(client, options.batch_size, "train")
    side_by_side.load_task(client, options.infer_task, options.device)
    infer_s: dict[int, float] = {}
    for size in BATCH_SIZES:
        if size > 1 and size / options.rate_hz > options.max_latency_s:
            break
        infer_s[size] = side_by_side.measure_step_s(client, size, "infer")
    side_by_side.load_task(client, options.train_task, options.device)
    chosen = find_largest_batch(infer_s, step_s, options.rate_hz, options.max_latency_s)
    if chosen is None:
        raise _no_batch_error(options, infer_s, step_s)
    observer.report_step_times(step_s, infer_s)
    return chosen


def _no_batch_error(options: ConcurrentRunOptions, seconds: dict[int, float], step_s: float) -> BadInput:
    least_s = find_least_latency_s(seconds, step_s, options.rate_hz)
    got = f"{options.max_latency_s:g} s at {options.rate_hz:g} requests/s, which no batch size holds here"
    if least_s is None:
        right = f"fewer requests per second: inference in batches of {max(seconds)} or less does not keep up here"
        larger = ", or a longer --max-latency-s for larger batches" if max(seconds) < max(BATCH_SIZES) else ""
        return BadInput("--rate-hz", got, right + larger)
    # Rounded up, so that the suggested budget suffices although times vary between starts.
    right = (
        f"{math.ceil(1e3 * least_s) / 1e3:g} s or more, or --infer-batch-size to try one that is not expected to hold"
    )
    return BadInput("--max-latency-s", got, right)


def _run_turn(
    options: ConcurrentRunOptions,
    pair: WorkerPair,
    jobs: SideBySideJobs,
    how: str,
    outcomes: list[SideBySideOutcome],
    observer: ConcurrentRunObserver,
) -> None:
    """Run one turn; ``outcomes`` always holds its latest state."""
    place = len(outcomes)
    with observer.follow_turn(jobs) as show:

        def record(outcome: SideBySideOutcome) -> None:
            outcomes[place:] = [outcome]
            show(outcome)

        side_by_side.run_turn(pair, jobs, how, options.seconds, tell=record)


@contextlib.contextmanager
def _translate_worker_errors(options: ConcurrentRunOptions) -> Iterator[None]:
    """Convert a worker's error to ``BadInput`` or ``RunFailed``."""
    try:
        yield
    except WorkerError as error:
        if error.kind == "unreachable" and options.worker_socket is not None:
            raise BadInput("--worker-socket", options.worker_socket, error.text) from error
        if error.kind == "bad-request" and "device" in error.text:
            got, _, right = error.text.partition("; ")
            raise BadInput("--device", got.rpartition("got ")[2], right) from error
        raise RunFailed(f"the worker: {error}") from error
