"""What choosing modes is worth on one board under deadlines, beside BoFL played on the same tables and as published.

    FEDGE_PROFILES=folder/of/tables python benchmarks/mode_choice.py [--seeds 10] [--rounds 100] [--policies fedge,bofl]

Every ``<board>/train/*.csv`` under the folder whose board BoFL was published on, deadline ratios 1.5, 2 and 4. Each
figure is the mean of the seeds, in brackets the worst of them; misses are counted over all seeds. The last column names
the goals that a policy's own figures do not reach; the mean counts for energy, every seed for deadlines and modes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.cli.study_jobs import run_jobs
from experiments.cli.study_mode_choice import (
    ModeChoiceJob,
    ModeChoiceOptions,
    build_mode_choice_jobs,
    run_mode_choice_job,
)
from fedge.errors import FedgeError
from fedge.knowledge.table_background import find_board_spec
from fedge.studies.mode_choice_study import ModeChoiceResult

RATIOS = (1.5, 2.0, 4.0)
POLICIES = "fedge,bofl,maxn,oracle"
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class PublishedRegret:
    """Energy saved and regret of one run in percent, as BoFL's paper reports them (Middleware 2022)."""

    saved: float
    regret: float


PUBLISHED = {
    ("agx-xavier", "cifar10"): (PublishedRegret(17.7, 6.0), PublishedRegret(22.4, 3.5), PublishedRegret(24.5, 2.9)),
    ("agx-xavier", "imagenet"): (PublishedRegret(16.4, 2.9), PublishedRegret(20.4, 1.65), PublishedRegret(22.7, 1.2)),
    ("tx2", "cifar10"): (PublishedRegret(15.4, 3.0), PublishedRegret(19.4, 2.4), PublishedRegret(21.3, 2.6)),
}
"""Published figures by board and data set, for each of ``RATIOS``."""
MODES_TRIED = {"agx-xavier": "65-71", "tx2": "30-60"}
REGRET_SETTLED_PCT, REGRET_PCT, MODES = 1.0, 2.0, 15
"""Goals besides the published saving and no deadline missed."""
LEARNERS = ("fedge", "bofl")
"""Policies that the goals apply to."""
HEADINGS = ("saved %", "regret %", "from round 10 %", "missed", "modes tried")


def main(seeds: int, rounds: int, policies: str) -> None:
    """Run everything and print it, table by table."""
    started = time.perf_counter()
    for path in find_tables():
        jobs = [
            job
            for ratio in RATIOS
            for job in build_mode_choice_jobs(
                ModeChoiceOptions(path, ratios=(ratio,), rounds=rounds, policies=policies, seeds=seeds)
            )
        ]
        choices = run_jobs(
            run_mode_choice_job, jobs, lambda name: print(f"done: {name}", file=sys.stderr, flush=True), PROCESSES
        )
        print_report(jobs[0], [choice.result for choice in choices], seeds)
    print(f"\n{time.perf_counter() - started:.0f} s")


def find_tables() -> list[Path]:
    """Return the measured tables of the boards in BoFL's paper."""
    folder = os.environ.get("FEDGE_PROFILES")
    if not folder:
        sys.exit("FEDGE_PROFILES: got nothing; the folder of measured tables")
    boards = {board for board, _ in PUBLISHED}
    found = [
        path for path in sorted(Path(folder).glob("*/train/*.csv")) if _board_title(path.parents[1].name) in boards
    ]
    if not found:
        sys.exit(f"FEDGE_PROFILES: got {folder}; a folder with tables of {', '.join(sorted(boards))}")
    return found


def print_report(job: ModeChoiceJob, choices: Sequence[ModeChoiceResult], seeds: int) -> None:
    """Print one table: per ratio the published figures, and every policy."""
    table = job.table
    print(f"\n{table.device} {table.workload}: {job.steps} minibatches a round, {job.rounds} rounds, {seeds} seeds")
    print(_format_line("ratio", "policy", HEADINGS, "falls short in"))
    for place, ratio in enumerate(RATIOS):
        known = _find_published(_board_title(table.device), table.workload, place)
        if known is not None:
            figures = (f"{known.saved:g}", f"{known.regret:g}", "", "", MODES_TRIED[_board_title(table.device)])
            print(_format_line(f"{ratio:g}", "BoFL, published", figures, ""))
        for policy in dict.fromkeys(choice.policy for choice in choices):
            runs = [choice for choice in choices if (choice.policy, choice.ratio) == (policy, ratio)]
            print(
                _format_line(
                    f"{ratio:g}",
                    policy,
                    _format_figures(runs),
                    _list_missed_goals(runs, known) if policy in LEARNERS else "",
                )
            )


def _format_figures(runs: Sequence[ModeChoiceResult]) -> tuple[str, ...]:
    return (
        _format_spread([run.energy_saved_pct for run in runs], min),
        _format_spread([run.regret_pct for run in runs], max),
        _format_spread([run.regret_after10_pct for run in runs], max),
        str(sum(run.deadlines_missed for run in runs)),
        _format_spread([run.modes_explored for run in runs], max, 1),
    )


def _format_spread(values: Sequence[float], worst: Callable[[Sequence[float]], float], digits: int = 2) -> str:
    return f"{statistics.mean(values):.{digits}f} ({worst(values):.{digits}f})"


def _list_missed_goals(runs: Sequence[ModeChoiceResult], known: PublishedRegret | None) -> str:
    """Return the missed goals; saving has none on a data set without published figures."""
    goals = {
        "saved": known is None or statistics.mean(run.energy_saved_pct for run in runs) >= known.saved,
        "regret": statistics.mean(run.regret_pct for run in runs) <= REGRET_PCT,
        "regret from round 10": statistics.mean(run.regret_after10_pct for run in runs) <= REGRET_SETTLED_PCT,
        "deadlines": not any(run.deadlines_missed for run in runs),
        "modes": max(run.modes_explored for run in runs) <= MODES,
    }
    return ", ".join(name for name, holds in goals.items() if not holds) or "nothing: all hold"


def _find_published(board: str, workload: str, place: int) -> PublishedRegret | None:
    found = [figures[place] for (of, data), figures in PUBLISHED.items() if of == board and data in workload.lower()]
    return found[0] if found else None


def _board_title(name: str) -> str:
    spec = find_board_spec(name)
    return name if spec is None else spec.name


def _format_line(ratio: str, policy: str, figures: Sequence[str], note: str) -> str:
    columns = "  ".join(f"{figure:>15}" for figure in figures)
    return f"  {ratio:>5}  {policy:15}  {columns}  {note}".rstrip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="seeds 1 to this; 10 by default")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of a run; 100 by default")
    parser.add_argument("--policies", default=POLICIES, help=f"separated by commas; {POLICIES} by default")
    given = parser.parse_args()
    try:
        main(given.seeds, given.rounds, given.policies)
    except FedgeError as error:
        sys.exit(str(error))
