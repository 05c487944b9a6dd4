"""What rows that deviate from their neighbours are worth: the loss of oracles that know every mode from its neighbours.

    FEDGE_PROFILES=folder/of/tables python benchmarks/row_scatter.py [--problems 100] [--seeds 2] [--rounds 40]

Plausible rows only. One board under deadlines, on every measured table of training: the policy ``neighbours`` of
``fedge study mode-choice``, from round 10 on, for deadlines up to 1.5, 2 and 3 times the fastest round, as
``fedge study transfer --part online`` judges ``fedge``. Two jobs, on every pair of tables of AGX Orin, Fulcrum's
problems: the oracle predicts both jobs in a mode from the neighbouring modes (``fedge/studies/implausible_rows.py``),
tries the 15 choices with most predicted steps, and takes the best that keeps the limits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from figures import build_parser, build_table
from rich.console import Console

from fedge.costs.cost_profile import load_calibrated_inference, load_calibrated_training
from fedge.knowledge.table_background import find_board_spec, resolve_maxn
from fedge.serving.job_pair import JobPair, build_pair
from fedge.serving.trial_search import ServingProblem, evaluate_choices
from fedge.studies.implausible_rows import predict_from_neighbours, restrict_to_plausible
from fedge.studies.mode_choice_study import ModeChoiceJob, find_steps, run_mode_choice
from fedge.studies.serving.job_tables import JobTableOptions, read_job_tables
from fedge.studies.serving.strategy_study import StrategyStudyOptions, build_strategy_jobs, draw_problems
from fedge.studies.transfer_models import ONLINE_RATIOS, keep_plausible_rows, read_judged_tables
from fedge.types import ProfileTable

TRIALS = 15
BOARD = "agx-orin"


def main() -> None:
    """Print the mean losses under deadlines and of two jobs."""
    options = build_parser(__doc__, problems=100, seeds=2, rounds=40).parse_args()
    root, console = Path(os.environ["FEDGE_PROFILES"]), Console(width=110)
    print_deadlines(console, root, options.rounds, options.seeds)
    print_pairs(console, root / BOARD, options.problems, options.seeds)


def print_deadlines(console: Console, root: Path, rounds: int, seeds: int) -> None:
    """Print the mean regret of ``neighbours`` on every table of training."""
    table = build_table("deadlines", "table", *(f"regret, %, x {ratio:g}" for ratio in ONLINE_RATIOS), left=("table",))
    for judged in (one for one in read_judged_tables(root) if one.kind == "train"):
        plausible = keep_plausible_rows(judged.table)
        steps, cells = find_steps(plausible), list[str]()
        for ratio in ONLINE_RATIOS:
            jobs = [ModeChoiceJob(plausible, ratio, rounds, steps, "neighbours", seed) for seed in range(1, seeds + 1)]
            cells.append(f"{np.mean([run_mode_choice(job).regret_after10_pct for job in jobs]):.1f}")
        table.add_row(judged.name, *cells)
    console.print(table)


def print_pairs(console: Console, folder: Path, problems: int, seeds: int) -> None:
    """Print the mean loss on every pair of a board's tables."""
    paths = JobTableOptions(tuple(sorted(folder.glob("train/*.csv"))), tuple(sorted(folder.glob("infer/*.csv"))))
    study = StrategyStudyOptions(paths, problem_count=problems, seeds=seeds, plausible=True)
    jobs = build_strategy_jobs(study, [*load_calibrated_training(), *load_calibrated_inference()])
    training, inference = read_job_tables(paths)
    predicted = {pair.name: pair for pair in (predict_pair(train, infer) for train in training for infer in inference)}
    losses: dict[str, list[float]] = {}
    for job in (job for job in jobs if job.case.family == "concurrent"):
        case = job.case
        for problem in draw_problems(case.problems, problems, job.seed):
            losses.setdefault(case.pair.name, []).extend(find_losses(problem, case.pair, predicted[case.pair.name]))
    table = build_table(f"{BOARD}, {TRIALS} trials", "pair", "problems", "mean loss, %", left=("pair",))
    for name, found in losses.items():
        table.add_row(name, str(len(found)), f"{100.0 * float(np.mean(found)):.1f}")
    console.print(table)


def predict_pair(train: ProfileTable, infer: Sequence[ProfileTable]) -> JobPair:
    """Return the pair as its modes' neighbours tell it."""
    smooth = [smooth_table(one) for one in (train, *infer)]
    return restrict_to_plausible(build_pair(smooth[0], smooth[1:]), [train, *infer])


def smooth_table(table: ProfileTable) -> ProfileTable:
    """Return a table whose values are predicted from the neighbouring modes."""
    step_s, power_w = predict_from_neighbours(table, resolve_maxn(table, find_board_spec(table.device)))
    return replace(table, step_s=step_s, power_w=power_w)


def find_losses(problem: ServingProblem, pair: JobPair, predicted: JobPair) -> list[float]:
    """Return the share of the optimum's steps that is lost; nothing if there is none, or no trial keeps the limits."""
    truth, expected = evaluate_choices(problem, pair), evaluate_choices(problem, predicted)
    most = float(np.where(truth.feasible, truth.steps, 0.0).max())
    tried = np.argsort(-np.where(expected.feasible, expected.steps, -1.0).ravel(), kind="stable")[:TRIALS]
    kept = [place for place in tried if truth.feasible.ravel()[place]]
    return [1.0 - float(truth.steps.ravel()[kept].max()) / most] if most > 0 and kept else []


if __name__ == "__main__":
    main()
