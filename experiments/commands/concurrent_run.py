"""``fedge concurrent run``: trains one network and serves another for a while, and tells how both fared."""

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

from experiments.commands.outputs import check_output
from experiments.concurrent import batching, executing, view
from experiments.concurrent.executing import ALONE, MANAGED, NATIVE, Jobs, Outcome, Pair
from experiments.concurrent.workers import Wish, private_workers
from fedge.errors import BadInput, RunFailed, UnknownName
from fedge.telemetry import run_folder
from fedge.worker import networks
from fedge.worker.arrivals import KINDS, MOST_HZ, arrivals_of
from fedge.worker.client import Client, WorkerError
from fedge.worker.fields import BadField

HOWS = {MANAGED: (MANAGED,), NATIVE: (NATIVE,), ALONE: (ALONE,), "both": (MANAGED, NATIVE)}
DEVICES = ("auto", "cpu", "cuda")
STARTS = '{\n  "concurrent_run"'
"""How this command's JSON begins."""
DEFAULT_S = 60.0
MOST_BATCH = 1024
"""As the worker's own limit."""
MOST_LATENCY_S = 1000.0
"""Where the histogram of latencies ends."""
DYNAMIC = ((10.0, 0.5), (10.0, 1.5))
"""``--arrivals dynamic``: seconds, and the rate as a multiple of ``--rate-hz``. Chosen by us."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were typed."""

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


def run(asked: Asked, json_file: Path | None) -> None:
    """Execute, show, and write the result; Ctrl-C or a worker that fails ends it with what there is so far.

    Raises ``BadInput`` for wrong options before anything is started, ``RunFailed`` for a worker that cannot go on.
    """
    _check(asked)
    check_output("--json", json_file, STARTS)
    from rich.console import Console

    console, outcomes = Console(), list[Outcome]()
    ended: KeyboardInterrupt | RunFailed | None = None
    jobs = _jobs(asked, asked.infer_batch or 1)
    try:
        with _ending_orderly(), _told_errors(asked), _workers(asked) as pairs:
            device = _load(asked, pairs)
            jobs = _jobs(asked, asked.infer_batch or _chosen_batch(asked, pairs, console))
            console.print(_title(asked, jobs, device), soft_wrap=True, highlight=False, markup=False)
            for how in HOWS[asked.how]:
                _play(pairs[how], jobs, how, _seconds(asked), outcomes, console)
    except (KeyboardInterrupt, RunFailed) as error:
        ended = error
    if outcomes:
        console.print(view.table(outcomes, asked.latency_s))
        _write(json_file, as_data(asked, jobs, outcomes, interrupted=ended is not None))
    if ended is not None:
        raise ended


def as_data(asked: Asked, jobs: Jobs, outcomes: Sequence[Outcome], *, interrupted: bool) -> dict[str, Any]:
    """The result as JSON has it."""
    head = {**asdict(asked), "arrivals": dict(jobs.arrivals), "infer_batch": jobs.infer_batch, "cores": _cores()}
    return {"concurrent_run": head, "interrupted": interrupted, "outcomes": [_outcome_data(one) for one in outcomes]}


# What was asked for ---------------------------------------------------------------------------------------------------


def _check(asked: Asked) -> None:
    _check_names(asked)
    _check_numbers(asked)
    if asked.worker is not None and NATIVE in HOWS[asked.how]:
        raise BadInput("--how", f"{asked.how} with --worker", "managed or alone: native takes two workers of its own")
    if asked.worker is not None and asked.threads is not None:
        raise BadInput("--threads", f"{asked.threads} with --worker", "nothing: that worker has its own")
    try:
        arrivals_of(_arrivals(asked))
    except BadField as error:
        raise BadInput("--arrivals", asked.arrivals, str(error)) from error


def _check_names(asked: Asked) -> None:
    for option, name in (("--train", asked.train), ("--infer", asked.infer)):
        if name in networks.REFUSED:
            raise BadInput(option, repr(name), f"another one: {networks.REFUSED[name]}")
        if name not in networks.NETWORKS:
            raise UnknownName(option, name, tuple(networks.NETWORKS))
    _one_of("--how", asked.how, tuple(HOWS))
    _one_of("--arrivals", asked.arrivals, KINDS)
    _one_of("--device", asked.device, DEVICES)


def _check_numbers(asked: Asked) -> None:
    for option, value in (("--rate-hz", asked.rate_hz), ("--latency-s", asked.latency_s)):
        if not (math.isfinite(value) and value > 0.0):
            raise BadInput(option, f"{value:g}", "a number above 0")
    if asked.rate_hz > MOST_HZ:
        raise BadInput("--rate-hz", f"{asked.rate_hz:g}", f"{MOST_HZ:g} at most")
    if asked.latency_s > MOST_LATENCY_S:
        raise BadInput("--latency-s", f"{asked.latency_s:g}", f"{MOST_LATENCY_S:g} s at most")
    if asked.minutes is not None and asked.seconds is not None:
        raise BadInput("--seconds", "--minutes as well", "one of the two")
    for option, length in (("--minutes", asked.minutes), ("--seconds", asked.seconds)):
        if length is not None and not math.isfinite(length):
            raise BadInput(option, f"{length:g}", "a number above 0")
    if asked.seed < 0:
        raise BadInput("--seed", str(asked.seed), "0 or more")
    for option, size in (("--infer-batch", asked.infer_batch), ("--train-batch", asked.train_batch)):
        if size is not None and size > MOST_BATCH:
            raise BadInput(option, str(size), f"{MOST_BATCH} at most")


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownName(option, value, known)


def _seconds(asked: Asked) -> float:
    if asked.seconds is not None:
        return asked.seconds
    return DEFAULT_S if asked.minutes is None else 60.0 * asked.minutes


