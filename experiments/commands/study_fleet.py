"""``fedge study fleet``: plays a fleet that trains nothing under several policies, prints and writes what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import checks
from experiments.commands.study_jobs import play_all
from experiments.commands.study_output import check_outputs, console, names_of, progress, write_rows, written
from experiments.schema import load_experiment
from fedge.errors import BadInput
from fedge.experiment import Experiment, PolicySpec
from fedge.studies import fleet as study
from fedge.studies.fleet import FleetRun


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were typed."""

    config: Path
    policies: str | None = None
    """Separated by commas; by default the file's own."""
    rounds: int = 20
    seeds: int = 1
    steps: int | None = None
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """One run: an experiment with its policy and seed, and every board's minibatches."""

    experiment: Experiment
    steps: int | None

    def __str__(self) -> str:
        return f"{self.experiment.policy.name}, seed {self.experiment.seed}"


def fleet(asked: Asked, json_file: Path | None, html: Path | None) -> None:
    """Play, print the table, write ``json_file`` and ``html`` where given; raises ``BadInput`` before anything else."""
    check_outputs(json_file, html)
    jobs = jobs_of(asked)
    with progress(len(jobs)) as told:
        runs = play_all(play, jobs, told)
    from experiments.report.choices.terminal import fleet_table

    console().print(fleet_table(runs))
    write_rows(json_file, [run.row for run in runs])
    if html is not None:
        written("--html", html, lambda path: _draw(jobs[0].experiment, runs, path))


def jobs_of(asked: Asked) -> list[Job]:
    """Every policy with every seed; raises ``BadInput`` for whatever is wrong with the file or the options."""
    experiment = load_experiment(asked.config, asked.overrides)
    _check_strategy(experiment, asked.config)
    names = (experiment.policy.name,) if asked.policies is None else names_of(asked.policies)
    jobs = []
    for name in names:
        policy = policy_of(name, experiment.policy)
        played = study.as_asked(experiment, policy, 1, asked.rounds)
        _check(played, asked.config)
        jobs += [Job(study.as_asked(experiment, policy, seed, asked.rounds), asked.steps) for seed in _seeds(asked)]
    return jobs


def policy_of(name: str, own: PolicySpec) -> PolicySpec:
    """The policy called ``name`` with the file's numbers, as far as it takes them."""
    known = checks.OPTIONS.get(name.partition(":")[0])
    if name == own.name or known is None:
        return own.model_copy(update={"name": name})
    return PolicySpec(name=name, **{key: value for key, value in own.limits.items() if key in known})


def play(job: Job) -> FleetRun:
    """One run, whatever process it is in."""
    from experiments.backends.study import play_fleet

    checks.add_plugins(job.experiment)
    return play_fleet(job.experiment, study.steps_of_boards(job.experiment, job.steps))


def _seeds(asked: Asked) -> Sequence[int]:
    return range(1, asked.seeds + 1)


def _check_strategy(experiment: Experiment, config: Path) -> None:
    from experiments.backends.study import check_strategy

    checks.add_plugins(experiment)
    try:
        check_strategy(experiment)
    except BadInput as error:
        raise BadInput(f"{config}: {error.where}", error.got, error.right) from error


def _check(experiment: Experiment, config: Path) -> None:
    try:
        checks.check(experiment)
    except BadInput as error:
        where = "--policy" if error.where == "policy.name" else f"{config}: {error.where}"
        raise BadInput(where, error.got, error.right) from error


def _draw(experiment: Experiment, runs: Sequence[FleetRun], path: Path) -> None:
    from experiments.report.choices.fleet import write_fleet

    write_fleet(experiment, runs, path)
