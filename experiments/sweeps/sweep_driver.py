"""Runs the points of a sweep that have not ended, and keeps the sweep's summary up to date.

Optuna proposes variants batch by batch: equal results give equal proposals, so a sweep can go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.backends import launcher
from experiments.report.run.run_summary import summarise_run
from experiments.spec import experiment_checks
from experiments.sweeps.point_plan import (
    POINTS,
    RECORD,
    ExperimentPoint,
    ExperimentVariant,
    SweepPlan,
    build_variant,
    commit_point,
    find_point,
    list_points,
    read_point_file,
    run_point,
)
from experiments.sweeps.sweep_spec import DimensionSpec, SamplerSpec
from experiments.sweeps.sweep_summary import SweepSummary, VariantResults, summarise_variants, write_summary
from fedge.atomic_files import FileLock
from fedge.errors import BadInput, list_known, prefix_errors
from fedge.extras import build_install_command
from fedge.studies.task_pool import TaskOptions, open_pool, run_tasks
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    import optuna


LOCK_FILE = ".lock"


@dataclass(slots=True)
class _SweepState:
    """The results of a running sweep, by the identity of the variants; equal variants of a sampler are one.

    Attributes:
        planned: Number of points in all; a sampler may propose a variant twice, which leaves fewer.
        packages: Versions of fedge of the finished points, as keys.
    """

    plan: SweepPlan
    folder: Path
    planned: int
    results: dict[str, VariantResults] = field(default_factory=dict)
    packages: dict[str, None] = field(default_factory=dict)

    def add_variants(self, variants: Sequence[ExperimentVariant]) -> None:
        for variant in variants:
            self.results.setdefault(variant.identity, VariantResults(variant))

    def find_results(self, point: ExperimentPoint) -> VariantResults:
        first = point.experiment.model_copy(update={"seed": self.plan.spec.seeds[0]})
        return self.results[first.model_dump_json()]

    def add_point(self, point: ExperimentPoint, folder: Path) -> None:
        found = self.find_results(point)
        found.points[point.seed] = f"{POINTS}/{folder.name}"
        found.summaries[point.seed] = read_point_file(folder / run_folder.SUMMARY)
        self.packages[str(read_point_file(folder / RECORD).get("fedge"))] = None

    def score(self, variant: ExperimentVariant) -> float | None:
        """Return the mean over the seeds of the figure to optimise; None unless all seeds have it."""
        values = [*self.results[variant.identity].list_values(self.plan.spec.aims[0]).values()]
        known = [value for value in values if value is not None and math.isfinite(value)]
        return math.fsum(known) / len(known) if len(known) == len(self.plan.spec.seeds) else None

    def summarise(self) -> SweepSummary:
        figures = tuple(dict.fromkeys((*self.plan.spec.aims, *self.plan.spec.figures)))
        metrics = {one.variant.experiment.workload.metric for one in self.results.values()} or {"accuracy"}
        return SweepSummary(
            self.plan.path.name,
            planned=self.planned,
            packages=tuple(self.packages),
            best=self._find_best(),
            variants=summarise_variants([*self.results.values()], figures),
            metric="metric" if len(metrics) > 1 else metrics.pop(),
        )

    def _find_best(self) -> str | None:
        sampler = self.plan.spec.sampler
        if sampler is None:
            return None
        scores = {one.variant.label: self.score(one.variant) for one in self.results.values()}
        known = {label: value for label, value in scores.items() if value is not None}
        choose = min if sampler.minimise is not None else max
        return choose(known, key=known.__getitem__) if known else None


def choose_sweep_folder(config: Path, folder: Path | None) -> Path:
    """Return the folder of a sweep's file: the given one, or one in ``runs``."""
    return run_folder.RUNS / f"sweep-{config.stem}" if folder is None else folder


def check_sweep(plan: SweepPlan) -> None:
    """Check everything that can be known before the first point runs.

    Raises:
        BadInput: For the first variant that cannot run, an unknown figure, or a sampler that is not installed.
        MissingPackage: If a variant needs a library that is not installed.
    """
    check_optuna(plan)
    for variant in plan.variants:
        experiment_checks.require_libraries(variant.experiment, "fedge sweep")
        with prefix_errors(f"{plan.path}: {variant.label}"):
            launcher.check_runnable(variant.experiment)
    empty = summarise_run(plan.variants[0].experiment, rounds=(), clients=(), wall_s=0.0)
    known = [name for name, value in empty.items() if not isinstance(value, str | bool) and name != "ended"]
    for name in (*plan.spec.aims, *plan.spec.figures):
        if name not in known:
            where = "sampler" if name in plan.spec.aims else "figures"
            raise BadInput(f"{plan.path}: {where}", repr(name), list_known(name, known, "figures of a run: "))


