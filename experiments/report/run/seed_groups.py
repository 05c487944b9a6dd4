"""Groups of runs that differ only in the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from experiments.report.confidence_intervals import ConfidenceInterval, mean_interval, paired_interval
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_names import experiment_key

RunFigure = Callable[[LoadedRun], float | None]


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Runs of one experiment with several seeds; if a seed was run twice, the first run counts."""

    name: str
    by_seed: Mapping[int, LoadedRun]

    @property
    def runs(self) -> tuple[LoadedRun, ...]:
        """Return the runs that count."""
        return tuple(self.by_seed.values())

    @property
    def colour(self) -> str:
        """Return the colour of the group's first run, which stands for it."""
        return self.runs[0].colour

    def mean_interval(self, figure: RunFigure) -> ConfidenceInterval | None:
        """Return the mean of a figure over the seeds with its confidence interval, or None if unknown."""
        return mean_interval([figure(run) for run in self.runs])

    def paired_difference(self, other: SeedGroup, figure: RunFigure) -> ConfidenceInterval | None:
        """Return the mean of the figure's paired difference to ``other`` over common seeds."""
        ours, theirs = ({seed: figure(run) for seed, run in one.by_seed.items()} for one in (self, other))
        return paired_interval(ours, theirs)


def group_by_experiment(runs: Sequence[LoadedRun]) -> tuple[SeedGroup, ...]:
    """Group the runs that differ only in the seed, in the order of their first runs."""
    groups: dict[str, dict[int, LoadedRun]] = {}
    for run in runs:
        groups.setdefault(experiment_key(run.experiment), {}).setdefault(run.experiment.seed, run)
    return tuple(SeedGroup(next(iter(by_seed.values())).group_name, by_seed) for by_seed in groups.values())


def list_repeated_runs(runs: Sequence[LoadedRun], groups: Sequence[SeedGroup]) -> tuple[LoadedRun, ...]:
    """Return the runs that no group contains, because an earlier one has the same experiment and seed."""
    counted = {id(run) for group in groups for run in group.runs}
    return tuple(run for run in runs if id(run) not in counted)


def has_several_seeds(groups: Sequence[SeedGroup]) -> bool:
    """Return whether any group has more than one seed."""
    return any(len(group.by_seed) > 1 for group in groups)
