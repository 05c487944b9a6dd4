"""The grid of a mode-choice study: every policy at every deadline ratio with every seed, on one measured table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput
from fedge.knowledge.table_background import find_board_spec
from fedge.registry import split_names
from fedge.studies.mode_choice_study import ModeChoiceResult, check_policy, run_mode_choice
from fedge.studies.task_pool import run_jobs
from fedge.types import Floats, ProfileTable

BOFL_STEPS = {
    "agx-xavier": {"cifar10": 200, "imagenet": 180, "imdb": 160},
    "tx2": {"cifar10": 75, "imagenet": 60, "imdb": 80},
}
"""SGD steps per round by board and data set, as in BoFL (Middleware 2022)."""
DEFAULT_DATA_SET = "cifar10"
DEFAULT_STEPS = 200
"""Steps per round for boards without a published number; the default equals that of the AGX Xavier."""
MIN_MODES = 2
CLOCK_TOLERANCE, FOREIGN_SHARE = 0.05, 0.1
"""Clocks within the first share count as the catalogue's, and the second share of a knob's values may differ. Defaults
that tolerate another release of a board, but not another board.
"""


@dataclass(frozen=True, slots=True)
class ModeChoiceOptions:
    """Options of a mode-choice study.

    Attributes:
        table: The measured table that serves as truth.
        ratios: Upper ends of the drawn deadlines, as multiples of the fastest round.
        rounds: Rounds of every run.
        policies: Names separated by commas.
        seeds: Number of repetitions.
        steps: SGD steps per round; None for the published number of board and data set.
        device: The board; None takes it from the table's path.
        workload: The workload; None takes it from the table's name.
        batch_size: Batch size, if the table holds several.
    """

    table: Path
    ratios: tuple[float, ...] = (2.0,)
    rounds: int = 100
    policies: str = "fedge"
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


@dataclass(frozen=True, slots=True, eq=False)
class ModeChoiceStudy:
    """The runs of a study on one table.

    Attributes:
        table: The measured table that serves as truth.
        steps: SGD steps per round.
        notes: Notes on the table's board.
        jobs: The runs.
    """

    table: ProfileTable
    steps: int
    notes: tuple[str, ...]
    jobs: tuple[ModeChoiceJob, ...]

    def run(self, report: Callable[[str], None], workers: int | None = None) -> list[ModeChoiceResult]:
        """Execute all runs in parallel.

        Args:
            report: Called with the name of each finished run.
            workers: Number of processes; None for the cores that this process may use.
        """
        return run_jobs(_run_job, self.jobs, report, workers)


def build_mode_choice_study(options: ModeChoiceOptions) -> ModeChoiceStudy:
    """Build the study from the options.

    Raises:
        BadInput: If the table or an option is invalid.
    """
    policies = split_names("--policies", options.policies, "names of policies, separated by commas")
    for name in policies:
        check_policy(name, "--policies")
    for ratio in options.ratios:
        if not (math.isfinite(ratio) and ratio >= 1.0):
            raise BadInput("--deadline-ratio", f"{ratio:g}", "a finite number of at least 1, e.g. 2")
    if len(set(options.ratios)) < len(options.ratios):
        raise BadInput("--deadline-ratio", ", ".join(f"{ratio:g}" for ratio in options.ratios), "each ratio once")
    table = read_mode_table(options.table, options.device, options.workload, options.batch_size)
    if len(table.modes) < MIN_MODES:
        raise BadInput(str(options.table), "one power mode", "a table of several: there is nothing to choose")
    steps = find_steps(table) if options.steps is None else options.steps
    jobs = tuple(
        ModeChoiceJob(table, ratio=ratio, rounds=options.rounds, steps=steps, policy=policy, seed=seed)
        for policy in policies
        for ratio in options.ratios
        for seed in range(1, options.seeds + 1)
    )
    return ModeChoiceStudy(table, steps, list_board_notes(table, options.device), jobs)


def list_board_notes(table: ProfileTable, device: str | None) -> tuple[str, ...]:
    """Return notes on a table whose board is not in the catalogue or has other clocks.

    Args:
        table: The table.
        device: The board that the user named, or None.
    """
    spec = find_board_spec(table.device)
    origin = "named by --board" if device else "taken from the table's folder, --board names another"
    if spec is None:
        return (f"{table.device} ({origin}) is no board of the catalogue: its predictor's priors are not scaled to it",)
    knobs = {"core counts": spec.cores, "CPU clocks": spec.cpu_mhz, "GPU clocks": spec.gpu_mhz, "memory": spec.mem_mhz}
    foreign = [
        name for knob, (name, known) in enumerate(knobs.items()) if _is_foreign(table.modes.knobs[:, knob], known)
    ]
    if not foreign:
        return ()
    return (f"the table's {', '.join(foreign)} are not those of {spec.name} ({origin}): is it this board's table?",)


def _is_foreign(values: Floats, known: Sequence[float]) -> bool:
    """Return whether more than ``FOREIGN_SHARE`` of a knob's values do not belong to the board."""
    distinct = {*values.tolist()}
    off = [value for value in distinct if min(abs(value / one - 1.0) for one in known) > CLOCK_TOLERANCE]
    return len(off) > FOREIGN_SHARE * len(distinct)


def find_steps(table: ProfileTable) -> int:
    """Return the published number of steps for the table's board and data set."""
    spec = find_board_spec(table.device)
    known = BOFL_STEPS.get(spec.name if spec is not None else table.device)
    if known is None:
        return DEFAULT_STEPS
    named = [name for name in known if name in table.workload.lower()]
    return known[named[0] if named else DEFAULT_DATA_SET]


def _run_job(job: ModeChoiceJob) -> ModeChoiceResult:
    """Execute one run; called in a worker process."""
    return run_mode_choice(
        job.table, ratio=job.ratio, rounds=job.rounds, steps=job.steps, policy=job.policy, seed=job.seed
    )
