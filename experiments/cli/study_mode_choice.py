"""``fedge study mode-choice``: one board under deadlines, with a measured table as truth; prints and writes regret."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cli.command_output import (
    check_study_outputs,
    make_console,
    parse_policy_names,
    show_progress,
    write_json_rows,
    write_output,
)
from experiments.cli.study_jobs import run_jobs
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput
from fedge.knowledge.table_background import find_board_spec
from fedge.types import Floats, ProfileTable

if TYPE_CHECKING:
    from experiments.report.predictors.choice_summary import PolicyRun

BOFL_STEPS = {
    "agx-xavier": {"cifar10": 200, "imagenet": 180, "imdb": 160},
    "tx2": {"cifar10": 75, "imagenet": 60, "imdb": 80},
}
"""SGD steps per round by board and data set, as in BoFL (Middleware 2022)."""
DEFAULT_DATA_SET = "cifar10"
DEFAULT_STEPS = 200
"""Steps per round for boards without a published number; the default equals that of the AGX Xavier."""
MIN_MODES = 2
NEAR, FEW = 0.05, 0.1
"""Clocks within the share NEAR count as the catalogue's, and a share FEW of a knob's values may differ. Defaults that
tolerate another release of a board, but not another board.
"""


@dataclass(frozen=True, slots=True)
class ModeChoiceOptions:
    """Command-line options."""

    table: Path
    ratios: tuple[float, ...] = (2.0,)
    rounds: int = 100
    policies: str = "fedge"
    """Names separated by commas."""
    seeds: int = 10
    steps: int | None = None
    device: str | None = None
    workload: str | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModeChoiceJob:
    """One run.

    Attributes:
        table: The measured table that serves as truth.
        ratio: Upper end of the drawn deadlines, as a multiple of the fastest round.
        rounds: Number of rounds.
        steps: SGD steps per round.
        policy: Name of the policy.
        seed: Seed of deadlines and exploration.
    """

    table: ProfileTable
    ratio: float
    rounds: int
    steps: int
    policy: str
    seed: int

    def __str__(self) -> str:
        return f"{self.policy}, ratio {self.ratio:g}, seed {self.seed}"


def run_mode_choice_study(asked: ModeChoiceOptions, json_file: Path | None, html: Path | None) -> None:
    """Run the study, print a table, and optionally write JSON and a page.

    Raises:
        BadInput: If the input is invalid; raised before any run.
    """
    check_study_outputs(json_file, html)
    jobs = build_mode_choice_jobs(asked)
    with show_progress(len(jobs)) as told:
        choices = run_jobs(run_mode_choice_job, jobs, told)
    from experiments.report.predictors.choice_terminal import mode_choice_table

    make_console().print(mode_choice_table(jobs[0].table, jobs[0].steps, choices))
    for note in list_table_notes(jobs[0].table, asked.device):
        make_console().print(f"note: {note}", soft_wrap=True, highlight=False, markup=False)
    write_json_rows(json_file, [choice.row for choice in choices])
    if html is not None:
        write_output("--html", html, lambda path: _write_page(jobs[0], choices, path))


def build_mode_choice_jobs(asked: ModeChoiceOptions) -> list[ModeChoiceJob]:
    """Return one job per policy, ratio and seed.

    Raises:
        BadInput: If the table or an option is invalid.
    """
    policies = parse_policy_names(asked.policies)
    _check_policies(policies)
    for ratio in asked.ratios:
        if not (math.isfinite(ratio) and ratio >= 1.0):
            raise BadInput("--deadline-ratio", f"{ratio:g}", "a finite number of at least 1, e.g. 2")
    if len(set(asked.ratios)) < len(asked.ratios):
        raise BadInput("--deadline-ratio", ", ".join(f"{ratio:g}" for ratio in asked.ratios), "each ratio once")
    table = read_mode_table(asked.table, asked.device, asked.workload, asked.batch_size)
    if len(table.modes) < MIN_MODES:
        raise BadInput(str(asked.table), "one power mode", "a table of several: there is nothing to choose")
    steps = find_steps(table) if asked.steps is None else asked.steps
    return [
        ModeChoiceJob(table, ratio=ratio, rounds=asked.rounds, steps=steps, policy=policy, seed=seed)
        for policy in policies
        for ratio in asked.ratios
        for seed in range(1, asked.seeds + 1)
    ]


def list_table_notes(table: ProfileTable, named: str | None) -> list[str]:
    """Return notes on a table whose board is not in the catalogue or has other clocks."""
    spec = find_board_spec(table.device)
    told = "named by --device" if named else "taken from the table's folder, --device names another"
    if spec is None:
        return [f"{table.device} ({told}) is no board of the catalogue: its predictor's priors are not scaled to it"]
    own = {"core counts": spec.cores, "CPU clocks": spec.cpu_mhz, "GPU clocks": spec.gpu_mhz, "memory": spec.mem_mhz}
    strange = [what for knob, (what, known) in enumerate(own.items()) if _is_foreign(table.modes.knobs[:, knob], known)]
    if not strange:
        return []
    return [f"the table's {', '.join(strange)} are not those of {spec.name} ({told}): is it this board's table?"]


def _is_foreign(values: Floats, known: Sequence[float]) -> bool:
    """Return whether more than the share ``FEW`` of a knob's values do not belong to the board."""
    found = {*values.tolist()}
    off = [value for value in found if min(abs(value / one - 1.0) for one in known) > NEAR]
    return len(off) > FEW * len(found)


def find_steps(table: ProfileTable) -> int:
    """Return the published number of steps for the table's board and data set."""
    spec = find_board_spec(table.device)
    known = BOFL_STEPS.get(spec.name if spec is not None else table.device)
    if known is None:
        return DEFAULT_STEPS
    named = [name for name in known if name in table.workload.lower()]
    return known[named[0] if named else DEFAULT_DATA_SET]


def run_mode_choice_job(job: ModeChoiceJob) -> PolicyRun:
    """Execute one run; called in a worker process."""
    from experiments.report.predictors.choice_summary import PolicyRun
    from fedge.studies.mode_choice_study import run_mode_choice_study

    played = run_mode_choice_study(
        job.table, ratio=job.ratio, rounds=job.rounds, steps=job.steps, policy=job.policy, seed=job.seed
    )
    return PolicyRun(job.policy, job.ratio, job.seed, played)


def _check_policies(names: Sequence[str]) -> None:
    """Check that the study knows every policy, before any run."""
    from fedge.studies.mode_choice_study import check_policy

    for name in names:
        check_policy(name, "--policy")


def _write_page(job: ModeChoiceJob, choices: Sequence[PolicyRun], path: Path) -> None:
    from experiments.report.predictors.mode_choice_page import write_mode_choice_page

    write_mode_choice_page(job.table, job.steps, choices, path)
