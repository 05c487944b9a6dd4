"""``fedge concurrent run``: trains one network while serving another, and reports the performance of both."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.cli.command_output import check_output
from experiments.report.analysis import side_by_side_terminal
from fedge.errors import BadInput, RunFailed, UnknownName
from fedge.serving import batch_sizing, side_by_side
from fedge.serving.private_workers import WorkerSettings, start_workers
from fedge.serving.side_by_side import ALONE, MANAGED, NATIVE, SideBySideJobs, SideBySideOutcome, WorkerPair
from fedge.telemetry import run_folder
from fedge.worker import builtin_tasks
from fedge.worker.arrivals import KINDS, MOST_HZ, parse_arrivals
from fedge.worker.request_fields import BadField
from fedge.worker.worker_client import WorkerClient, WorkerError

EXECUTIONS = {MANAGED: (MANAGED,), NATIVE: (NATIVE,), ALONE: (ALONE,), "both": (MANAGED, NATIVE)}
DEVICES = ("auto", "cpu", "cuda")
JSON_START = '{\n  "concurrent_run"'
"""First characters of this command's JSON."""
DEFAULT_S = 60.0
MAX_BATCH = 1024
"""The worker's limit."""
MAX_LATENCY_S = 1000.0
"""Upper end of the latency histogram, in seconds."""
DYNAMIC_RATES = ((10.0, 0.5), (10.0, 1.5))
"""Phases of ``--arrivals dynamic``: seconds, and multiple of ``--rate-hz``. A default whose mean is the given rate."""


@dataclass(frozen=True, slots=True)
class ConcurrentRunOptions:
    """Command-line options."""

    train: str
    infer: str
    how: str
    minutes: float | None
    seconds: float | None
    rate_hz: float
    arrivals: str
    latency_s: float
    infer_batch: int | None
    train_batch: int
    device: str
    worker: str | None
    seed: int
    threads: int | None = None


def run_concurrently(asked: ConcurrentRunOptions, json_file: Path | None) -> None:
    """Run, show and write the result; after Ctrl-C or a worker's failure, the results so far are kept.

    Raises:
        BadInput: If an option is invalid; raised before anything is started.
        RunFailed: If a worker cannot continue.
    """
    _check_options(asked)
    check_output("--json", json_file, JSON_START)
    from rich.console import Console

    console, outcomes = Console(), list[SideBySideOutcome]()
    ended: KeyboardInterrupt | RunFailed | None = None
    jobs = _build_jobs(asked, asked.infer_batch or 1)
    try:
        with _exit_on_signals(), _translate_worker_errors(asked), _start_workers(asked) as pairs:
            device = _load_training(asked, pairs)
            jobs = _build_jobs(asked, asked.infer_batch or _choose_batch_size(asked, pairs, console))
            console.print(_describe_run(asked, jobs, device), soft_wrap=True, highlight=False, markup=False)
            for how in EXECUTIONS[asked.how]:
                _run_turn(
                    pairs[how], jobs=jobs, how=how, seconds=_duration_s(asked), outcomes=outcomes, console=console
                )
    except (KeyboardInterrupt, RunFailed) as error:
        ended = error
    if outcomes:
        console.print(side_by_side_terminal.build_outcome_table(outcomes, asked.latency_s))
        _write_json(json_file, as_data(asked, jobs, outcomes, interrupted=ended is not None))
    if ended is not None:
        raise ended


def as_data(
    asked: ConcurrentRunOptions, jobs: SideBySideJobs, outcomes: Sequence[SideBySideOutcome], *, interrupted: bool
) -> dict[str, Any]:
    """Return the result for JSON."""
    head = {**asdict(asked), "arrivals": dict(jobs.arrivals), "infer_batch": jobs.infer_batch, "cores": _count_cores()}
    return {"concurrent_run": head, "interrupted": interrupted, "outcomes": [_outcome_data(one) for one in outcomes]}


# What was asked for ---------------------------------------------------------------------------------------------------


def _check_options(asked: ConcurrentRunOptions) -> None:
    _check_names(asked)
    _check_numbers(asked)
    if asked.worker is not None and NATIVE in EXECUTIONS[asked.how]:
        raise BadInput("--how", f"{asked.how} with --worker", "managed or alone: native takes two workers of its own")
    if asked.worker is not None and asked.threads is not None:
        raise BadInput("--threads", f"{asked.threads} with --worker", "nothing: that worker has its own")
    try:
        parse_arrivals(_arrivals_data(asked))
    except BadField as error:
        raise BadInput("--arrivals", asked.arrivals, str(error)) from error


