"""Results of strategies for training and inference on one board: all pairs and families of tables.

    FEDGE_PROFILES=folder/of/tables python benchmarks/concurrent_strategies.py [--strategies gmd,als] [--sample 200]
                                                                               [--streams 3]

Every ``agx-orin/train/*.csv`` and ``agx-orin/infer/*.csv`` under the folder, Fulcrum's problems, each from nothing;
then ``--streams`` streams of 100 random problems in which what was profiled is kept. ``fedge`` runs once more without
the modes of which a table has an implausible row: many optima are such rows. ``--sample`` takes that many random
problems of each family in place of all, for a quick look.
"""

from __future__ import annotations

from collections.abc import Sequence

from figures import build_parser, build_table, find_profiles, report_progress
from rich.console import Console

from fedge.child_processes import limit_to_one_thread
from fedge.serving.serving_problems import FAMILIES
from fedge.serving.strategies import DEFAULT_STRATEGY
from fedge.studies.serving.job_tables import JobTableOptions
from fedge.studies.serving.strategy_scores import StrategyRow
from fedge.studies.serving.strategy_study import StrategyStudyOptions, build_strategy_jobs, run_timed_job
from fedge.studies.task_pool import run_jobs

CONSOLE = Console(width=170)
BOARD = "agx-orin"
"""The board with tables of both kinds."""
STRATEGIES = "gmd,als,fedge,nn,random,bs"
STREAM_PROBLEMS = 100
"""Problems of a stream with reuse."""
TRAIN_PROBLEMS = 41
"""Fulcrum's problems of training alone are fewer than a sample."""
COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("%", "solved_share", 1),
    ("viol. %", "violations", 2),
    ("worst %", "worst_over", 1),
    ("loss mean", "loss_mean", 1),
    ("median", "loss_median", 1),
    ("t_in mean", "excess_mean", 1),
    ("mean tries", "modes_mean", 1),
    ("max", "modes_max", 0),
    ("all", "modes_total", 0),
    ("modes", "power_modes_total", 0),
    ("s", "seconds", 1),
)
"""Heading, field of ``StrategyRow`` and digits."""


def main(strategies: str, sample: int | None, streams: int) -> None:
    """Run everything and print it, table by table."""
    plausible = (False, True) if DEFAULT_STRATEGY in strategies.split(",") else (False,)
    print("\nfrom nothing" + (f", {sample} random problems of each family" if sample else ""))
    for without_implausible in plausible:
        run_families(strategies, sample, plausible=without_implausible)
    if streams:
        print(f"\nstreams of {STREAM_PROBLEMS} random problems, what was profiled is kept")
        for without_implausible in plausible:
            run_families(strategies, STREAM_PROBLEMS, plausible=without_implausible, streams=streams)


def run_families(strategies: str, sample: int | None, *, plausible: bool, streams: int = 0) -> None:
    """Run and print all families from nothing, or in streams of problems that keep what was profiled.

    Args:
        strategies: Names, separated by commas.
        sample: Number of random problems, None for all.
        plausible: Leave implausible rows out; runs the default strategy alone.
        streams: Number of streams; 0 runs every problem from nothing.
    """
    if plausible:
        print(f"\n{DEFAULT_STRATEGY} without the modes of which a table has an implausible row")
    jobs = [
        job
        for family in FAMILIES
        for job in build_strategy_jobs(
            StrategyStudyOptions(
                JobTableOptions(
                    () if family == "infer" else tuple(find_profiles("train", BOARD)),
                    () if family == "train" else tuple(find_profiles("infer", BOARD)),
                ),
                DEFAULT_STRATEGY if plausible else strategies,
                plausible=plausible,
                reuse=streams > 0,
                problem_count=min(sample, TRAIN_PROBLEMS) if sample and family == "train" else sample,
                seeds=streams or 1,
            )
        )
    ]
    with limit_to_one_thread():
        print_report(run_jobs(run_timed_job, jobs, report_progress))


def print_report(rows: Sequence[StrategyRow]) -> None:
    """Print one table per pair and family."""
    for pair, family in dict.fromkeys((row.pair, row.family) for row in rows):
        group = [row for row in rows if (row.pair, row.family) == (pair, family)]
        left_out = "" if group[0].modes_left_out is None else f", {group[0].modes_left_out} modes left out"
        title = f"{pair}: {family}, {group[0].problems} problems{left_out}"
        table = build_table(title, "strategy", "solved", *(heading for heading, _, _ in COLUMNS))
        for row in group:
            table.add_row(f"{row.strategy} #{row.seed}" if row.reuse else row.strategy, *format_cells(row))
        CONSOLE.print(table)


def format_cells(row: StrategyRow) -> list[str]:
    """Return the solved problems and the figures of ``COLUMNS``."""
    if row.error is not None:
        return [row.error]
    values = ((getattr(row, field), digits) for _, field, digits in COLUMNS)
    return [f"{row.solved}/{row.solvable}", *("-" if v is None else f"{v:.{digits}f}" for v, digits in values)]


if __name__ == "__main__":
    parser = build_parser(__doc__, streams=3)
    parser.add_argument("--strategies", default=STRATEGIES, help=f"{STRATEGIES} by default")
    parser.add_argument("--sample", type=int, help="random problems of each family; all by default")
    options = parser.parse_args()
    main(options.strategies, options.sample, options.streams)
