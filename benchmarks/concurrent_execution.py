"""Managed interleaving against two processes, really executed: latencies of a service, and what is left for training.

    python benchmarks/concurrent_execution.py [--device cpu|cuda] [--cores N] [--load 0.45] [--seconds 12] [--turns 5]

Trains one built-in network and serves another to Poisson arrivals, in short turns one after the other, so that whatever
else the machine does hits all alike: training *alone*, *managed* (one worker does both, a minibatch at a time),
*native* (two processes share the machine) and, as root, *native+nice* (the one that serves has a higher priority). All
collect their batches with the same code and are measured by the same one. Figures are medians over the turns.

The regime follows from what is measured at the start, with nothing beside it (t_in: a batch of b; t_tr: a training
minibatch): the arrival rate is a = load * b / t_in, so that the service wants the share ``--load`` of the machine, and
the budget is L = 1.25 * (b / a + t_in + t_tr): collecting a batch, one minibatch of training, the batch itself.

On the CPU everything shares ``--cores`` cores, one by default, as two networks share a board's one GPU: then neither
can run beside the other, only in turn. Torch takes its threads as the machine gives them, so many as cores, in every
process alike. With ``--device cuda`` it is the GPU that is shared, and the processes have all cores.

Says whether managed holds the budget at the 99th percentile (at most 1 % late), native does not, and managed trains at
90 % or more of native's speed. Needs torch, numpy and the checkout alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.report.analysis import concurrent_terminal
from fedge.errors import FedgeError
from fedge.serving import side_by_side
from fedge.serving.private_workers import WorkerSettings, start_workers
from fedge.serving.side_by_side import (
    ALONE,
    MANAGED,
    NATIVE,
    SideBySideJobs,
    SideBySideOutcome,
    WorkerPair,
    peak_latency_s,
)
from fedge.worker.worker_client import WorkerClient, WorkerError

NICE = "native+nice"
EXECUTION_VARIANTS = (ALONE, MANAGED, NATIVE, NICE)
SERVING_NICE = -10
"""Nice value of the serving process with a higher priority, relative to all the others'; a moderate default."""
BUDGET_MARGIN = 1.25
"""Budget over the latency under even arrivals."""
LATE_SHARE = 0.01
"""Share of requests that may be late at the 99th percentile."""
MIN_SPEED_RATIO = 0.9
DEFAULTS = {
    "cpu": ("mnist-cnn", 16, "cifar10-resnet18", 4),
    "cuda": ("resnet18-imagenet", 128, "resnet50-tinyimagenet224", 64),
}
"""Training task and batch, served task and batch; on a GPU large enough to keep it busy, not the feeding process."""


@dataclass(frozen=True, slots=True)
class ServingRegime:
    """The executed jobs, and the measured times from which they follow."""

    jobs: SideBySideJobs
    batch_s: float
    step_s: float
    rate_hz: float

    def __str__(self) -> str:
        ms = concurrent_terminal.format_milliseconds
        jobs = self.jobs
        return (
            f"training {jobs.train} by {jobs.train_batch} (t_tr {ms(self.step_s)} ms), serving {jobs.infer} by "
            f"{jobs.infer_batch} (t_in {ms(self.batch_s)} ms), Poisson arrivals {self.rate_hz:.1f}/s, "
            f"window {ms(jobs.infer_batch / self.rate_hz)} ms, budget {ms(jobs.latency_s)} ms"
        )


