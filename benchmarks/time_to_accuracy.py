"""Seconds and joules until a model is good: who takes part, in which modes, and in rounds or asynchronously.

    python benchmarks/time_to_accuracy.py [--seeds N] [--first SEED] [--tasks NAME,...] [--ways NAME;...] [--quick]
        [--processes N]

Twenty emulated boards of five kinds, samples split by Dirichlet(0.1), real training, the ``local`` backend.
Printed per task and way: mean and 95 % interval (t distribution over the seeds) of the seconds on the fleet's clock and
of the joules until the test accuracy reaches the target, and how many seeds reached it at all. Reached is the first
evaluation at or above the target for which the mean of it and the next two is so too; time and energy are those at its
end. A run that never reaches it counts in no mean. Joules: of the boards that take part, from each round's start to its
end (work, radio, waiting for the others), and besides them the fleet's, with the boards that take no part resting. An
asynchronous run is played a second time to end with the model that reached the target, so that what the tasks under way
took until then is counted too. Then the ratio of every way to the one that it is held against, seed by seed, where both
reached the target.

The boards predict with ``physical`` and do not share what they measure, which makes a run some times quicker to play.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fedge.client import emulated
from fedge.devices.emulated_board import find_top_mode
from fedge.experiment import Experiment, FleetBoard, list_boards
from fedge.modes import find_mode_index
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import RoundRow
from server.aggregation.aggregator import build_strategy
from server.aggregation.async_strategies import AsyncStrategy
from server.run import build_coordinator
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest

BOARD_KINDS = ("nano", "xavier-nx", "agx-xavier", "orin-nano", "agx-orin-64gb")
BOARDS_PER_KIND = 4
CLIENTS_PER_ROUND = 5
BUFFER_SIZE = 5
EVALUATION_WINDOW = 3
"""Number of evaluations whose mean must not be below the target."""
QUICK_ROUNDS = 8
MODELS_PER_ROUND = 4
"""An asynchronous run makes at most this many models per round, so that it merges as many results as rounds would."""


@dataclass(frozen=True, slots=True)
class AccuracyTask:
    """A task to learn: the target accuracy, the largest number of rounds, and a board's training options."""

    task: str
    target: float
    rounds: int
    workload: Mapping[str, float]


ACCURACY_TASKS = (
    AccuracyTask("digits-cnn", 0.90, 200, {"local_epochs": 2.0, "learning_rate": 0.05}),
    AccuracyTask("synthetic-cnn", 0.75, 120, {"local_epochs": 2.0, "learning_rate": 0.02}),
)


@dataclass(frozen=True, slots=True)
class RunVariant:
    """A variant of the run, in an experiment's own words, and the variant that it is compared with."""

    name: str
    settings: Mapping[str, Any]
    against: str | None = None


def _select_clients(selector: str, policy: str) -> dict[str, Any]:
    """Select ``CLIENTS_PER_ROUND`` boards a round."""
    return {"policy": {"name": policy}, "selection": {"name": selector, "count": CLIENTS_PER_ROUND}}


FEDBUFF = {"policy": {"name": "maxn"}, "strategy": {"name": "FedBuff", "options": {"buffer_size": BUFFER_SIZE}}}
RUN_VARIANTS = (
    RunVariant("random, maxn", _select_clients("random", "maxn")),
    RunVariant("planner, balanced", _select_clients("planner", "balanced"), "random, maxn"),
    RunVariant("random, balanced", _select_clients("random", "balanced"), "random, maxn"),
    RunVariant("oort, balanced", _select_clients("oort", "balanced"), "random, maxn"),
    RunVariant("all, FedAvg, maxn", {"policy": {"name": "maxn"}}),
    RunVariant("all, FedBuff, maxn", FEDBUFF, "all, FedAvg, maxn"),
)


@dataclass(frozen=True, slots=True)
class AccuracyRun:
    """One run: the time and energy when the target was reached (None: never), and its best accuracy."""

    task: str
    way: str
    seed: int
    rounds: int
    best: float
    wall_s: float
    seconds: float | None = None
    joules: float | None = None
    fleet_joules: float | None = None


class TargetReached(Exception):
    """The target is reached, so that the run can end."""