def _arrivals(asked: Asked) -> dict[str, Any]:
    """As the worker's ``serve`` has them."""
    if asked.arrivals == "dynamic":
        rates = [[seconds, factor * asked.rate_hz] for seconds, factor in DYNAMIC]
        return {"kind": "dynamic", "rates": rates, "seed": asked.seed}
    return {"kind": asked.arrivals, "rate_hz": asked.rate_hz, "seed": asked.seed}


def _jobs(asked: Asked, infer_batch: int) -> Jobs:
    return Jobs(asked.train, asked.infer, asked.train_batch, infer_batch, asked.latency_s, _arrivals(asked))


def _cores() -> int:
    """Those this program and its workers may use; torch takes as many threads, where they are cores of their own."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _title(asked: Asked, jobs: Jobs, device: str) -> str:
    threads = "threads as the machine gives" if asked.threads is None else f"threads {asked.threads}"
    where = f"{device}, cores {_cores()}, {threads}" if asked.worker is None else f"{device}, worker {asked.worker}"
    if asked.how == ALONE:
        return f"training {jobs.train} by {jobs.train_batch}, on {where}"
    return (
        f"training {jobs.train} by {jobs.train_batch}, serving {jobs.infer} by {jobs.infer_batch} at "
        f"{asked.rate_hz:g}/s ({asked.arrivals}) within {view.milliseconds(jobs.latency_s)} ms, on {where}"
    )


# The course -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _workers(asked: Asked) -> Iterator[dict[str, Pair]]:
    """Who trains and who serves, by how."""
    if asked.worker is not None:
        with Client(asked.worker) as client:
            yield dict.fromkeys((MANAGED, ALONE), Pair(client, client))
        return
    wishes = tuple(Wish(name, asked.device, threads=asked.threads) for name in ("one", "two"))
    with private_workers(wishes if NATIVE in HOWS[asked.how] else wishes[:1]) as clients:
        one = clients["one"]
        yield {MANAGED: Pair(one, one), ALONE: Pair(one, one), NATIVE: Pair(one, clients.get("two", one))}


def _load(asked: Asked, pairs: dict[str, Pair]) -> str:
    """Make who trains ready; the device that it took."""
    return executing.load(pairs[MANAGED].training, asked.train, asked.device)


def _chosen_batch(asked: Asked, pairs: dict[str, Pair], console: Any) -> int:
    """The largest batch size that holds the budget, from a few that are measured here; 1 where nothing is served."""
    if asked.how == ALONE:
        return 1
    client = pairs[MANAGED].training
    step_s = executing.median_s(client, asked.train_batch, "train")
    executing.load(client, asked.infer, asked.device)
    seconds: dict[int, float] = {}
    for size in batching.SIZES:
        if size > 1 and size / asked.rate_hz > asked.latency_s:
            break
        seconds[size] = executing.median_s(client, size, "infer")
    executing.load(client, asked.train, asked.device)
    chosen = batching.largest(seconds, step_s, asked.rate_hz, asked.latency_s)
    if chosen is None:
        raise _no_batch(asked, seconds, step_s)
    times = ", ".join(f"{size}: {view.milliseconds(one)}" for size, one in seconds.items())
    console.print(
        f"measured: a training minibatch {view.milliseconds(step_s)} ms, inference by batch size {times} ms",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    return chosen


def _no_batch(asked: Asked, seconds: dict[int, float], step_s: float) -> BadInput:
    least_s = batching.least_budget_s(seconds, step_s, asked.rate_hz)
    got = f"{asked.latency_s:g} s at {asked.rate_hz:g} requests/s, which no batch size holds here"
    if least_s is None:
        right = f"fewer requests per second: inference in batches of {max(seconds)} or less does not keep up here"
        larger = ", or a longer --latency-s for larger batches" if max(seconds) < max(batching.SIZES) else ""
        return BadInput("--rate-hz", got, right + larger)
    # Rounded up, so that the number told is enough; these times differ from one start to the next all the same.
    right = f"{math.ceil(1e3 * least_s) / 1e3:g} s or more, or --infer-batch to try one that is not expected to hold"
    return BadInput("--latency-s", got, right)


def _play(pair: Pair, jobs: Jobs, how: str, seconds: float, outcomes: list[Outcome], console: Any) -> None:
    """One turn; what there is of it stands in ``outcomes`` at every moment."""
    place = len(outcomes)

    with view.TurnView(f"{jobs.train} + {jobs.infer}", seconds, console) as shown:

        def tell(outcome: Outcome) -> None:
            outcomes[place:] = [outcome]
            shown(outcome)

        executing.turn(pair, jobs, how, seconds, tell=tell)


@contextlib.contextmanager
def _told_errors(asked: Asked) -> Iterator[None]:
    """A worker's refusal as an error of ours."""
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
def _ending_orderly() -> Iterator[None]:
    """SIGTERM and SIGHUP become an exit, so that the workers are ended and what is served elsewhere is withdrawn."""

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The result -----------------------------------------------------------------------------------------------------------


def _outcome_data(outcome: Outcome) -> dict[str, Any]:
    told = outcome.told
    return {
        "how": outcome.how,
        "seconds": outcome.seconds,
        "minibatches": outcome.minibatches,
        "minibatches_hz": outcome.minibatches_hz,
        "p50_s": outcome.percentile_s(50),
        "p95_s": outcome.percentile_s(95),
        "p99_s": outcome.percentile_s(99),
        "violations": outcome.violations,
        "service": None if told is None else told.as_data(),
    }


def _write(json_file: Path | None, data: dict[str, Any]) -> None:
    if json_file is None:
        return
    try:
        run_folder.write_json(json_file, data)
    except OSError as error:
        raise BadInput("--json", str(json_file), f"a file that can be written ({error.strerror})") from error
