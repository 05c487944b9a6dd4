"""Fleet studies: every policy with every seed, each run by the coordinator in one process and without training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import describe_lost_options, load_experiment
from experiments.spec.user_plugins import import_plugins
from fedge.client import emulated
from fedge.client.emulated import ClientTask
from fedge.decisions.planning import JOINT_POLICY
from fedge.decisions.policies.policy_options import POLICY_OPTIONS
from fedge.devices.board_kinds import TABLE_PREFIX
from fedge.devices.mode_surface import ModeSurface
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetBoard, PolicySpec, list_boards
from fedge.registry import split_names
from fedge.studies.fleet.client_columns import build_board_experiment, build_run_experiment, count_board_steps
from fedge.studies.fleet.column_study import (
    ENGINES,
    check_columns,
    count_clients,
    describe_faster_engine,
    prefers_columns,
    run_column_study,
)
from fedge.studies.fleet.fleet_costs import map_presets_to_modes
from fedge.studies.fleet.round_comparison import BoardTruth, FleetRun, compare_round
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.studies.task_pool import run_jobs
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import RoundRow
from fedge.types import PowerMode, ProfileTable, RoundReport
from fedge.workloads import NullTask
from server.aggregation.aggregator import build_strategy
from server.aggregation.async_strategies import AsyncStrategy
from server.rounds.coordinator import Coordinator
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest

Reports = dict[int, dict[str, RoundReport]]
"""Client reports by round and board name."""


@dataclass(frozen=True, slots=True)
class FleetStudyOptions:
    """Options of a fleet study.

    Attributes:
        policies: Names separated by commas; None for the file's own policy.
        seeds: Number of repetitions, with seeds from 1.
        steps: SGD steps of every board per round; None for about 30 s at MAXN.
        overrides: ``key=value`` pairs that replace fields of the file.
        engine: ``coordinator`` or ``columns``; None for columns in large fleets.
    """

    config: Path
    policies: str | None = None
    rounds: int = 20
    seeds: int = 1
    steps: int | None = None
    overrides: tuple[str, ...] = ()
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class FleetStudyJob:
    """One run: an experiment with policy and seed, the steps per board and round, and the engine."""

    experiment: Experiment
    steps: int | None
    engine: str = "coordinator"

    def __str__(self) -> str:
        return f"{self.experiment.policy.name}, seed {self.experiment.seed}"


@dataclass(frozen=True, slots=True)
class FleetStudy:
    """The runs of a study, ordered by policy, then by seed."""

    jobs: tuple[FleetStudyJob, ...]

    def run(self, report: Callable[[str], None], workers: int | None = None) -> list[FleetRun]:
        """Execute all runs in parallel, by default on all cores that this process may use.

        ``report`` is called with the name of each finished run.
        """
        return run_jobs(_run_job, self.jobs, report, workers)


def build_fleet_study(options: FleetStudyOptions, note: Callable[[str], None] = lambda _: None) -> FleetStudy:
    """Build the study from the options.

    Args:
        note: Called with a sentence on what another policy removes, and on a faster engine.

    Raises:
        BadInput: If the file or an option is invalid.
    """
    experiment = load_experiment(options.config, options.overrides, note)
    _check_strategy(experiment, options.config)
    names: Sequence[str] = (experiment.policy.name,)
    if options.policies is not None:
        names = split_names("--policies", options.policies, "names of policies, separated by commas")
    engine, jobs = _choose_engine(options, experiment), []
    for name in names:
        if name == JOINT_POLICY:
            raise BadInput("--policies", repr(name), "a policy that sets power modes: no model is trained here")
        policy = build_policy(name, experiment.policy)
        if lost := experiment.policy.limits.keys() - policy.limits.keys():
            note(describe_lost_options(sorted(lost), experiment.policy.name, f"{name} takes no such option"))
        runs = [build_run_experiment(experiment, policy, seed, options.rounds) for seed in range(1, options.seeds + 1)]
        _check_experiment(runs[0], options.config, engine)
        jobs += [FleetStudyJob(run, options.steps, engine) for run in runs]
        is_free = options.engine is None and engine != "columns"
        if is_free and (faster := describe_faster_engine(runs[0], "`--engine columns`")):
            note(f"{name}: {faster}")
    return FleetStudy(tuple(jobs))


def _choose_engine(options: FleetStudyOptions, experiment: Experiment) -> str:
    if options.engine not in (None, *ENGINES):
        raise BadInput("--engine", repr(options.engine), f"one of {', '.join(ENGINES)}")
    return options.engine or ("columns" if prefers_columns(experiment) else "coordinator")


def build_policy(name: str, own: PolicySpec) -> PolicySpec:
    """Return the named policy with those of the file's options that it accepts."""
    known = POLICY_OPTIONS.get(name.partition(":")[0])
    if name == own.name or known is None:
        return own.model_copy(update={"name": name})
    return PolicySpec.model_validate({"name": name} | {key: own.limits[key] for key in known if key in own.limits})


def _check_strategy(experiment: Experiment, config: Path) -> None:
    import_plugins(experiment)
    try:
        check_synchronous(experiment)
    except BadInput as error:
        raise BadInput(f"{config}: {error.where}", error.got, error.right) from error