def build_experiment(job: AccuracyTask, way: RunVariant, seed: int, rounds: int) -> Experiment:
    """Return the experiment of a variant; ``rounds`` are models if it is asynchronous."""
    shared = {
        "name": "time-to-accuracy",
        "seed": seed,
        "rounds": rounds,
        "backend": "local",
        "fleet": [{"device": kind, "count": BOARDS_PER_KIND} for kind in BOARD_KINDS],
        "workload": {"task": job.task, **job.workload},
        "data": {"partition": "dirichlet", "alpha": 0.1},
        "predictor": "physical",
        "share_samples": False,
    }
    return Experiment.model_validate({**shared, **way.settings})


def build_local_port(experiment: Experiment) -> LocalPort:
    """Return the boards, called in this process."""

    def respond(board: FleetBoard, question: OutgoingRequest) -> IncomingReply:
        return IncomingReply(*emulated.answer_request(experiment, board.index, question.ask, question.arrays))

    return LocalPort(
        {board.name: lambda question, board=board: respond(board, question) for board in list_boards(experiment)}
    )


def run_variant(job: AccuracyTask, way: RunVariant, seed: int, rounds: int) -> AccuracyRun:
    """Run a variant until the target is reached, or for ``rounds`` rounds or as many asynchronously merged results."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    started_s = time.monotonic()
    experiment = build_experiment(job, way, seed, rounds)
    asynchronous = isinstance(build_strategy(experiment.strategy), AsyncStrategy)
    rows = run_until_target(
        job, build_experiment(job, way, seed, rounds * MODELS_PER_ROUND) if asynchronous else experiment
    )
    end = find_target_row(rows, job.target)
    if asynchronous and end is not None:
        rows = run_until_target(job, build_experiment(job, way, seed, end + 1))
    return summarize_run(job, way=way, seed=seed, rows=rows, end=end, wall_s=time.monotonic() - started_s)


def run_until_target(job: AccuracyTask, experiment: Experiment) -> list[RoundRow]:
    """Return the rounds until the target is reached, or all of them."""
    tables = MemoryTables()

    def on_round(_: int) -> None:
        if find_target_row(read_round_rows(tables), job.target) is not None:
            raise TargetReached

    with contextlib.suppress(TargetReached):
        build_coordinator(experiment, build_local_port(experiment), tables, on_round=on_round).run()
    return read_round_rows(tables)


def read_round_rows(tables: MemoryTables) -> list[RoundRow]:
    """Return the rounds so far."""
    return [row for row in tables.rows if isinstance(row, RoundRow)]


def find_target_row(rows: Sequence[RoundRow], target: float) -> int | None:
    """Return the row at whose end the target was reached, or None."""
    accuracy = [row.accuracy for row in rows]
    for i in range(len(rows) - EVALUATION_WINDOW + 1):
        if accuracy[i] >= target and statistics.mean(accuracy[i : i + EVALUATION_WINDOW]) >= target:
            return i
    return None


def summarize_run(
    job: AccuracyTask, way: RunVariant, seed: int, rows: Sequence[RoundRow], end: int | None, wall_s: float
) -> AccuracyRun:
    """Summarise the rounds of a run that reached the target in row ``end``."""
    best = max(row.accuracy for row in rows)
    if end is None:
        return AccuracyRun(job.task, way=way.name, seed=seed, rounds=len(rows), best=best, wall_s=wall_s)
    joules = sum(row.energy_j for row in rows[: end + 1])
    fleet_joules = joules + sum(row.resting_energy_j or 0.0 for row in rows[: end + 1])
    return AccuracyRun(
        job.task,
        way=way.name,
        seed=seed,
        rounds=end + 1,
        best=best,
        wall_s=wall_s,
        seconds=rows[end].end_s,
        joules=joules,
        fleet_joules=fleet_joules,
    )


def describe_spread(job: AccuracyTask) -> str:
    """Describe the seconds of a step at MAXN by kind, and of a round of two epochs by board with its own samples."""
    experiment = build_experiment(job, RUN_VARIANTS[0], 1, 1)
    steps_s: dict[str, float] = {}
    rounds_s: list[float] = []
    for board in list_boards(experiment):
        seat = emulated.load_client(experiment, board.index)
        row = find_mode_index(seat.surface.modes, find_top_mode(seat.surface))
        assert row is not None
        step_s = float(seat.surface.step_s[row])
        steps_s.setdefault(board.entry.device, step_s)
        rounds_s.append(step_s * seat.setup.steps)
    kinds = ", ".join(f"{name} {step_s * 1e3:.0f} ms" for name, step_s in steps_s.items())
    spread = max(steps_s.values()) / min(steps_s.values())
    own = f"with their shares of seed 1 {min(rounds_s):.1f} to {max(rounds_s):.1f} s of work a round"
    return f"a minibatch at MAXN: {kinds}; spread {spread:.1f}; {own}"


def compute_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and half of its 95 % interval by the t distribution, which is nan for a single value."""
    from scipy import stats

    mean, n = statistics.mean(values), len(values)
    half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.nan
    return mean, half