def _check_names(asked: ConcurrentRunOptions) -> None:
    for option, name in (("--train", asked.train), ("--infer", asked.infer)):
        if name in builtin_tasks.REFUSED:
            raise BadInput(option, repr(name), f"another one: {builtin_tasks.REFUSED[name]}")
        if name not in builtin_tasks.NETWORKS:
            raise UnknownName(option, name, tuple(builtin_tasks.NETWORKS))
    _check_known("--how", asked.how, tuple(EXECUTIONS))
    _check_known("--arrivals", asked.arrivals, KINDS)
    _check_known("--device", asked.device, DEVICES)


def _check_numbers(asked: ConcurrentRunOptions) -> None:
    for option, value in (("--rate-hz", asked.rate_hz), ("--latency-s", asked.latency_s)):
        if not (math.isfinite(value) and value > 0.0):
            raise BadInput(option, f"{value:g}", "a number above 0")
    if asked.rate_hz > MOST_HZ:
        raise BadInput("--rate-hz", f"{asked.rate_hz:g}", f"{MOST_HZ:g} at most")
    if asked.latency_s > MAX_LATENCY_S:
        raise BadInput("--latency-s", f"{asked.latency_s:g}", f"{MAX_LATENCY_S:g} s at most")
    if asked.minutes is not None and asked.seconds is not None:
        raise BadInput("--seconds", "--minutes as well", "one of the two")
    for option, length in (("--minutes", asked.minutes), ("--seconds", asked.seconds)):
        if length is not None and not math.isfinite(length):
            raise BadInput(option, f"{length:g}", "a number above 0")
    if asked.seed < 0:
        raise BadInput("--seed", str(asked.seed), "0 or more")
    for option, size in (("--infer-batch", asked.infer_batch), ("--train-batch", asked.train_batch)):
        if size is not None and size > MAX_BATCH:
            raise BadInput(option, str(size), f"{MAX_BATCH} at most")


