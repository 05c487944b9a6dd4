"""Seconds and joules until a model is good: who takes part, in which modes, and in rounds or asynchronously.

    python benchmarks/time_to_accuracy.py [--seeds 5] [--quick] [--model-mb MB]

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

import contextlib
import logging
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from figures import build_parser, report_progress

from fedge.client import emulated
from fedge.client.emulated import ClientTask
from fedge.devices.emulated_board import find_top_mode
from fedge.experiment import Experiment, list_boards
from fedge.modes import find_mode_index
from fedge.studies.task_pool import run_jobs
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
PROCESSES = 2
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
class RunJob:
    """One run to make, of at most ``rounds`` rounds."""

    task: AccuracyTask
    variant: RunVariant
    seed: int
    rounds: int

    def __str__(self) -> str:
        return f"{self.task.task}; {self.variant.name}; seed {self.seed}"


@dataclass(frozen=True, slots=True)
class AccuracyRun:
    """One run: the time and energy when the target was reached (None: never)."""

    task: str
    variant: str
    seed: int
    rounds: int
    seconds: float | None = None
    joules: float | None = None
    fleet_joules: float | None = None


class TargetReached(Exception):
    """The target is reached, so that the run can end."""


def build_experiment(task: AccuracyTask, variant: RunVariant, seed: int, rounds: int) -> Experiment:
    """Return the experiment of a variant; ``rounds`` are models if it is asynchronous."""
    shared = {
        "name": "time-to-accuracy",
        "seed": seed,
        "rounds": rounds,
        "backend": "local",
        "fleet": [{"device": kind, "count": BOARDS_PER_KIND} for kind in BOARD_KINDS],
        "workload": {"task": task.task, **task.workload},
        "data": {"partition": "dirichlet", "alpha": 0.1},
        "predictor": "physical",
        "share_samples": False,
    }
    return Experiment.model_validate({**shared, **variant.settings})


def build_local_port(experiment: Experiment) -> LocalPort:
    """Return the boards, called in this process."""
    index = {board.name: board.index for board in list_boards(experiment)}

    def respond(questions: Mapping[str, OutgoingRequest]) -> dict[str, IncomingReply]:
        tasks = [ClientTask(experiment, index[name], asked.ask, asked.arrays) for name, asked in questions.items()]
        answers = emulated.answer_together(tasks)
        return {name: IncomingReply(*answer) for name, answer in zip(questions, answers, strict=True)}

    return LocalPort(respond)


def run_variant(job: RunJob) -> AccuracyRun:
    """Run a variant until the target is reached, or for its rounds or as many asynchronously merged results."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    build = partial(build_experiment, job.task, job.variant, job.seed)
    experiment = build(job.rounds)
    asynchronous = isinstance(build_strategy(experiment.strategy), AsyncStrategy)
    rows = run_until_target(job.task, build(job.rounds * MODELS_PER_ROUND) if asynchronous else experiment)
    end = find_target_row(rows, job.task.target)
    if asynchronous and end is not None:
        rows = run_until_target(job.task, build(end + 1))
    return summarize_run(job, rows, end)


def run_until_target(task: AccuracyTask, experiment: Experiment) -> list[RoundRow]:
    """Return the rounds until the target is reached, or all of them."""
    tables = MemoryTables()

    def on_round(_: int) -> None:
        if find_target_row(read_round_rows(tables), task.target) is not None:
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


def summarize_run(job: RunJob, rows: Sequence[RoundRow], end: int | None) -> AccuracyRun:
    """Summarise the rounds of a run that reached the target in row ``end``."""
    run = AccuracyRun(job.task.task, job.variant.name, job.seed, len(rows) if end is None else end + 1)
    if end is None:
        return run
    joules = sum(row.energy_j for row in rows[: end + 1])
    fleet_joules = joules + sum(row.resting_energy_j or 0.0 for row in rows[: end + 1])
    return replace(run, seconds=rows[end].end_s, joules=joules, fleet_joules=fleet_joules)


