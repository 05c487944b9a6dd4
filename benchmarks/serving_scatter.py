"""Loss of choices for two jobs by an oracle that knows every mode from its neighbours, with as many trials as `fedge`.

    python benchmarks/serving_scatter.py [--problems 100] [--seeds 2]

Every measured table of training of AGX Orin beside every table of inference, plausible rows, Fulcrum's problems. The
oracle predicts time and power of both jobs in a mode from the neighbouring modes alone
(``fedge/studies/implausible_rows.py``), tries the 15 choices with most predicted steps, and takes the best that keeps
the limits. What it loses is the worth of single rows that deviate from their neighbours, which no model foretells; on
a smooth table it loses nothing.
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
from fedge.studies.serving.job_tables import JobTableOptions, read_job_tables
from fedge.studies.serving.strategy_study import StrategyStudyOptions, build_strategy_jobs, draw_problems
from fedge.types import ProfileTable

TRIALS = 15
BOARD = "agx-orin"


def main() -> None:
    """Print the mean loss on every pair."""
    options = build_parser(__doc__, problems=100, seeds=2).parse_args()
    folder = Path(os.environ["FEDGE_PROFILES"]) / BOARD
    paths = JobTableOptions(tuple(sorted(folder.glob("train/*.csv"))), tuple(sorted(folder.glob("infer/*.csv"))))
    study = StrategyStudyOptions(paths, problem_count=options.problems, seeds=options.seeds, plausible=True)
    jobs = build_strategy_jobs(study, [*load_calibrated_training(), *load_calibrated_inference()])
    training, inference = read_job_tables(paths)
    predicted = {pair.name: pair for pair in (predict_pair(train, infer) for train in training for infer in inference)}
    losses: dict[str, list[float]] = {}
    for job in (job for job in jobs if job.case.family == "concurrent"):
        case = job.case
        for problem in draw_problems(case.problems, options.problems, job.seed):
            losses.setdefault(case.pair.name, []).extend(find_losses(problem, case.pair, predicted[case.pair.name]))
    table = build_table(f"{BOARD}, {TRIALS} trials", "pair", "problems", "mean loss, %", left=("pair",))
    for name, found in losses.items():
        table.add_row(name, str(len(found)), f"{100.0 * float(np.mean(found)):.1f}")
    Console().print(table)


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