def _check_known(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownName(option, value, known)


def _duration_s(asked: ConcurrentRunOptions) -> float:
    if asked.seconds is not None:
        return asked.seconds
    return DEFAULT_S if asked.minutes is None else 60.0 * asked.minutes


def _arrivals_data(asked: ConcurrentRunOptions) -> dict[str, Any]:
    """Return the arrivals in the form of the worker's ``serve`` request."""
    if asked.arrivals == "dynamic":
        rates = [[seconds, factor * asked.rate_hz] for seconds, factor in DYNAMIC_RATES]
        return {"kind": "dynamic", "rates": rates, "seed": asked.seed}
    return {"kind": asked.arrivals, "rate_hz": asked.rate_hz, "seed": asked.seed}


def _build_jobs(asked: ConcurrentRunOptions, infer_batch: int) -> SideBySideJobs:
    return SideBySideJobs(
        asked.train,
        infer=asked.infer,
        train_batch=asked.train_batch,
        infer_batch=infer_batch,
        latency_s=asked.latency_s,
        arrivals=_arrivals_data(asked),
    )


def _count_cores() -> int:
    """Return the number of cores available to this program; torch uses as many threads if they are physical cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _describe_run(asked: ConcurrentRunOptions, jobs: SideBySideJobs, device: str) -> str:
    threads = "threads as the machine gives" if asked.threads is None else f"threads {asked.threads}"
    where = (
        f"{device}, cores {_count_cores()}, {threads}" if asked.worker is None else f"{device}, worker {asked.worker}"
    )
    if asked.how == ALONE:
        return f"training {jobs.train} by {jobs.train_batch}, on {where}"
    return (
        f"training {jobs.train} by {jobs.train_batch}, serving {jobs.infer} by {jobs.infer_batch} at "
        f"{asked.rate_hz:g}/s ({asked.arrivals}) within {side_by_side_terminal.format_milliseconds(jobs.latency_s)} "
        f"ms, on {where}"
    )


# The course -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _start_workers(asked: ConcurrentRunOptions) -> Iterator[dict[str, WorkerPair]]:
    """Start the workers for training and serving, by way of execution."""
    if asked.worker is not None:
        with WorkerClient(asked.worker) as client:
            yield dict.fromkeys((MANAGED, ALONE), WorkerPair(client, client))
        return
    wishes = tuple(WorkerSettings(name, asked.device, threads=asked.threads) for name in ("one", "two"))
    with start_workers(wishes if NATIVE in EXECUTIONS[asked.how] else wishes[:1]) as clients:
        one = clients["one"]
        yield {
            MANAGED: WorkerPair(one, one),
            ALONE: WorkerPair(one, one),
            NATIVE: WorkerPair(one, clients.get("two", one)),
        }


def _load_training(asked: ConcurrentRunOptions, pairs: dict[str, WorkerPair]) -> str:
    """Load the training task and return the device that the worker selected."""
    return side_by_side.load_task(pairs[MANAGED].training, asked.train, asked.device)


def _choose_batch_size(asked: ConcurrentRunOptions, pairs: dict[str, WorkerPair], console: Any) -> int:
    """Return the largest batch size that meets the latency budget, from a few measured ones; 1 without a service."""
    if asked.how == ALONE:
        return 1
    client = pairs[MANAGED].training
    step_s = side_by_side.measure_step_s(client, asked.train_batch, "train")
    side_by_side.load_task(client, asked.infer, asked.device)
    seconds: dict[int, float] = {}
    for size in batch_sizing.BATCH_SIZES:
        if size > 1 and size / asked.rate_hz > asked.latency_s:
            break
        seconds[size] = side_by_side.measure_step_s(client, size, "infer")
    side_by_side.load_task(client, asked.train, asked.device)
    chosen = batch_sizing.find_largest_batch(seconds, step_s, asked.rate_hz, asked.latency_s)
    if chosen is None:
        raise _no_batch_error(asked, seconds, step_s)
    times = ", ".join(f"{size}: {side_by_side_terminal.format_milliseconds(one)}" for size, one in seconds.items())
    console.print(
        f"measured: a training minibatch {side_by_side_terminal.format_milliseconds(step_s)} ms, inference by batch "
        f"size {times} ms",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    return chosen


def _no_batch_error(asked: ConcurrentRunOptions, seconds: dict[int, float], step_s: float) -> BadInput:
    least_s = batch_sizing.find_least_latency_s(seconds, step_s, asked.rate_hz)
    got = f"{asked.latency_s:g} s at {asked.rate_hz:g} requests/s, which no batch size holds here"
    if least_s is None:
        right = f"fewer requests per second: inference in batches of {max(seconds)} or less does not keep up here"
        larger = ", or a longer --latency-s for larger batches" if max(seconds) < max(batch_sizing.BATCH_SIZES) else ""
        return BadInput("--rate-hz", got, right + larger)
    # Rounded up, so that the suggested budget suffices although times vary between starts.
    right = f"{math.ceil(1e3 * least_s) / 1e3:g} s or more, or --infer-batch to try one that is not expected to hold"
    return BadInput("--latency-s", got, right)


def _run_turn(
    pair: WorkerPair, jobs: SideBySideJobs, how: str, seconds: float, outcomes: list[SideBySideOutcome], console: Any
) -> None:
    """Run one turn; ``outcomes`` always holds its latest state."""
    place = len(outcomes)

    with side_by_side_terminal.SideBySideProgress(f"{jobs.train} + {jobs.infer}", seconds, console) as shown:

        def tell(outcome: SideBySideOutcome) -> None:
            outcomes[place:] = [outcome]
            shown(outcome)

        side_by_side.run_turn(pair, jobs, how, seconds, tell=tell)


@contextlib.contextmanager
def _translate_worker_errors(asked: ConcurrentRunOptions) -> Iterator[None]:
    """Convert a worker's error to ``BadInput`` or ``RunFailed``."""
    try:
        yield
    except WorkerError as error:
        if error.kind == "unreachable" and asked.worker is not None:
            raise BadInput("--worker", asked.worker, error.text) from error
        if error.kind == "bad-request" and "device" in error.text:
            got, _, right = error.text.partition("; ")
            raise BadInput("--device", got.rpartition("got ")[2], right) from error
        raise RunFailed(f"the worker: {error}") from error


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exit, so that workers are ended and remote services withdrawn."""

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The result -----------------------------------------------------------------------------------------------------------


def _outcome_data(outcome: SideBySideOutcome) -> dict[str, Any]:
    told = outcome.service
    return {
        "how": outcome.approach,
        "seconds": outcome.seconds,
        "minibatches": outcome.minibatches,
        "minibatches_hz": outcome.minibatches_hz,
        "p50_s": outcome.percentile_s(50),
        "p95_s": outcome.percentile_s(95),
        "p99_s": outcome.percentile_s(99),
        "violations": outcome.violation_share,
        "service": None if told is None else told.as_data(),
    }


def _write_json(json_file: Path | None, data: dict[str, Any]) -> None:
    if json_file is None:
        return
    try:
        run_folder.write_json(json_file, data)
    except OSError as error:
        raise BadInput("--json", str(json_file), f"a file that can be written ({error.strerror})") from error
