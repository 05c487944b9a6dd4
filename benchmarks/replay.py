"""Held-out runs: what `fedge replay` predicts for a changed run, beside that run itself.

    python benchmarks/replay.py [--seeds 4] [--first-seed 1] [--only cap] [--draws 8] [--rounds 8]

Four emulated boards of four kinds, the ``local`` backend, without training. Per seed one run with the policy
``balanced``, and per change (another policy, a deadline, limits on the fleet's power) its replay and the changed run on
the same boards. Printed: mean error of predicted energy and makespan, that of the naive answer "as before", and the
share of 90 % intervals that hold the truth.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import yaml
from figures import FOUR_KINDS, build_parser, report_progress
from rich.console import Console
from rich.table import Table

from experiments.backends.local_backend import run_local
from experiments.backends.run_replay import ReplayResult, replay_run
from experiments.report.run.run_summary import summarise_run
from experiments.spec.experiment_loader import load_experiment
from fedge.devices.board_kinds import build_kind
from fedge.experiment import list_boards
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow

CHANGES = {"maxn": "policy=maxn", "least-energy": "policy={name: least-energy, max_slowdown: 1.3}"}
DEADLINE_SHARE = 1.1
"""Deadline as a share of the run's mean round."""
CAP_SHARES = (0.4, 0.6, 0.8)
"""Limits on the fleet's power, as shares of the way from the least that its boards draw at work to MAXN."""
FIGURES = ("energy_j", "makespan_s")


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", default="", help="Only changes with this in their name.")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    cases = []
    with tempfile.TemporaryDirectory() as temp:
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            base = _run(Path(temp) / f"base-{seed}", seed, given.rounds)
            for name, change in _list_changes(base).items():
                if given.only not in name:
                    continue
                report_progress(f"seed {seed}, {name}")
                result = replay_run(base, [change], given.draws, workers=1)
                real = _run(Path(temp) / f"{name}-{seed}", seed, given.rounds, change)
                cases.append((name, result, _summarise(real)))
    _print_table(cases)


def _list_changes(run: Path) -> dict[str, str]:
    """Return the changes of a run; the limits on its fleet's power suppose boards like the average of their kinds."""
    experiment = load_experiment(run / "run.yaml")
    kinds = [build_kind(board, experiment.workload) for board in list_boards(experiment)]
    least_w = sum(float(kind.average.power_w.min()) for kind in kinds)
    maxn_w = sum(float(kind.average.power_w.max()) for kind in kinds)
    caps = {share: least_w + share * (maxn_w - least_w) for share in CAP_SHARES}
    deadline_s = DEADLINE_SHARE * _summarise(run)["mean_round_s"]
    deadline = f"policy={{name: least-energy-within-deadline, deadline_s: {deadline_s:.1f}}}"
    return (
        CHANGES
        | {"deadline": deadline}
        | {
            f"power cap {share:.0%}": f"policy={{name: fastest, fleet_power_w: {cap_w:.1f}}}"
            for share, cap_w in caps.items()
        }
    )


def _run(folder: Path, seed: int, rounds: int, *changes: str) -> Path:
    folder.mkdir()
    content = {
        "name": "replayed",
        "seed": seed,
        "rounds": rounds,
        "backend": "local",
        "workload": {"task": "none"},
        "fleet": [*FOUR_KINDS],
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    run_local(load_experiment(folder / "run.yaml", changes), folder, lambda: None)
    return folder


def _summarise(folder: Path) -> dict[str, Any]:
    experiment = load_experiment(folder / "run.yaml")
    return summarise_run(experiment, read_rows(folder, RoundRow), read_rows(folder, ClientRow), wall_s=0.0)


def _print_table(cases: Sequence[tuple[str, ReplayResult, dict[str, Any]]]) -> None:
    table = Table(
        "change", "figure", "n", "error of the replay", "largest", "error of `as before`", "in the 90 % interval"
    )
    for name in (*dict.fromkeys(change for change, _, _ in cases), "all"):
        for figure in FIGURES:
            chosen = [
                (next(one for one in result.figures if one.name == figure), real[figure])
                for change, result, real in cases
                if name in {change, "all"}
            ]
            errors = [abs(one.predicted / real - 1) for one, real in chosen]
            before = [abs(one.actual / real - 1) for one, real in chosen]
            held = [
                one.low is not None and one.high is not None and one.low <= real <= one.high for one, real in chosen
            ]
            table.add_row(
                name,
                figure,
                str(len(chosen)),
                f"{statistics.fmean(errors):.2%}",
                f"{max(errors):.2%}",
                f"{statistics.fmean(before):.2%}",
                f"{statistics.fmean(held):.0%}",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
