"""Seconds and joules until a model is good: who takes part, in which modes, and in rounds or asynchronously.

    python benchmarks/time_to_accuracy.py [--seeds 5] [--quick]

Twenty emulated boards of five kinds, samples split by Dirichlet(0.1), real training, the ``local`` backend. Printed
per task and way: mean and 95 % interval over the seeds of the seconds and of the joules until the test accuracy
reaches the target, as ``fedge study arena`` counts it (``find_cost``), of the boards that take part and of the fleet
with those that rest; then the ratio of every way to the one that it is held against, seed by seed, where both reached
the target. An asynchronous run is played a second time to end with the model that reached the target, so that what
the tasks under way took until then is counted too.

The boards predict with ``physical`` and do not share what they measure, which makes a run some times quicker to play.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from figures import build_parser, report_progress

from experiments.report.run.loaded_runs import TARGET_WINDOW, Course, find_cost
from fedge.client import emulated
from fedge.confidence_interval import mean_interval
from fedge.experiment import Experiment, list_boards
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import RoundRow
from server.run import build_coordinator
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest

BOARD_KINDS = ("nano", "xavier-nx", "agx-xavier", "orin-nano", "agx-orin-64gb")
BOARDS_PER_KIND = 4
CLIENTS_PER_ROUND = BUFFER_SIZE = 5
QUICK_ROUNDS = 8
PROCESSES = 2
MODELS_PER_ROUND = 4
"""An asynchronous run makes at most this many models per round, so that it merges as many results as rounds would."""
TASKS: dict[str, tuple[float, int, dict[str, float]]] = {
    "digits-cnn": (0.90, 200, {"local_epochs": 2.0, "learning_rate": 0.05}),
    "synthetic-cnn": (0.75, 120, {"local_epochs": 2.0, "learning_rate": 0.02}),
}
"""Target accuracy, largest number of rounds, and training options."""


def _select_clients(selector: str, policy: str) -> dict[str, Any]:
    return {"policy": {"name": policy}, "selection": {"name": selector, "count": CLIENTS_PER_ROUND}}


FEDBUFF = {"policy": {"name": "maxn"}, "strategy": {"name": "FedBuff", "options": {"buffer_size": BUFFER_SIZE}}}
VARIANTS: dict[str, tuple[dict[str, Any], str | None]] = {
    "random, maxn": (_select_clients("random", "maxn"), None),
    "planner, balanced": (_select_clients("planner", "balanced"), "random, maxn"),
    "all, FedAvg, maxn": ({"policy": {"name": "maxn"}}, None),
    "all, FedBuff, maxn": (FEDBUFF, "all, FedAvg, maxn"),
}
"""Settings of the experiment, and the variant that it is compared with."""


@dataclass(frozen=True, slots=True)
class AccuracyRun:
    """A run of at most ``most`` rounds; its figures are those at the end of the round that reached the target."""

    task: str
    variant: str
    seed: int
    most: int
    rounds: int = 0
    seconds: float | None = None
    joules: float | None = None
    fleet_joules: float | None = None

    def __str__(self) -> str:
        return f"{self.task}; {self.variant}; seed {self.seed}"


class TargetReached(Exception):
    """The target is reached, so that the run can end."""


def build_experiment(job: AccuracyRun, rounds: int) -> Experiment:
    """Return the experiment of a variant; ``rounds`` are models if it is asynchronous."""
    shared = {
        "name": "time-to-accuracy",
        "seed": job.seed,
        "rounds": rounds,
        "backend": "local",
        "fleet": [{"device": kind, "count": BOARDS_PER_KIND} for kind in BOARD_KINDS],
        "workload": {"task": job.task, **TASKS[job.task][2]},
        "data": {"partition": "dirichlet", "alpha": 0.1},
        "predictor": "physical",
        "share_samples": False,
    }
    return Experiment.model_validate({**shared, **VARIANTS[job.variant][0]})


def run_variant(job: AccuracyRun) -> AccuracyRun:
    """Run a variant until the target is reached, or for its rounds or as many asynchronously merged results."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    target, asynchronous = TASKS[job.task][0], VARIANTS[job.variant][0] is FEDBUFF
    rows = run_until(target, build_experiment(job, job.most * (MODELS_PER_ROUND if asynchronous else 1)))
    end = find_target_row(rows, target)
    if end is None:
        return replace(job, rounds=len(rows))
    if asynchronous:
        rows = run_until(target, build_experiment(job, end + 1))
    joules = sum(row.energy_j for row in rows[: end + 1])
    fleet_joules = joules + sum(row.resting_energy_j or 0.0 for row in rows[: end + 1])
    return replace(job, rounds=end + 1, seconds=rows[end].end_s, joules=joules, fleet_joules=fleet_joules)


