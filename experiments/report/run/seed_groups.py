"""Groups of runs that differ only in the seed, named after the fields in which the groups differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.confidence_intervals import ConfidenceInterval, mean_interval, paired_interval
from experiments.report.run.loaded_runs import LoadedRun

MAX_NAME_FIELDS = 3
"""Largest number of fields in a group's name; beyond it, groups are numbered as well."""
RunFigure = Callable[[LoadedRun], float | None]


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Runs of one experiment with several seeds; if a seed was run twice, the first run counts.

    Attributes:
        name: Display name.
        by_seed: The run of each seed.
    """

    name: str
    by_seed: Mapping[int, LoadedRun]

    @property
    def runs(self) -> tuple[LoadedRun, ...]:
        return tuple(self.by_seed.values())

    def mean_interval(self, figure: RunFigure) -> ConfidenceInterval | None:
        """Return the mean of a figure over the seeds with its confidence interval, or None if unknown."""
        return mean_interval([figure(run) for run in self.runs])

    def paired_difference(self, other: SeedGroup, figure: RunFigure) -> ConfidenceInterval | None:
        """Return the mean of the figure's paired difference to ``other`` over common seeds."""
        ours, theirs = ({seed: figure(run) for seed, run in one.by_seed.items()} for one in (self, other))
        return paired_interval(ours, theirs)


def group_by_experiment(runs: Sequence[LoadedRun]) -> tuple[SeedGroup, ...]:
    """Group the runs that differ only in the seed, in the order of their first runs."""
    found: dict[str, dict[int, LoadedRun]] = {}
    for run in runs:
        key = run.experiment.model_copy(update={"seed": 0}).model_dump_json()
        found.setdefault(key, {}).setdefault(run.experiment.seed, run)
    names = _name_groups([next(iter(one.values())) for one in found.values()])
    return tuple(SeedGroup(name, one) for name, one in zip(names, found.values(), strict=True))


def list_repeated_runs(runs: Sequence[LoadedRun], groups: Sequence[SeedGroup]) -> tuple[LoadedRun, ...]:
    """Return the runs that no group contains, because an earlier one has the same experiment and seed."""
    counted = {id(run) for group in groups for run in group.runs}
    return tuple(run for run in runs if id(run) not in counted)


def _name_groups(firsts: Sequence[LoadedRun]) -> list[str]:
    if len(firsts) == 1:
        return [f"{firsts[0].experiment.name} ({firsts[0].experiment.policy.name})"]
    flat = [{key: str(value) for key, value in flatten_experiment(run) if key != "seed"} for run in firsts]
    keys = [key for key in dict.fromkeys(key for one in flat for key in one) if len({o.get(key) for o in flat}) > 1]
    names = [
        ", ".join(_describe_field(key, one[key]) for key in keys[:MAX_NAME_FIELDS] if key in one) or "the rest"
        for one in flat
    ]
    unique = len(set(names)) == len(names) and len(keys) <= MAX_NAME_FIELDS
    return names if unique else [f"{i}: {name}" for i, name in enumerate(names, 1)]


def _describe_field(key: str, value: str) -> str:
    """Describe a field: names stand for themselves, other values are preceded by their field."""
    return value if key == "name" or key.endswith(".name") else f"{key} {value}"


def flatten_experiment(run: LoadedRun) -> Iterator[tuple[str, Any]]:
    """Yield every field that is set in the run's experiment, by its path: ``policy.name``, ``fleet[0].count``."""
    return _flatten("", run.experiment.model_dump(mode="json"))


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _flatten(f"{prefix}[{i}]", inner)
    elif value is not None:
        yield prefix, value