def describe_spread(task: AccuracyTask) -> str:
    """Describe the seconds of a step at MAXN by kind, and of a round of two epochs by board with its own samples."""
    experiment = build_experiment(task, RUN_VARIANTS[0], 1, 1)
    steps_s: dict[str, float] = {}
    rounds_s: list[float] = []
    for board in list_boards(experiment):
        client = emulated.load_client(experiment, board.index)
        row = find_mode_index(client.surface.modes, find_top_mode(client.surface))
        assert row is not None
        step_s = float(client.surface.step_s[row])
        steps_s.setdefault(board.entry.device, step_s)
        rounds_s.append(step_s * client.setup.steps)
    kinds = ", ".join(f"{name} {step_s * 1e3:.0f} ms" for name, step_s in steps_s.items())
    spread = max(steps_s.values()) / min(steps_s.values())
    own = f"with their shares of seed 1 {min(rounds_s):.1f} to {max(rounds_s):.1f} s of work a round"
    return f"a minibatch at MAXN: {kinds}; spread {spread:.1f}; {own}"


def format_mean_and_interval(values: Sequence[float | None], digits: int = 1) -> str:
    """Format the mean and half of its 95 % interval (t distribution) of the values that are not None."""
    from scipy import stats

    known = [value for value in values if value is not None]
    if not known:
        return f"{'never':>17s}"
    count, half = len(known), math.nan
    if count > 1:
        half = float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(known) / math.sqrt(count)
    return f"{statistics.mean(known):8.{digits}f} ± {half:6.{digits}f}"


def print_table(runs: Sequence[AccuracyRun], task: AccuracyTask) -> None:
    """Print the variants of one task, then each compared with its reference."""
    print(f"\n{task.task}: until {task.target:.0%} accuracy\n  {describe_spread(task)}")
    print(f"  {'way':20s} {'reached':>8s}   {'seconds':>17s}   {'kJ, taking part':>17s}   {'kJ, fleet':>17s}   rounds")
    for variant in RUN_VARIANTS:
        all_runs = [run for run in runs if run.variant == variant.name]
        done = [run for run in all_runs if run.seconds is not None]
        columns = (
            format_mean_and_interval([run.seconds for run in done]),
            format_mean_and_interval([(run.joules or 0.0) / 1e3 for run in done], 2),
            format_mean_and_interval([(run.fleet_joules or 0.0) / 1e3 for run in done], 2),
            format_mean_and_interval([float(run.rounds) for run in done]),
        )
        print(f"  {variant.name:20s} {len(done):3d} of {len(all_runs):1d}   {'   '.join(columns)}")
    for variant in RUN_VARIANTS:
        if variant.against is not None:
            print_comparison(runs, variant)


def print_comparison(runs: Sequence[AccuracyRun], variant: RunVariant) -> None:
    """Print the ratio of a variant to another one, seed by seed."""
    own, other = (
        {run.seed: run for run in runs if run.variant == name and run.seconds}
        for name in (variant.name, variant.against)
    )
    both = sorted(own.keys() & other.keys())
    if both:
        times, joules, fleet = (
            [getattr(own[seed], field) / getattr(other[seed], field) for seed in both]
            for field in ("seconds", "joules", "fleet_joules")
        )
        better = sum(t < 1.0 and j < 1.0 for t, j in zip(times, joules, strict=True))
        figures = (
            f"time {format_mean_and_interval(times, 2)}, joules {format_mean_and_interval(joules, 2)}, the "
            f"fleet's {format_mean_and_interval(fleet, 2)}"
        )
        print(f"  {variant.name} / {variant.against}: {figures}; less of both in {better} of {len(both)} seeds")


def main() -> None:
    """Run everything and print it."""
    parser = build_parser(__doc__, seeds=5)
    parser.add_argument("--quick", action="store_true", help=f"one seed, {QUICK_ROUNDS} rounds: only that it works")
    parser.add_argument("--model-mb", type=float, help="size of the model that links move; by default the priced one's")
    options = parser.parse_args()
    size = {} if options.model_mb is None else {"model_mb": options.model_mb}
    tasks = [replace(task, workload={**task.workload, **size}) for task in ACCURACY_TASKS]
    jobs = [
        RunJob(task, variant, seed, QUICK_ROUNDS if options.quick else task.rounds)
        for seed in range(1, 2 if options.quick else options.seeds + 1)
        for task in tasks
        for variant in RUN_VARIANTS
    ]
    runs = run_jobs(run_variant, jobs, report_progress, PROCESSES)
    for task in tasks:
        print_table([run for run in runs if run.task == task.task], task)


if __name__ == "__main__":
    main()