def run_until(target: float, experiment: Experiment) -> list[RoundRow]:
    """Return the rounds until the target is reached, or all of them."""
    tables = MemoryTables()

    def on_round(_: int) -> None:
        if find_target_row(read_rounds(tables), target) is not None:
            raise TargetReached

    with contextlib.suppress(TargetReached):
        build_coordinator(experiment, build_local_port(experiment), tables, on_round=on_round).run()
    return read_rounds(tables)


def build_local_port(experiment: Experiment) -> LocalPort:
    """Return a port to the boards, called in this process."""
    index = {board.name: board.index for board in list_boards(experiment)}

    def respond(questions: Mapping[str, OutgoingRequest]) -> dict[str, IncomingReply]:
        tasks = [emulated.ClientTask(experiment, index[name], one.ask, one.arrays) for name, one in questions.items()]
        return dict(zip(questions, (IncomingReply(*one) for one in emulated.answer_together(tasks)), strict=True))

    return LocalPort(respond)


def read_rounds(tables: MemoryTables) -> list[RoundRow]:
    return [row for row in tables.rows if isinstance(row, RoundRow)]


def find_target_row(rows: Sequence[RoundRow], target: float) -> int | None:
    """Return the row at whose end the target was reached, or None."""
    if len(rows) < TARGET_WINDOW:
        return None
    places = tuple(map(float, range(len(rows))))
    found = find_cost(Course(tuple(row.accuracy or 0.0 for row in rows), places, places), target)
    return None if found is None else int(found[0])


def format_interval(values: Sequence[float], digits: int = 1) -> str:
    """Format the mean and half of its 95 % interval."""
    found = mean_interval(values)
    if found is None:
        return f"{'never':>17s}"
    half = math.nan if found.half_width is None else found.half_width
    return f"{found.mean:8.{digits}f} ± {half:6.{digits}f}"


def print_table(runs: Sequence[AccuracyRun], task: str) -> None:
    """Print the variants of one task, then each compared with its reference."""
    print(f"\n{task}: until {TASKS[task][0]:.0%} accuracy")
    print(f"  {'way':20s} {'reached':>8s}   {'seconds':>17s}   {'kJ, taking part':>17s}   {'kJ, fleet':>17s}   rounds")
    by_variant = {name: {run.seed: run for run in runs if run.variant == name} for name in VARIANTS}
    done = {name: {s: run for s, run in of.items() if run.seconds} for name, of in by_variant.items()}
    for name, reached in done.items():
        columns = (
            format_interval([run.seconds or 0.0 for run in reached.values()]),
            format_interval([(run.joules or 0.0) / 1e3 for run in reached.values()], 2),
            format_interval([(run.fleet_joules or 0.0) / 1e3 for run in reached.values()], 2),
            format_interval([float(run.rounds) for run in reached.values()]),
        )
        print(f"  {name:20s} {len(reached):3d} of {len(by_variant[name]):1d}   {'   '.join(columns)}")
    for name, (_, against) in VARIANTS.items():
        if against is not None and done[name].keys() & done[against].keys():
            print_comparison(name, against, done)


def print_comparison(name: str, against: str, done: Mapping[str, Mapping[int, AccuracyRun]]) -> None:
    """Print the ratio of a variant to another one, seed by seed."""
    both = sorted(done[name].keys() & done[against].keys())
    times, joules, fleet = (
        [getattr(done[name][seed], field) / getattr(done[against][seed], field) for seed in both]
        for field in ("seconds", "joules", "fleet_joules")
    )
    better = sum(t < 1.0 and j < 1.0 for t, j in zip(times, joules, strict=True))
    figures = f"time {format_interval(times, 2)}, joules {format_interval(joules, 2)}"
    figures += f", the fleet's {format_interval(fleet, 2)}"
    print(f"  {name} / {against}: {figures}; less of both in {better} of {len(both)} seeds")


def main() -> None:
    """Run everything and print it."""
    parser = build_parser(__doc__, seeds=5)
    parser.add_argument("--quick", action="store_true", help=f"one seed, {QUICK_ROUNDS} rounds: only that it works")
    options = parser.parse_args()
    jobs = [
        AccuracyRun(task, variant, seed, QUICK_ROUNDS if options.quick else rounds)
        for seed in range(1, 2 if options.quick else options.seeds + 1)
        for task, (_, rounds, _) in TASKS.items()
        for variant in VARIANTS
    ]
    runs = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for run in pool.map(run_variant, jobs):
            report_progress(run)
            runs.append(run)
    for task in TASKS:
        print_table([run for run in runs if run.task == task], task)


if __name__ == "__main__":
    main()
