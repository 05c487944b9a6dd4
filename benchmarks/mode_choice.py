"""Regret of mode choices on one board under deadlines, beside BoFL on the same tables and as published.

    FEDGE_PROFILES=folder/of/tables python benchmarks/mode_choice.py [--seeds 10] [--rounds 100]

Every ``<board>/train/*.csv`` under the folder whose board BoFL was published on, deadline ratios 1.5, 2 and 4. Each
figure is the mean of the seeds, in brackets the worst of them; missed deadlines are counted over all seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from figures import build_parser, build_table, find_profiles, report_progress
from rich.console import Console

from fedge.knowledge.table_background import find_board_spec
from fedge.studies.mode_choice_study import (
    ModeChoiceOptions,
    ModeChoiceResult,
    ModeChoiceStudy,
    build_mode_choice_study,
)

CONSOLE = Console(width=130)
RATIOS = (1.5, 2.0, 4.0)
POLICIES = "fedge,bofl,maxn,oracle,neighbours"
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
HEADINGS = ("ratio", "policy", "saved %", "regret %", "from round 10 %", "missed", "modes tried")


def main(seeds: int, rounds: int) -> None:
    """Run everything and print it, table by table."""
    boards = {board for board, _ in PUBLISHED}
    for path in find_profiles("train"):
        if _board_title(path.parents[1].name) in boards:
            study = build_mode_choice_study(
                ModeChoiceOptions(path, deadline_ratios=RATIOS, rounds=rounds, policies=POLICIES, seeds=seeds)
            )
            print_report(study, study.run(report_progress, PROCESSES), rounds, seeds)


def print_report(study: ModeChoiceStudy, choices: Sequence[ModeChoiceResult], rounds: int, seeds: int) -> None:
    """Print one table: per ratio the published figures, and every policy."""
    measured, board = study.table, _board_title(study.table.device)
    title = f"{measured.device} {measured.workload}: {study.steps} steps per round, {rounds} rounds, {seeds} seeds"
    table = build_table(title, *HEADINGS, left=("policy",))
    for place, ratio in enumerate(RATIOS):
        published = _find_published(board, measured.workload, place)
        if published is not None:
            figures = (f"{published.saved:g}", f"{published.regret:g}", "", "", MODES_TRIED[board])
            table.add_row(f"{ratio:g}", "BoFL, published", *figures)
        for policy in dict.fromkeys(choice.policy for choice in choices):
            runs = [choice for choice in choices if (choice.policy, choice.ratio) == (policy, ratio)]
            table.add_row(f"{ratio:g}", policy, *_format_figures(runs))
    CONSOLE.print(table)


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


def _find_published(board: str, workload: str, place: int) -> PublishedRegret | None:
    figures = (f[place] for (name, data), f in PUBLISHED.items() if name == board and data in workload.lower())
    return next(figures, None)


def _board_title(name: str) -> str:
    spec = find_board_spec(name)
    return name if spec is None else spec.name


if __name__ == "__main__":
    options = build_parser(__doc__, seeds=10, rounds=100).parse_args()
    main(options.seeds, options.rounds)
