"""``fedge study fleet``: runs a fleet without training under several policies, prints and writes the costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.cli.command_output import (
    check_study_outputs,
    make_console,
    parse_policy_names,
    show_progress,
    write_json_rows,
    write_output,
)
from experiments.cli.study_jobs import run_jobs
from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import BadInput
from fedge.experiment import Experiment, PolicySpec
from fedge.studies import fleet as study
from fedge.studies.fleet import FleetRun


@dataclass(frozen=True, slots=True)
class FleetStudyOptions:
    """Command-line options."""

    config: Path
    policies: str | None = None
    """Names separated by commas; by default the file's own policy."""
    rounds: int = 20
    seeds: int = 1
    steps: int | None = None
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetStudyJob:
    """One run: an experiment with policy and seed, and the steps per board and round."""

    experiment: Experiment
    steps: int | None

    def __str__(self) -> str:
        return f"{self.experiment.policy.name}, seed {self.experiment.seed}"


def run_fleet_study(asked: FleetStudyOptions, json_file: Path | None, html: Path | None) -> None:
    """Run the study, print a table, and optionally write JSON and a page.

    Raises:
        BadInput: If the input is invalid; raised before any run.
    """
    check_study_outputs(json_file, html)
    jobs = build_fleet_jobs(asked)
    with show_progress(len(jobs)) as told:
        runs = run_jobs(run_fleet_job, jobs, told)
    from experiments.report.predictors.choice_terminal import fleet_table

    make_console().print(fleet_table(runs))
    write_json_rows(json_file, [run.row for run in runs])
    if html is not None:
        write_output("--html", html, lambda path: _write_page(jobs[0].experiment, runs, path))


def build_fleet_jobs(asked: FleetStudyOptions) -> list[FleetStudyJob]:
    """Return one job per policy and seed.

    Raises:
        BadInput: If the file or an option is invalid.
    """
    experiment = load_experiment(asked.config, asked.overrides)
    _check_strategy(experiment, asked.config)
    names = (experiment.policy.name,) if asked.policies is None else parse_policy_names(asked.policies)
    jobs = []
    for name in names:
        policy = build_policy(name, experiment.policy)
        played = study.build_run_experiment(experiment, policy, 1, asked.rounds)
        _check_experiment(played, asked.config)
        jobs += [
            FleetStudyJob(study.build_run_experiment(experiment, policy, seed, asked.rounds), asked.steps)
            for seed in _list_seeds(asked)
        ]
    return jobs


def build_policy(name: str, own: PolicySpec) -> PolicySpec:
    """Return the named policy with those of the file's options that it accepts."""
    known = experiment_checks.POLICY_OPTIONS.get(name.partition(":")[0])
    if name == own.name or known is None:
        return own.model_copy(update={"name": name})
    return PolicySpec(name=name, **{key: value for key, value in own.limits.items() if key in known})


def run_fleet_job(job: FleetStudyJob) -> FleetRun:
    """Execute one run; called in a worker process."""
    from experiments.backends.study_backend import run_study_fleet

    experiment_checks.import_plugins(job.experiment)
    return run_study_fleet(job.experiment, study.count_board_steps(job.experiment, job.steps))


def _list_seeds(asked: FleetStudyOptions) -> Sequence[int]:
    return range(1, asked.seeds + 1)


def _check_strategy(experiment: Experiment, config: Path) -> None:
    from experiments.backends.study_backend import check_synchronous

    experiment_checks.import_plugins(experiment)
    try:
        check_synchronous(experiment)
    except BadInput as error:
        raise BadInput(f"{config}: {error.where}", error.got, error.right) from error


def _check_experiment(experiment: Experiment, config: Path) -> None:
    try:
        experiment_checks.check_experiment(experiment)
    except BadInput as error:
        where = "--policy" if error.where == "policy.name" else f"{config}: {error.where}"
        raise BadInput(where, error.got, error.right) from error


def _write_page(experiment: Experiment, runs: Sequence[FleetRun], path: Path) -> None:
    from experiments.report.predictors.fleet_study_page import write_fleet_page

    write_fleet_page(experiment, runs, path)