def _check_experiment(experiment: Experiment, config: Path, engine: str) -> None:
    try:
        if engine == "columns":
            _check_column_experiment(experiment)
        else:
            experiment_checks.check_experiment(experiment)
    except BadInput as error:
        where = "--policies" if error.where == "policy.name" else f"{config}: {error.where}"
        raise BadInput(where, error.got, error.right) from error


def _check_column_experiment(experiment: Experiment) -> None:
    """Check what concerns all boards of an entry on one of them: a million would take minutes."""
    check_columns(experiment)
    selection, clients = experiment.selection, count_clients(experiment)
    count = selection.count
    if count is not None and count > clients:
        raise BadInput("selection.count", str(count), f"from 1 to {clients}, the boards of the fleet")
    if count is not None and selection.name == "all" and count < clients:
        raise BadInput("selection.count", str(count), "none, because `all` takes every board, or a selection.name")
    changes = {
        "fleet": tuple(entry.model_copy(update={"count": 1}) for entry in experiment.fleet),
        "selection": selection.model_copy(update={"count": None if count is None or selection.name == "all" else 1}),
        # One step: the data of the whole fleet would be these boards' alone, and no deadline long enough for it.
        "workload": experiment.workload.model_copy(update={"local_epochs": 1e-9}),
    }
    experiment_checks.check_experiment(experiment.model_copy(update=changes))


def _run_job(job: FleetStudyJob) -> FleetRun:
    """Execute one run; called in a worker process."""
    import_plugins(job.experiment)
    if job.engine == "columns":
        return run_column_study(job.experiment, job.steps)
    return run_study_fleet(job.experiment, count_board_steps(job.experiment, job.steps))


def check_synchronous(experiment: Experiment) -> None:
    """Raise ``BadInput`` for an asynchronous strategy: the study evaluates rounds, which such a run does not have."""
    if isinstance(build_strategy(experiment.strategy), AsyncStrategy):
        right = "a strategy of rounds, e.g. --set strategy=FedAvg: the study judges rounds, asynchronous runs have none"
        raise BadInput("strategy.name", repr(experiment.strategy.name), right)


def run_study_fleet(experiment: Experiment, steps: Mapping[str, int]) -> FleetRun:
    """Run an experiment, as prepared for the study, once without training and compare each round with the oracle.

    Raises:
        RunFailed: If a round has no result.
    """
    # Flower's strategies log every aggregation to the terminal, which belongs to the launcher.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    seats = {b.name: build_board_experiment(experiment, b, steps[b.name]) for b in list_boards(experiment)}
    reports: Reports = {}
    index = {b.name: b.index for b in list_boards(experiment)}

    def respond(questions: Mapping[str, OutgoingRequest]) -> Mapping[str, IncomingReply]:
        tasks = [ClientTask(seats[name], index[name], asked.ask, asked.arrays) for name, asked in questions.items()]
        answers = dict(zip(questions, emulated.answer_together(tasks), strict=True))
        for name, (reply, _) in answers.items():
            if reply.report is not None:
                reports.setdefault(questions[name].ask.round, {})[name] = reply.report
        return {name: IncomingReply(*answer) for name, answer in answers.items()}

    tables = MemoryTables()
    Coordinator(experiment, LocalPort(respond), NullTask(), tables).run()
    rows = [row for row in tables.rows if isinstance(row, RoundRow)]
    truths = {b.name: _build_truth(seats[b.name], b) for b in list_boards(experiment)}
    judged = tuple(compare_round(row, reports[row.round], truths, experiment.policy) for row in rows)
    return FleetRun(
        experiment.policy.name, experiment.seed, judged, count_explored_modes(reports, [row.round for row in rows])
    )


def count_explored_modes(reports: Reports, rounds: Sequence[int]) -> tuple[float, ...]:
    """Return, for each round, the number of distinct modes measured so far, averaged over the boards."""
    explored: dict[str, set[PowerMode]] = {}
    means = []
    for number in rounds:
        for board, report in reports[number].items():
            explored.setdefault(board, set()).update(part.mode for part in report.parts)
        means.append(sum(len(modes) for modes in explored.values()) / len(explored))
    return tuple(means)


def _build_truth(experiment: Experiment, board: FleetBoard) -> BoardTruth:
    seat = emulated.load_client(experiment, board.index)
    presets = map_presets_to_modes(seat.surface, seat.kind.spec.presets)
    plausible = _plausible_modes(board.truth, seat.surface, seat.kind.spec.maxn)
    return BoardTruth(seat.surface, presets, seat.setup.steps, plausible)


def _plausible_modes(truth: str, surface: ModeSurface, maxn: PowerMode) -> NDArray[np.bool_]:
    """Return a mask of the modes of a measured table that fit their neighbours; all True if emulated."""
    if not truth.startswith(TABLE_PREFIX):
        return np.ones(len(surface.modes), dtype=np.bool_)
    table = ProfileTable(
        "",
        workload="",
        batch_size=1,
        modes=surface.modes,
        step_s=surface.step_s,
        power_w=surface.power_w,
        sha256="",
        path=truth,
    )
    return find_plausible_rows(table, maxn)
