"""One board with a deadline in every round and a measured table as truth: energy and regret against the oracle.

The setting is BoFL's: N steps per round, a deadline drawn uniformly from [1, r] times the fastest possible round, and
only the work's energy counts. The oracle knows the table and splits every round over the best two modes; ``neighbours``
does the same, but knows each mode's power only from the neighbouring modes. Regret is the energy beyond the oracle's,
saving that below the top mode's, both over whole runs.

References:
    Guo et al., "BoFL: Bayesian optimized local training pace control for energy efficient federated learning",
    Middleware 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedge.client.round import run_round
from fedge.client.round_state import RoundContext
from fedge.decisions.measured_correction import find_rows
from fedge.decisions.mode_mix import find_best_split
from fedge.decisions.policies import load_policy
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput, UnknownName, check_known
from fedge.experiment import ExplorationSpec
from fedge.knowledge.table_background import build_background, find_board_spec
from fedge.pareto import find_nearest_row
from fedge.predictors import DEFAULT_PREDICTOR, load_predictor
from fedge.predictors.explorers import load_explorer
from fedge.protocols import Predictor
from fedge.registry import split_names
from fedge.seeds import make_generator
from fedge.studies.bofl import BoflClient
from fedge.studies.implausible_rows import predict_from_neighbours
from fedge.studies.task_pool import run_jobs
from fedge.types import (
    DeviceSpec,
    Floats,
    LabelledValue,
    LinkUse,
    Measurement,
    Modes,
    PowerMode,
    Predictions,
    ProfileTable,
    RoundGoal,
    Workload,
)
from fedge.workloads import NullTraining

LATE_TOLERANCE = 0.01
"""Relative excess over a deadline from which a round counts as missed."""
SETTLED_ROUND = 10
"""Round from which on a board should know its modes."""
POLICIES = ("fedge", "bofl", "maxn", "oracle", "neighbours")
STUDY_EXPLORER = "active"
STUDY_MODES = 60
"""Number of different modes that a board may probe in this study.

Deadlines that are drawn anew need the whole front, not one mode of it. On seven measured tables of training (deadlines
up to twice the fastest round, from round 10 on) 15 modes left a mean regret of 2.3 %, 30 modes 0.4 to 1.1 %, and 60
modes 0.3 %; BoFL takes 30 to 71.
"""
STUDY_EXPLORATION = ExplorationSpec(share=0.5, probe_s=0.5, slack=0.0, foresight=6.0, modes=STUDY_MODES)
"""Default exploration of the study. Deadlines are drawn anew every round, hence the foresight for all kinds of them."""
NO_LINK = LinkUse(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ModeRound:
    """One round of a run; ``missed`` if the work ended later than ``LATE_TOLERANCE`` after the deadline.

    The oracle's and MAXN's energy are those of the same round; ``modes`` describes the parts, each with its steps.
    """

    round: int
    deadline_s: float
    time_s: float
    energy_j: float
    oracle_j: float
    maxn_j: float
    explored: int
    missed: bool
    modes: str


@dataclass(frozen=True, slots=True)
class ModeChoiceResult:
    """One run of the study."""

    policy: str
    ratio: float
    seed: int
    rounds: tuple[ModeRound, ...]

    @property
    def regret_pct(self) -> float:
        """Energy beyond the oracle's over all rounds in percent, probes included."""
        return _regret_pct(self.rounds)

    @property
    def regret_after10_pct(self) -> float:
        """The same from round ``SETTLED_ROUND`` on, or over all rounds of a shorter run."""
        return _regret_pct([one for one in self.rounds if one.round >= SETTLED_ROUND] or self.rounds)

    @property
    def energy_saved_pct(self) -> float:
        """Energy saved against all rounds in the top mode, in percent."""
        return 100.0 * (1.0 - sum(r.energy_j for r in self.rounds) / sum(r.maxn_j for r in self.rounds))

    @property
    def deadlines_missed(self) -> int:
        return sum(one.missed for one in self.rounds)

    @property
    def modes_explored(self) -> int:
        return self.rounds[-1].explored

    @property
    def row(self) -> dict[str, str | int | float | None]:
        """Figures of the run for JSON; those from round ``SETTLED_ROUND`` on are None in shorter runs."""
        settled = any(one.round >= SETTLED_ROUND for one in self.rounds)
        return {
            "policy": self.policy,
            "ratio": self.ratio,
            "seed": self.seed,
            "regret_pct": self.regret_pct,
            "regret_after10_pct": self.regret_after10_pct if settled else None,
            "energy_saved_pct": self.energy_saved_pct,
            "deadlines_missed": self.deadlines_missed,
            "modes_explored": self.modes_explored,
        }