def main() -> int:
    """Run everything and return the exit status."""
    options = parse_options()
    cores = pin_cores(options.cores or ("1" if options.device == "cpu" else "all"))
    settings = [WorkerSettings("one", options.device), WorkerSettings("two", options.device)]
    if os.geteuid() == 0:
        settings.append(WorkerSettings("three", options.device, SERVING_NICE))
    try:
        with start_workers(tuple(settings)) as workers:
            regime, device = prepare_workers(workers, options)
            print(f"{platform.machine()}, {cores} cores for all, {device}, torch {workers['one'].status()['torch']}")
            print(regime, flush=True)
            turns = run_turns(workers, regime.jobs, options)
    except (FedgeError, WorkerError) as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    claims = build_claims(turns)
    report_turns(turns, regime, claims)
    return 0 if all(holds for _, holds in claims) else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=tuple(DEFAULTS), default="cpu")
    parser.add_argument(
        "--cores", type=parse_core_count, help="how many all share, or all; 1 on the CPU, all with a GPU"
    )
    parser.add_argument("--seconds", type=float, default=12.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--load", type=float, default=0.45, help="share of the machine that the service wants")
    parser.add_argument("--train", help="the task that is trained")
    parser.add_argument("--train-batch", type=int)
    parser.add_argument("--infer", help="the task that is served")
    parser.add_argument("--infer-batch", type=int)
    return parser.parse_args()


def parse_core_count(text: str) -> str:
    cores = len(os.sched_getaffinity(0))
    if text not in ("all", *map(str, range(1, cores + 1))):
        raise argparse.ArgumentTypeError(f"got {text}; 1 to {cores}, or all")
    return text


def pin_cores(cores: str) -> int:
    """Restrict this process and its children to ``cores`` cores, and return their number."""
    mine = sorted(os.sched_getaffinity(0))
    if cores != "all":
        mine = mine[-int(cores) :]  # the first one serves most interrupts
        os.sched_setaffinity(0, mine)
    return len(mine)


def prepare_workers(workers: dict[str, WorkerClient], options: argparse.Namespace) -> tuple[ServingRegime, str]:
    """Measure the jobs, derive the regime, and make every worker ready to train."""
    train, train_batch, infer, infer_batch = DEFAULTS[options.device]
    train, infer = options.train or train, options.infer or infer
    train_batch, infer_batch = options.train_batch or train_batch, options.infer_batch or infer_batch
    one = workers["one"]
    device = side_by_side.load_task(one, infer, options.device)
    batch_s = side_by_side.measure_step_s(one, infer_batch, "infer")
    side_by_side.load_task(one, train, options.device)
    step_s = side_by_side.measure_step_s(one, train_batch, "train")
    rate_hz = options.load * infer_batch / batch_s
    budget_s = BUDGET_MARGIN * peak_latency_s(infer_batch, batch_s, step_s, rate_hz)
    arrivals = {"kind": "poisson", "rate_hz": rate_hz}
    return ServingRegime(
        SideBySideJobs(
            train, infer=infer, train_batch=train_batch, infer_batch=infer_batch, latency_s=budget_s, arrivals=arrivals
        ),
        batch_s,
        step_s,
        rate_hz,
    ), device


def run_turns(
    workers: dict[str, WorkerClient], jobs: SideBySideJobs, options: argparse.Namespace
) -> dict[str, list[SideBySideOutcome]]:
    """Run all turns by variant; each round of turns has its own arrivals, the same for all, and its own order."""
    one = workers["one"]
    pairs = {ALONE: WorkerPair(one, one), MANAGED: WorkerPair(one, one), NATIVE: WorkerPair(one, workers["two"])}
    if "three" in workers:
        pairs[NICE] = WorkerPair(one, workers["three"])
    done: dict[str, list[SideBySideOutcome]] = {how: [] for how in EXECUTION_VARIANTS if how in pairs}
    for turn in range(options.turns):
        seeded = replace(jobs, arrivals=dict(jobs.arrivals, seed=turn))
        order = list(done)
        for how in order[turn % len(order) :] + order[: turn % len(order)]:
            outcome = side_by_side.run_turn(pairs[how], seeded, ALONE if how == ALONE else how, options.seconds)
            done[how].append(outcome)
            print(f"  turn {turn + 1} {how:12}{concurrent_terminal.format_outcome(outcome)}", flush=True)
    return done


def report_turns(
    turns: dict[str, list[SideBySideOutcome]], regime: ServingRegime, claims: list[tuple[str, bool]]
) -> None:
    """Print the table and the three claims."""
    print(f"\n{'median of turns':16}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'late %':>9}{'training/s':>12}{'batch':>8}")
    for how, outcomes in turns.items():
        cells = [
            f"{1e3 * statistics.median([latency_percentile_s(o, q) for o in outcomes]):.0f}" if how != ALONE else "-"
            for q in (50, 95, 99)
        ]
        late = "-" if how == ALONE else f"{100 * median_late_share(outcomes):.2f}"
        size = "-" if how == ALONE else f"{statistics.median([mean_batch_size(o) for o in outcomes]):.1f}"
        speed = statistics.median([o.minibatches_hz for o in outcomes])
        print(f"{how:16}" + "".join(f"{cell:>9}" for cell in [*cells, late]) + f"{speed:>12.1f}{size:>8}")
    print(
        f"\nbudget {concurrent_terminal.format_milliseconds(regime.jobs.latency_s)} ms; a service holds it with "
        f"at most {LATE_SHARE:.0%} late"
    )
    for text, holds in claims:
        print(f"{'yes' if holds else 'NO ':4}{text}")


def build_claims(turns: dict[str, list[SideBySideOutcome]]) -> list[tuple[str, bool]]:
    """Return the claims with their figures, and whether each holds."""
    managed, native, ratio = (
        median_late_share(turns[MANAGED]),
        median_late_share(turns[NATIVE]),
        median_speed_ratio(turns, NATIVE),
    )
    claims = [
        (f"managed holds the budget at the 99th percentile: {managed:.2%} late", managed <= LATE_SHARE),
        (f"native does not: {native:.2%} late", native > LATE_SHARE),
        (f"managed trains at {ratio:.0%} of native's speed, {MIN_SPEED_RATIO:.0%} or more", ratio >= MIN_SPEED_RATIO),
    ]
    if NICE in turns:
        late, ratio = median_late_share(turns[NICE]), median_speed_ratio(turns, NICE)
        held = "holds it as well" if late <= LATE_SHARE else "does not hold it either"
        claims.append((f"besides: {NICE} {held}: {late:.2%} late; managed trains at {ratio:.0%} of its speed", True))
    return claims


def median_late_share(outcomes: list[SideBySideOutcome]) -> float:
    """Return the median over the turns of the late or dropped share; a turn without an answer counts as all late."""
    return statistics.median([1.0 if one.violation_share is None else one.violation_share for one in outcomes])


def median_speed_ratio(turns: dict[str, list[SideBySideOutcome]], other: str) -> float:
    """Return the median over the turns of managed's training speed relative to the other's in the same turn."""
    pairs = zip(turns[MANAGED], turns[other], strict=True)
    return statistics.median([ours.minibatches_hz / theirs.minibatches_hz for ours, theirs in pairs])


def mean_batch_size(outcome: SideBySideOutcome) -> float:
    """Return the mean batch size."""
    return outcome.service.served / outcome.service.batches if outcome.service and outcome.service.batches else 0.0


def latency_percentile_s(outcome: SideBySideOutcome, q: float) -> float:
    """Return a percentile of the latency in seconds, infinite if nothing was answered."""
    latency_s = outcome.percentile_s(q)
    return float("inf") if latency_s is None else latency_s


if __name__ == "__main__":
    sys.exit(main())