def format_mean_and_interval(values: Sequence[float | None], digits: int = 1) -> str:
    """Format mean and interval of the values that are not None."""
    known = [value for value in values if value is not None]
    if not known:
        return f"{'never':>17s}"
    mean, half = compute_interval(known)
    return f"{mean:8.{digits}f} ± {half:6.{digits}f}"


def print_table(runs: Sequence[AccuracyRun], job: AccuracyTask) -> None:
    """Print the variants of one task, then each compared with its reference."""
    print(f"\n{job.task}: until {job.target:.0%} accuracy\n  {describe_spread(job)}")
    print(f"  {'way':20s} {'reached':>8s}   {'seconds':>17s}   {'kJ, taking part':>17s}   {'kJ, fleet':>17s}   rounds")
    for way in RUN_VARIANTS:
        mine = [run for run in runs if run.way == way.name]
        done = [run for run in mine if run.seconds is not None]
        if mine:
            columns = [format_mean_and_interval([r.seconds for r in done])]
            columns += [
                format_mean_and_interval([(j or 0.0) / 1e3 for j in js], 2)
                for js in ([r.joules for r in done], [r.fleet_joules for r in done])
            ]
            rounds = format_mean_and_interval([float(run.rounds) for run in done])
            print(f"  {way.name:20s} {len(done):3d} of {len(mine):1d}   {'   '.join(columns)}   {rounds}")
    for way in RUN_VARIANTS:
        if way.against is not None:
            print_comparison(runs, way)


def print_comparison(runs: Sequence[AccuracyRun], way: RunVariant) -> None:
    """Print the ratio of a variant to another one, seed by seed."""
    mine, other = ({r.seed: r for r in runs if r.way == name and r.seconds} for name in (way.name, way.against))
    both = sorted(mine.keys() & other.keys())
    if both:
        times, joules, fleet = (
            [getattr(mine[seed], field) / getattr(other[seed], field) for seed in both]
            for field in ("seconds", "joules", "fleet_joules")
        )
        better = sum(t < 1.0 and j < 1.0 for t, j in zip(times, joules, strict=True))
        figures = (
            f"time {format_mean_and_interval(times, 2)}, joules {format_mean_and_interval(joules, 2)}, the "
            f"fleet's {format_mean_and_interval(fleet, 2)}"
        )
        print(f"  {way.name} / {way.against}: {figures}; less of both in {better} of {len(both)} seeds")


def main(given: Sequence[str]) -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--tasks", default=",".join(job.task for job in ACCURACY_TASKS))
    parser.add_argument("--ways", default=";".join(way.name for way in RUN_VARIANTS))
    parser.add_argument("--quick", action="store_true", help=f"one seed, {QUICK_ROUNDS} rounds: only that it works")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args(given)
    jobs = [job for job in ACCURACY_TASKS if job.task in asked.tasks.split(",")]
    ways = [way for way in RUN_VARIANTS if way.name in asked.ways.split(";")]
    if not jobs or not ways or asked.seeds < 1:
        names = [[job.task for job in ACCURACY_TASKS], [way.name for way in RUN_VARIANTS]]
        parser.error(f"nothing to play; tasks {', '.join(names[0])}; ways {'; '.join(names[1])}; at least one seed")
    seeds = range(asked.first, asked.first + (1 if asked.quick else asked.seeds))
    runs: list[AccuracyRun] = []
    with ProcessPoolExecutor(asked.processes) as pool:
        waiting = [
            pool.submit(run_variant, job=job, way=way, seed=seed, rounds=QUICK_ROUNDS if asked.quick else job.rounds)
            for seed in seeds
            for job in jobs
            for way in ways
        ]
        for done in as_completed(waiting):
            runs.append(done.result())
            print(runs[-1], file=sys.stderr, flush=True)
    for job in jobs:
        print_table([run for run in runs if run.task == job.task], job)


if __name__ == "__main__":
    main(sys.argv[1:])