def _regret_pct(rounds: Sequence[ModeRound]) -> float:
    return 100.0 * (sum(r.energy_j for r in rounds) / sum(r.oracle_j for r in rounds) - 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class ModeChoiceJob:
    """One policy through rounds with random deadlines, which are drawn up to ``ratio`` times the fastest round.

    ``without`` names workloads and boards that the priors exclude beside the table's own workload.
    """

    table: ProfileTable
    ratio: float
    rounds: int
    steps: int
    policy: str
    seed: int
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.policy}, ratio {self.ratio:g}, seed {self.seed}"


def run_mode_choice(job: ModeChoiceJob) -> ModeChoiceResult:
    """Run a policy on a measured table; the predictor's priors never include the table's workload.

    Raises:
        UnknownName: For an unknown policy.
    """
    table, steps, seed = job.table, job.steps, job.seed
    truth = _TableTruth.from_table(table)
    shares = make_generator(seed, "deadlines").uniform(1.0, job.ratio, job.rounds)
    deadlines_s = [float(share) * steps * truth.fastest_s for share in shares]
    if job.policy == "fedge":
        board = _LearningClient(job, truth)
        runs = [board.run_round(steps, d, job.rounds - number) for number, d in enumerate(deadlines_s, start=1)]
    elif job.policy == "bofl":
        bofl = BoflClient(table.modes, truth.maxn, truth.measure_part, seed)
        runs = [bofl.run_round(steps, deadline_s) for deadline_s in deadlines_s]
    elif job.policy == "oracle":
        runs = [truth.run_oracle_round(steps, deadline_s) for deadline_s in deadlines_s]
    elif job.policy == "neighbours":
        predicted_j = table.step_s * predict_from_neighbours(table, table.modes[truth.maxn])[1]
        runs = [truth.run_oracle_round(steps, deadline_s, predicted_j) for deadline_s in deadlines_s]
    elif job.policy == "maxn":
        runs = [(truth.measure_part(truth.maxn, steps),) for _ in deadlines_s]
    else:
        raise UnknownName("policy", job.policy, POLICIES)
    return ModeChoiceResult(job.policy, job.ratio, seed, tuple(_build_rounds(truth, steps, deadlines_s, runs)))


RoundParts = tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _TableTruth:
    """A table as the truth: its times and powers, joules per step by mode, and the row of the top mode."""

    table: ProfileTable
    step_j: Floats
    maxn: int

    @classmethod
    def from_table(cls, table: ProfileTable) -> _TableTruth:
        return cls(table, table.step_s * table.power_w, find_nearest_row(table.modes, table.maxn))

    @property
    def fastest_s(self) -> float:
        return float(self.table.step_s.min())

    def measure_part(self, row: int, steps: int) -> Measurement:
        table = self.table
        return Measurement(table.modes[row], steps, float(table.step_s[row]), float(table.power_w[row]))

    def run_oracle_round(self, steps: int, deadline_s: float, predicted_j: Floats | None = None) -> RoundParts:
        """Return the oracle's round: least energy within the deadline over all splits into two modes.

        Args:
            steps: Steps of the round.
            deadline_s: The round's deadline.
            predicted_j: Joules per step to choose by, shape (n,); None for the true ones.
        """
        step_j = self.step_j if predicted_j is None else predicted_j
        split = find_best_split(self.table.step_s, step_j, steps, deadline_s)
        if split is None:
            return (self.measure_part(int(np.argmin(self.table.step_s)), steps),)
        slow = (self.measure_part(split.slow, split.steps),) if split.steps else ()
        return (*slow, self.measure_part(split.fast, steps - split.steps))


