"""Time and memory of fleet studies in columns by the number of clients, and the exponent of their growth.

Each line is a run of its own process: ``balanced``, learning boards of five kinds, a fifth of them on batteries and not
always available, late replies dropped. First every client takes part in every round, then at most 10,000 of them do.
The exponent is that of the CPU time against the line before: 1 is linear, 0 is no growth.

    OMP_NUM_THREADS=1 python benchmarks/fleet_scale.py [--rounds 100] [--largest 1000000]
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from figures import build_parser, build_table, report_progress
from rich.console import Console

from fedge.experiment import (
    AvailabilitySpec,
    BatterySpec,
    Experiment,
    FleetEntry,
    LateReplySpec,
    PolicySpec,
    SelectionSpec,
)
from fedge.studies.fleet.client_columns import build_run_experiment
from fedge.studies.fleet.column_study import run_column_study

KINDS = (
    ("agx-orin-64gb", "resnet18-imagenet"),
    ("agx-orin-64gb", "yolov8n-coco"),
    ("agx-xavier", "vit-b16-cifar10"),
    ("tx2", "vit-b16-cifar10"),
    ("orin-nano", "resnet18-imagenet"),
)
ALL_TAKE_PART = (100, 1_000, 10_000)
SOME_TAKE_PART = (1_000, 10_000, 100_000, 1_000_000)
MAX_SELECTED = 10_000
HEADINGS = ("clients", "per round", "wall, s", "CPU, s", "CPU, us per board-round", "GB", "exponent")


@dataclass(frozen=True, slots=True)
class ScaleFigures:
    """Seconds of wall time and of CPU time, peak memory, and board-rounds of one run."""

    wall_s: float
    cpu_s: float
    peak_gb: float
    board_rounds: int


def build_fleet(clients: int, selected: int) -> Experiment:
    """Build the experiment; the last kind has batteries and leaves for a sixth of the time."""
    changes = {
        "battery": BatterySpec(capacity_wh=40, charging_w=3),
        "availability": AvailabilitySpec(on_s=3e3, off_s=6e2),
    }
    entries = [
        FleetEntry(name=f"{device}-{cost}", device=device, cost=cost, count=clients // len(KINDS))
        for device, cost in KINDS
    ]
    entries[-1] = entries[-1].model_copy(update=changes)
    selection = SelectionSpec() if selected == clients else SelectionSpec(name="random", count=selected)
    return Experiment(fleet=tuple(entries), selection=selection, late=LateReplySpec(action="drop"))


def measure_run(clients: int, selected: int, rounds: int) -> ScaleFigures:
    """Run one study in this process."""
    experiment = build_run_experiment(build_fleet(clients, selected), PolicySpec(), seed=1, rounds=rounds)
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    run_column_study(experiment, None)
    wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return ScaleFigures(wall_s, cpu_s, peak_gb, selected * rounds)


def main(rounds: int, largest: int) -> None:
    table = build_table(f"{rounds} rounds in columns", *HEADINGS)
    for sizes, limit in ((ALL_TAKE_PART, math.inf), (SOME_TAKE_PART, MAX_SELECTED)):
        before: tuple[int, float] | None = None
        for clients in (size for size in sizes if size <= largest):
            selected = int(min(clients, limit))
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                found = pool.submit(measure_run, clients, selected, rounds).result()
            exponent = (
                "" if before is None else f"{math.log(found.cpu_s / before[1]) / math.log(clients / before[0]):.2f}"
            )
            each_us = 1e6 * found.cpu_s / found.board_rounds
            figures = (f"{found.wall_s:.1f}", f"{found.cpu_s:.1f}", f"{each_us:.1f}", f"{found.peak_gb:.2f}", exponent)
            table.add_row(f"{clients:,}", f"{selected:,}", *figures)
            report_progress(f"{clients:,} clients, {selected:,} per round: {found.wall_s:.1f} s")
            before = clients, found.cpu_s
    Console(width=100).print(table)


if __name__ == "__main__":
    options = build_parser(__doc__, rounds=100, largest=1_000_000).parse_args()
    main(options.rounds, options.largest)