def run_sweep(
    plan: SweepPlan,
    folder: Path,
    workers: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> SweepSummary:
    """Run all points that have not ended, in tasks of ``fedge.studies.task_pool``.

    A point's folder appears as a whole when its task ends, so an interrupted sweep goes on when it is started again. A
    point that fails is not recorded as ended; the others go on.

    Args:
        plan: A checked sweep.
        folder: The sweep's folder, new or of an earlier start.
        workers: Number of points at a time; None for as many as there are cores for.
        report: Called with the description of every point that has ended, now or earlier.

    Raises:
        BadInput: If another process runs the sweep, or the cluster at RAY_ADDRESS cannot be used.
        RunFailed: If Ray does not start.
    """
    (folder / POINTS).mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE, "a sweep")
    state = _SweepState(plan, folder, plan.count)
    options = TaskOptions(workers, **plan.spec.task.model_dump())
    try:
        with ExitStack() as pool:
            for variants in _iterate_batches(state):
                state.add_variants(variants)
                points = list_points(variants, plan.spec.seeds)
                waiting = [point for point in points if not _use_finished(state, point, report)]
                write_summary(folder, state.summarise())
                if waiting:
                    pool.enter_context(open_pool(options, len(points)))
                _run_points(state, waiting, options, report)
        state.planned = len(state.results) * len(plan.spec.seeds)
        summary = state.summarise()
        write_summary(folder, summary)
        return summary
    finally:
        lock.release()


def _iterate_batches(state: _SweepState) -> Iterator[tuple[ExperimentVariant, ...]]:
    """Yield the variants, of a sampler batch by batch: the next one is asked for when all points before have ended."""
    if state.plan.spec.sampler is None:
        yield state.plan.variants
    else:
        yield from propose_variants(state.plan, state.score)


def _use_finished(state: _SweepState, point: ExperimentPoint, report: Callable[[str], None]) -> bool:
    folder = find_point(state.folder, point)
    if folder is None:
        return False
    state.add_point(point, folder)
    report(str(point))
    return True


def _run_points(
    state: _SweepState, points: Sequence[ExperimentPoint], options: TaskOptions, report: Callable[[str], None]
) -> None:
    with closing(run_tasks(run_point, points, options)) as outcomes:
        for outcome in outcomes:
            point = points[outcome.place]
            if outcome.result is None:
                state.find_results(point).failed[point.seed] = str(outcome.error)
            else:
                state.add_point(point, commit_point(state.folder, point, outcome.result))
            write_summary(state.folder, state.summarise())
            report(f"{point}{' failed' * (outcome.result is None)}")


DIGITS = 4
"""Digits of a number that is drawn from a range."""
Score = Callable[[ExperimentVariant], float | None]
"""Returns the figure to optimise of a variant that has run; None if it has none."""


def check_optuna(plan: SweepPlan) -> None:
    """Raise ``BadInput`` if the sweep needs Optuna and it is not installed."""
    if plan.spec.sampler is None:
        return
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"{plan.path}: sampler.kind", f"'optuna', which is not installed ({error})", build_install_command("optuna")
        ) from error


def propose_variants(plan: SweepPlan, score: Score) -> Iterator[tuple[ExperimentVariant, ...]]:
    """Yield batches of variants; ``score`` is asked for those of a batch when the next one is wanted."""
    import optuna

    sampler = plan.spec.sampler
    assert sampler is not None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = optuna.create_study(
        sampler=_build_sampler(sampler), direction="minimize" if sampler.minimise is not None else "maximize"
    )
    space = {key: _build_distribution(values) for key, values in sampler.space.items()}
    left = sampler.trials
    while left:
        trials = [search.ask(space) for _ in range(min(sampler.batch, left))]
        left -= len(trials)
        variants = tuple(build_variant(plan.path, plan.spec, _read_values(sampler, one.params)) for one in trials)
        yield variants
        for trial, variant in zip(trials, variants, strict=True):
            value = score(variant)
            search.tell(trial, value, state=optuna.trial.TrialState.FAIL if value is None else None)


def _build_sampler(sampler: SamplerSpec) -> optuna.samplers.BaseSampler:
    import optuna

    if sampler.algorithm == "random":
        return optuna.samplers.RandomSampler(seed=sampler.seed)
    # Trials of one batch know nothing of each other's results: the constant liar keeps them apart.
    return optuna.samplers.TPESampler(seed=sampler.seed, constant_liar=True)


def _build_distribution(values: DimensionSpec) -> optuna.distributions.BaseDistribution:
    import optuna

    if values.choices is not None:
        return optuna.distributions.CategoricalDistribution(range(len(values.choices)))
    low, high = values.low or 0.0, values.high or 0.0
    if values.step is not None and all(one.is_integer() for one in (low, high, values.step)):
        return optuna.distributions.IntDistribution(int(low), int(high), step=int(values.step))
    return optuna.distributions.FloatDistribution(low, high, log=values.log, step=values.step)


def _read_values(sampler: SamplerSpec, drawn: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a trial; choices are drawn by their places, because Optuna accepts only simple ones."""
    return {key: _read_value(values, drawn[key]) for key, values in sampler.space.items()}


def _read_value(values: DimensionSpec, drawn: Any) -> Any:
    if values.choices is not None:
        return values.choices[drawn]
    if isinstance(drawn, float) and values.step is None:
        short = float(f"{drawn:.{DIGITS}g}")  # more would only make the variants' names long
        return min(max(short, values.low or 0.0), values.high or 0.0)
    return drawn