class TableDevice:
    """A ``fedge.protocols.Device`` that replays a measured table without noise; waiting costs nothing, as in BoFL."""

    def __init__(self, table: ProfileTable) -> None:
        self.spec = find_board_spec(table.device) or _spec_from_table(table)
        self._table = table
        self._mode = table.modes[find_nearest_row(table.modes, table.maxn)]
        self._worked: PowerMode | None = None

    def idle_w(self, mode: PowerMode) -> float:
        return 0.0

    @contextmanager
    def use_mode(self, mode: PowerMode) -> Iterator[None]:
        previous, self._mode = self._mode, mode
        try:
            yield
        finally:
            self._mode = previous

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        row = find_rows(self._table.modes, [self._mode])[self._mode]
        switch_s = 0.0 if self._worked not in (None, self._mode) else None
        self._worked = self._mode
        step_s = float(self._table.step_s[row])
        count = steps if limit_s is None else max(1, min(steps, int(limit_s / step_s)))
        power_w = float(self._table.power_w[row])
        work(count)
        return Measurement(self._mode, count, step_s, power_w, switch_s=switch_s)


class _RefitPerModePredictor:
    """A predictor that is refitted only after another mode was measured, because repeats give the same values."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._fitted: frozenset[PowerMode] | None = None
        self._predictions: Predictions | None = None

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        firsts = {measurement.mode: measurement for measurement in reversed(measurements)}
        if self._fitted != firsts.keys():
            self._predictor.fit(list(reversed(firsts.values())))
            self._fitted, self._predictions = frozenset(firsts), None
        return self

    def predict(self, modes: Modes) -> Predictions:
        if self._predictions is None or self._predictions.modes is not modes:
            self._predictions = self._predictor.predict(modes)
        return self._predictions


class _LearningClient:
    """A client that learns its modes over the rounds through fedge's own client round."""

    def __init__(self, job: ModeChoiceJob, truth: _TableTruth) -> None:
        table = job.table
        knowledge = replace(build_background(table, without=job.without, layered=False).knowledge, seed=job.seed)
        maxn = table.modes[truth.maxn]
        self._measurements: RoundParts = ()
        self._context = RoundContext(
            board="board",
            device=TableDevice(table),
            predictor=_RefitPerModePredictor(load_predictor(DEFAULT_PREDICTOR, knowledge)),
            policy=load_policy("balanced"),
            workload=Workload(table.workload, table.batch_size),
            candidates=table.modes,
            fastest_mode=maxn,
            waiting_mode=maxn,
            exploration=STUDY_EXPLORATION,
            make_explorer=lambda modes: load_explorer(STUDY_EXPLORER, modes, knowledge),
        )

    def run_round(self, steps: int, deadline_s: float, rounds_left: int) -> RoundParts:
        """Run one round and keep its measurements for the next."""
        goal = RoundGoal("balanced", steps, deadline_s, rounds_left=rounds_left)
        result = run_round(
            self._context, goal=goal, measurements=self._measurements, link=NO_LINK, training=NullTraining({})
        )
        allowed_s = () if result.step_budget_s is None else (result.step_budget_s,)
        self._context = replace(self._context, step_budgets_s=(*self._context.step_budgets_s, *allowed_s))
        mixed = () if result.mixed is None else (result.mixed,)
        parts = (*result.probes, *mixed, result.measured)
        self._measurements = (*self._measurements, *parts)
        return parts


