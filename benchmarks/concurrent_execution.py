"""Managed interleaving against two processes, really executed: latencies of a service, and what is left for training.

    python benchmarks/concurrent_execution.py [--device cpu|cuda] [--cores N] [--load 0.45] [--seconds 12] [--turns 5]

Trains one built-in network and serves another to Poisson arrivals, in short turns one after the other, so that whatever
else the machine does hits all alike: training *alone*, *managed* (one worker does both, a minibatch at a time),
*native* (two processes share the machine), *native+nice* (the one that serves has a higher priority) and, where there
are several cores, *native+halves* (each has half as many threads as there are cores). All collect their batches with
the same code and are measured by the same one. Figures are medians over the turns.

The regime follows from what is measured at the start, with nothing beside it (t_in: a batch of b; t_tr: a training
minibatch): the arrival rate is a = load * b / t_in, so that the service wants the share ``--load`` of the machine, and
the budget is L = margin * (b / a + t_in + t_tr): collecting a batch, one minibatch of training, the batch itself.

On the CPU everything shares ``--cores`` cores, one by default, as two networks share a board's one GPU: then neither
can run beside the other, only in turn. Torch takes its threads as the machine gives them, so many as cores, in every
process alike. With ``--device cuda`` it is the GPU that is shared, and the processes have all cores. ``--priority -10``
runs all of it before the machine's other programs (needs root below 0).

Says whether managed holds the budget at the 99th percentile (at most 1 % late), native does not, and managed trains at
90 % or more of native's speed. Needs torch, numpy and the checkout alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.concurrent import batching, executing, view
from experiments.concurrent.executing import ALONE, MANAGED, NATIVE, Jobs, Outcome, Pair
from experiments.concurrent.workers import Wish, private_workers
from fedge.errors import FedgeError
from fedge.worker.client import Client, WorkerError

NICE, HALVES = "native+nice", "native+halves"
HOWS = (ALONE, MANAGED, NATIVE, NICE, HALVES)
HIGHER = -10
"""The nice value of the serving process's higher priority, on top of all the others'. Chosen by us."""
LATE = 0.01
"""The share that may be late at the 99th percentile."""
LEAST_SHARE = 0.9
DEFAULTS = {
    "cpu": ("mnist-cnn", 16, "cifar10-resnet18", 4),
    "cuda": ("resnet18-imagenet", 128, "resnet50-tinyimagenet224", 64),
}
"""Training task and batch, served task and batch: on a GPU such as keep it busy, not the process that feeds it."""


@dataclass(frozen=True, slots=True)
class Regime:
    """What is executed, and the measured times that it follows from."""

    jobs: Jobs
    batch_s: float
    step_s: float
    rate_hz: float

    def __str__(self) -> str:
        ms = view.milliseconds
        jobs = self.jobs
        return (
            f"training {jobs.train} by {jobs.train_batch} (t_tr {ms(self.step_s)} ms), serving {jobs.infer} by "
            f"{jobs.infer_batch} (t_in {ms(self.batch_s)} ms), Poisson arrivals {self.rate_hz:.1f}/s, "
            f"window {ms(jobs.infer_batch / self.rate_hz)} ms, budget {ms(jobs.latency_s)} ms"
        )


def main() -> int:
    arguments = parsed()
    try:
        with preferred(arguments.priority):
            return measured(arguments)
    except PermissionError:
        print(f"--priority: got {arguments.priority}; 0 or more, unless root runs it", file=sys.stderr)
        return 2


def measured(arguments: argparse.Namespace) -> int:
    """Everything; the exit status."""
    cores = pin(arguments.cores or ("1" if arguments.device == "cpu" else "all"))
    wishes = [Wish("one", arguments.device), Wish("two", arguments.device)]
    if may_raise_priority():
        wishes.append(Wish("three", arguments.device, HIGHER))
    if cores > 1 and arguments.device == "cpu":
        wishes += [Wish(name, arguments.device, threads=cores // 2) for name in ("four", "five")]
    try:
        with private_workers(tuple(wishes)) as workers:
            regime, device = prepared(workers, arguments)
            print(f"{platform.machine()}, {cores} cores for all, {device}, torch {workers['one'].status()['torch']}")
            print(regime, flush=True)
            turns = played(workers, regime.jobs, arguments)
    except (FedgeError, WorkerError) as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    told(turns, regime)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(as_data(turns, regime)) + "\n", encoding="utf-8")
    return 0 if verdict(turns) else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=tuple(DEFAULTS), default="cpu")
    parser.add_argument("--cores", type=a_core_count, help="how many all share, or all; 1 on the CPU, all with a GPU")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--load", type=float, default=0.45, help="share of the machine that the service wants")
    parser.add_argument("--margin", type=float, default=1.25, help="of the budget")
    parser.add_argument("--priority", type=int, default=0, help="added to the nice value of everything")
    parser.add_argument("--train", help="the task that is trained")
    parser.add_argument("--train-batch", type=int)
    parser.add_argument("--infer", help="the task that is served")
    parser.add_argument("--infer-batch", type=int)
    parser.add_argument("--json", metavar="FILE", help="write every turn's figures")
    return parser.parse_args()


def a_core_count(text: str) -> str:
    there = len(os.sched_getaffinity(0))
    if text not in ("all", *map(str, range(1, there + 1))):
        raise argparse.ArgumentTypeError(f"got {text}; 1 to {there}, or all")
    return text


@contextmanager
def preferred(nice: int) -> Iterator[None]:
    """Run this process and all that it starts before or after others, also where sessions share the processor."""
    session = Path("/proc/self/autogroup")
    if not nice or not session.exists():
        os.nice(nice)
        yield
        return
    session.write_text(str(nice))
    try:
        yield
    finally:  # the session lives on
        session.write_text("0")


def pin(cores: str) -> int:
    """Keep this process and all that it starts on so many cores; how many they are."""
    mine = sorted(os.sched_getaffinity(0))
    if cores != "all":
        mine = mine[-int(cores) :]  # the first one serves most interrupts
        os.sched_setaffinity(0, mine)
    return len(mine)


def may_raise_priority() -> bool:
    """Whether a process may be started before others."""
    return os.geteuid() == 0


def prepared(workers: dict[str, Client], arguments: argparse.Namespace) -> tuple[Regime, str]:
    """Measure, follow the rules, and make every worker ready to train."""
    train, train_batch, infer, infer_batch = DEFAULTS[arguments.device]
    train, infer = arguments.train or train, arguments.infer or infer
    train_batch, infer_batch = arguments.train_batch or train_batch, arguments.infer_batch or infer_batch
    one = workers["one"]
    device = executing.load(one, infer, arguments.device)
    batch_s = executing.median_s(one, infer_batch, "infer")
    executing.load(one, train, arguments.device)
    step_s = executing.median_s(one, train_batch, "train")
    rate_hz = arguments.load * infer_batch / batch_s
    budget_s = arguments.margin * batching.peak_s(infer_batch, batch_s, step_s, rate_hz)
    arrivals = {"kind": "poisson", "rate_hz": rate_hz}
    return Regime(Jobs(train, infer, train_batch, infer_batch, budget_s, arrivals), batch_s, step_s, rate_hz), device


def played(workers: dict[str, Client], jobs: Jobs, arguments: argparse.Namespace) -> dict[str, list[Outcome]]:
    """All turns by how; each round of turns has its own arrivals, the same for all, and its own order."""
    one = workers["one"]
    pairs = {ALONE: Pair(one, one), MANAGED: Pair(one, one), NATIVE: Pair(one, workers["two"])}
    if "three" in workers:
        pairs[NICE] = Pair(one, workers["three"])
    if "four" in workers:
        executing.load(workers["four"], jobs.train, arguments.device)
        pairs[HALVES] = Pair(workers["four"], workers["five"])
    done: dict[str, list[Outcome]] = {how: [] for how in HOWS if how in pairs}
    for turn in range(arguments.turns):
        seeded = replace(jobs, arrivals=dict(jobs.arrivals, seed=turn))
        order = list(done)
        for how in order[turn % len(order) :] + order[: turn % len(order)]:
            outcome = executing.turn(pairs[how], seeded, ALONE if how == ALONE else how, arguments.seconds)
            done[how].append(outcome)
            print(f"  turn {turn + 1} {how:12}{view.line(outcome)}", flush=True)
    return done


def told(turns: dict[str, list[Outcome]], regime: Regime) -> None:
    """The table and the three lines."""
    print(f"\n{'median of turns':16}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'late %':>9}{'training/s':>12}{'batch':>8}")
    for how, outcomes in turns.items():
        cells = [f"{1e3 * middle([p(o, q) for o in outcomes]):.0f}" if how != ALONE else "-" for q in (50, 95, 99)]
        late = "-" if how == ALONE else f"{100 * late_share(outcomes):.2f}"
        size = "-" if how == ALONE else f"{middle([batch_of(o) for o in outcomes]):.1f}"
        speed = middle([o.minibatches_hz for o in outcomes])
        print(f"{how:16}" + "".join(f"{cell:>9}" for cell in [*cells, late]) + f"{speed:>12.1f}{size:>8}")
    print(f"\nbudget {view.milliseconds(regime.jobs.latency_s)} ms; a service holds it with at most {LATE:.0%} late")
    for text, so in lines(turns):
        print(f"{'yes' if so else 'NO ':4}{text}")


def lines(turns: dict[str, list[Outcome]]) -> list[tuple[str, bool]]:
    """The claims with their figures, and whether each is so."""
    managed, native, ratio = late_share(turns[MANAGED]), late_share(turns[NATIVE]), speed_ratio(turns, NATIVE)
    claims = [
        (f"managed holds the budget at the 99th percentile: {managed:.2%} late", managed <= LATE),
        (f"native does not: {native:.2%} late", native > LATE),
        (f"managed trains at {ratio:.0%} of native's speed, {LEAST_SHARE:.0%} or more", ratio >= LEAST_SHARE),
    ]
    for how in (one for one in (NICE, HALVES) if one in turns):
        late, ratio = late_share(turns[how]), speed_ratio(turns, how)
        held = "holds it as well" if late <= LATE else "does not hold it either"
        claims.append((f"besides: {how} {held}: {late:.2%} late; managed trains at {ratio:.0%} of its speed", True))
    return claims


def verdict(turns: dict[str, list[Outcome]]) -> bool:
    return all(so for _, so in lines(turns))


def late_share(outcomes: list[Outcome]) -> float:
    """The median over the turns of the share that was late or dropped; a turn without an answer counts as all late."""
    return middle([1.0 if one.violations is None else one.violations for one in outcomes])


def speed_ratio(turns: dict[str, list[Outcome]], other: str) -> float:
    """The median over the turns of managed's training speed over that of the other of the same turn."""
    pairs = zip(turns[MANAGED], turns[other], strict=True)
    return middle([ours.minibatches_hz / theirs.minibatches_hz for ours, theirs in pairs])


def batch_of(outcome: Outcome) -> float:
    """The mean size of the batches."""
    return outcome.told.served / outcome.told.batches if outcome.told and outcome.told.batches else 0.0


def p(outcome: Outcome, q: float) -> float:
    """A percentile in seconds; endless where nothing was answered."""
    found = outcome.percentile_s(q)
    return float("inf") if found is None else found


def middle(values: list[float]) -> float:
    return statistics.median(values)


def as_data(turns: dict[str, list[Outcome]], regime: Regime) -> dict[str, object]:
    """Every turn's figures."""
    rows = [
        {"how": how, "minibatches_hz": one.minibatches_hz, "late": one.violations, "p99_s": one.percentile_s(99)}
        for how, outcomes in turns.items()
        for one in outcomes
    ]
    return {"regime": str(regime), "budget_s": regime.jobs.latency_s, "turns": rows}


if __name__ == "__main__":
    sys.exit(main())
