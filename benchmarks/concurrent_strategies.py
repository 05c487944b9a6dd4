"""What strategies reach in training and inference on one board, beside the aims: all pairs and families of tables.

    FEDGE_PROFILES=folder/of/tables python benchmarks/concurrent_strategies.py [--strategies gmd,als] [--families train]
                                                                               [--sample 200] [--streams 3]

Every ``agx-orin/train/*.csv`` and ``agx-orin/infer/*.csv`` under the folder, Fulcrum's problems, each from nothing;
then streams of 100 random problems in which what was profiled is kept. ``fedge`` is played once more without the modes
of which a table has an implausible row: many optima are such rows. ``--sample`` plays that many random problems of
each family in place of all, for a quick look. The last column names the aims that a strategy's figures do not reach.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.cli.concurrent_eval import ConcurrentEvalOptions, build_eval_jobs, run_job
from experiments.cli.concurrent_tables import ConcurrentTableOptions
from experiments.cli.study_jobs import run_jobs
from fedge.errors import FedgeError
from fedge.serving.serving_problems import FAMILIES
from fedge.serving.strategies import DEFAULT_STRATEGY
from fedge.studies.prediction_study import limit_to_one_thread
from fedge.studies.serving.strategy_scores import StrategyRow
from fedge.studies.serving.strategy_study import StrategyJob

STRATEGIES = "gmd,als,fedge,nn,random,bs"
STREAM_PROBLEMS = 100
"""Problems of a stream with reuse."""
MAX_SECONDS = 60.0
"""Limit in seconds for all problems of a pair and family, for any strategy, on one core."""
SOLVED, VIOLATIONS, WORST, LOSS, EXCESS, MODES, REUSED = 99.0, 1.0, 10.0, 4.0, 4.0, 15, 40
"""Goals for ``fedge``: percent, except for modes per problem from nothing, and of a whole stream with reuse."""
ALS_MODES = (50, 150)
"""Goal for ``als``: this range of modes in a stream with reuse, and quality between ``gmd`` and ``fedge``."""
LEFT_OUT = "without the modes of which a table has an implausible row"
HEADINGS = (
    "solved",
    "%",
    "viol. %",
    "worst %",
    "loss mean",
    "median",
    "t_in mean",
    "mean tries",
    "max",
    "all",
    "modes",
    "s",
)


def main(strategies: str, families: str, sample: int | None, streams: int) -> None:
    """Run everything and print it, table by table."""
    started = time.perf_counter()
    wanted = [family for family in FAMILIES if family in families.split(",")]
    print("aims:", describe_goals())
    aside = DEFAULT_STRATEGY in strategies.split(",")
    print("\nfrom nothing" + (f", {sample} random problems of each family" if sample else ""))
    print_report(
        _run_jobs([job for family in wanted for job in build_eval_jobs(_build_request(family, strategies, sample))])
    )
    if aside:
        print(f"\n{DEFAULT_STRATEGY} from nothing, {LEFT_OUT}")
        asked = [replace(_build_request(family, DEFAULT_STRATEGY, sample), plausible=True) for family in wanted]
        print_report(_run_jobs([job for one in asked for job in build_eval_jobs(one)]))
    if streams:
        print(f"\nstreams of {STREAM_PROBLEMS} random problems, what was profiled is kept")
        print_report(
            _run_jobs(
                [
                    job
                    for family in wanted
                    for job in build_eval_jobs(_build_stream_request(family, strategies, streams))
                ]
            )
        )
    if streams and aside:
        print(f"\n{DEFAULT_STRATEGY} in such streams, {LEFT_OUT}")
        asked = [replace(_build_stream_request(family, DEFAULT_STRATEGY, streams), plausible=True) for family in wanted]
        print_report(_run_jobs([job for one in asked for job in build_eval_jobs(one)]))
    print(f"\n{time.perf_counter() - started:.0f} s")


def describe_goals() -> str:
    """Describe the goals in words."""
    return (
        f"fedge: at most {MODES} modes, solved >= {SOLVED:g} %, violations <= {VIOLATIONS:g} %, none by {WORST:g} %, "
        f"mean loss <= {LOSS:g} %, mean excess of t_in <= {EXCESS:g} % (inference alone); with reuse <= {REUSED} modes "
        f"in all; als: {ALS_MODES[0]} to {ALS_MODES[1]} modes, between gmd and fedge; every one: <= {MAX_SECONDS:g} s"
    )


def print_report(rows: Sequence[StrategyRow]) -> None:
    """Print one table per pair and family."""
    for pair, family in dict.fromkeys((row.pair, row.family) for row in rows):
        group = [row for row in rows if (row.pair, row.family) == (pair, family)]
        left_out = "" if group[0].modes_left_out is None else f", {group[0].modes_left_out} modes left out"
        print(f"\n{pair}: {family}, {group[0].problems} problems{left_out}")
        print(f"{'strategy':>10} " + " ".join(f"{heading:>11}" for heading in HEADINGS) + "  falls short in")
        for row in group:
            name = f"{row.strategy} #{row.seed}" if row.reuse else row.strategy
            print(
                f"{name:>10} "
                + " ".join(f"{cell:>11}" for cell in format_cells(row))
                + f"  {', '.join(list_missed_goals(row))}"
            )


def format_cells(row: StrategyRow) -> list[str]:
    """Return the figures under ``HEADINGS``."""
    if row.error is not None:
        return [row.error]
    numbers: tuple[tuple[float | None, int], ...] = (
        (row.solved_share, 1),
        (row.violations, 2),
        (row.worst_over, 1),
        (row.loss_mean, 1),
        (row.loss_median, 1),
        (row.excess_mean, 1),
        (row.modes_mean, 1),
        (row.modes_max, 0),
        (row.modes_total, 0),
        (row.power_modes_total, 0),
        (row.seconds, 1),
    )
    found = ["-" if value is None else f"{value:.{digits}f}" for value, digits in numbers]
    return [f"{row.solved}/{row.solvable}", *found]


def list_missed_goals(row: StrategyRow) -> list[str]:
    """Return the goals that this row misses."""
    if row.error is not None:
        return ["failed"]
    found = ["time"] if (row.seconds or 0.0) > MAX_SECONDS else []
    if row.strategy == "als" and row.reuse and not ALS_MODES[0] <= (row.modes_total or 0) <= ALS_MODES[1]:
        found.append("modes")
    if row.strategy != "fedge":
        return found
    limits: tuple[tuple[str, float | None, float], ...] = (
        ("violations", row.violations, VIOLATIONS),
        ("worst", row.worst_over, WORST),
        ("loss", row.loss_mean, LOSS),
        ("t_in", row.excess_mean if row.family == "infer" else None, EXCESS),
        ("modes", row.power_modes_total if row.reuse else row.modes_max, REUSED if row.reuse else MODES),
    )
    found += ["solved"] if (row.solved_share or 0.0) < SOLVED else []
    return found + [name for name, value, most in limits if value is not None and value > most]


def find_tables() -> tuple[list[Path], list[Path]]:
    """Return the training and the inference tables of the board that has both."""
    folder = os.environ.get("FEDGE_PROFILES")
    if not folder:
        sys.exit("FEDGE_PROFILES: got nothing; the folder of measured tables")
    found = tuple(sorted((Path(folder) / "agx-orin" / kind).glob("*.csv")) for kind in ("train", "infer"))
    if not all(found):
        sys.exit(f"FEDGE_PROFILES: got {folder}; a folder with agx-orin/train/*.csv and agx-orin/infer/*.csv")
    return found[0], found[1]


def _build_request(family: str, strategies: str, sample: int | None) -> ConcurrentEvalOptions:
    train, infer = find_tables()
    given = ConcurrentTableOptions(() if family == "infer" else tuple(train), () if family == "train" else tuple(infer))
    most = {"train": 41}.get(family)
    return ConcurrentEvalOptions(
        given, strategies, sample=sample if most is None or sample is None else min(sample, most)
    )


def _build_stream_request(family: str, strategies: str, streams: int) -> ConcurrentEvalOptions:
    asked = _build_request(family, strategies, STREAM_PROBLEMS)
    return ConcurrentEvalOptions(asked.tables, strategies, reuse=True, sample=asked.sample, seeds=streams)


def _run_jobs(jobs: Sequence[StrategyJob]) -> list[StrategyRow]:
    with limit_to_one_thread():
        return run_jobs(run_job, jobs, lambda job: print(f"done: {job}", file=sys.stderr, flush=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", default=STRATEGIES)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--sample", type=int, default=None)
    parser.add_argument("--streams", type=int, default=3)
    given = parser.parse_args()
    try:
        main(given.strategies, given.families, given.sample, given.streams)
    except FedgeError as error:
        sys.exit(f"benchmark: {error}")