def _build_rounds(
    truth: _TableTruth, steps: int, deadlines_s: Sequence[float], runs: Sequence[RoundParts]
) -> Iterator[ModeRound]:
    seen: set[PowerMode] = set()
    for number, (deadline_s, parts) in enumerate(zip(deadlines_s, runs, strict=True), start=1):
        seen |= {part.mode for part in parts}
        time_s = sum(part.work_s for part in parts)
        yield ModeRound(
            round=number,
            deadline_s=deadline_s,
            time_s=time_s,
            energy_j=sum(part.work_j for part in parts),
            oracle_j=sum(part.work_j for part in truth.run_oracle_round(steps, deadline_s)),
            maxn_j=steps * float(truth.step_j[truth.maxn]),
            explored=len(seen),
            missed=time_s > (1.0 + LATE_TOLERANCE) * deadline_s,
            modes=", ".join(f"{part.steps} in {part.mode}" for part in parts),
        )


def _spec_from_table(table: ProfileTable) -> DeviceSpec:
    """Build the specification of a board outside the catalogue from its table."""
    columns = [tuple(sorted(set(table.modes.knobs[:, knob].tolist()))) for knob in range(4)]
    unknown = LabelledValue(float("nan"), "estimated", "unknown board")
    figures = ("ram_gb", "idle_w", "max_w", "gpu_gflops", "mem_gbps", "cpu_score")
    nothing: dict[str, Any] = dict.fromkeys(figures, unknown)
    return DeviceSpec(
        name=table.device,
        title=table.device,
        cores=tuple(int(value) for value in columns[0]),
        cpu_mhz=columns[1],
        gpu_mhz=columns[2],
        mem_mhz=columns[3],
        presets={},
        default_preset="",
        **nothing,
        rails=(),
        total_power="",
        accelerators=(),
        jetpacks=(),
    )


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
        deadline_ratios: Upper ends of the drawn deadlines, as multiples of the fastest round.
        policies: Names separated by commas.
        steps: SGD steps per round; None for the published number of board and data set.
        board: The board; None takes it from the table's path.
        workload: The workload; None takes it from the table's name.
        batch_size: Batch size, if the table holds several.
    """

    table: Path
    deadline_ratios: tuple[float, ...] = (2.0,)
    rounds: int = 100
    policies: str = "fedge"
    seeds: int = 10
    steps: int | None = None
    board: str | None = None
    workload: str | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModeChoiceStudy:
    """The runs of a study on one table."""

    table: ProfileTable
    steps: int
    notes: tuple[str, ...]
    jobs: tuple[ModeChoiceJob, ...]

    def run(self, report: Callable[[str], None], workers: int | None = None) -> list[ModeChoiceResult]:
        """Execute all runs in parallel."""
        return run_jobs(run_mode_choice, self.jobs, report, workers)


def build_mode_choice_study(options: ModeChoiceOptions) -> ModeChoiceStudy:
    """Build the study from the options.

    Raises:
        BadInput: If the table or an option is invalid.
    """
    policies = split_names("--policies", options.policies, "names of policies, separated by commas")
    for name in policies:
        check_known("--policies", name, POLICIES)
    for ratio in options.deadline_ratios:
        if not (math.isfinite(ratio) and ratio >= 1.0):
            raise BadInput("--deadline-ratio", f"{ratio:g}", "a finite number of at least 1, e.g. 2")
    if len(set(options.deadline_ratios)) < len(options.deadline_ratios):
        raise BadInput(
            "--deadline-ratio", ", ".join(f"{ratio:g}" for ratio in options.deadline_ratios), "each ratio once"
        )
    table = read_mode_table(options.table, options.board, options.workload, options.batch_size)
    if len(table.modes) < MIN_MODES:
        raise BadInput(str(options.table), "one power mode", "a table of several: there is nothing to choose")
    steps = find_steps(table) if options.steps is None else options.steps
    jobs = tuple(
        ModeChoiceJob(table, ratio=ratio, rounds=options.rounds, steps=steps, policy=policy, seed=seed)
        for policy in policies
        for ratio in options.deadline_ratios
        for seed in range(1, options.seeds + 1)
    )
    return ModeChoiceStudy(table, steps, list_board_notes(table, options.board), jobs)


def list_board_notes(table: ProfileTable, device: str | None) -> tuple[str, ...]:
    """Return notes on a table whose board is not in the catalogue or has other clocks."""
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
