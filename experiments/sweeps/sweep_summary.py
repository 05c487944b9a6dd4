"""The summary of a sweep: every variant's figures over its seeds, and paired differences to the first variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from experiments.sweeps.point_plan import ExperimentVariant
from fedge.atomic_files import write_text
from fedge.confidence_interval import ConfidenceInterval, mean_interval, paired_interval
from fedge.errors import BadInput

SUMMARY_JSON = "sweep.json"


@dataclass(frozen=True, slots=True)
class VariantFigure:
    """A figure of a variant.

    Attributes:
        mean: Mean over the seeds with its 95 % interval; None if no run has the figure.
        difference: Paired difference to the first variant over common seeds; None for the first one.
    """

    mean: ConfidenceInterval | None
    difference: ConfidenceInterval | None


@dataclass(frozen=True, slots=True)
class VariantSummary:
    """A variant with its finished points.

    Attributes:
        points: Folders of the finished points by seed, relative to the sweep's.
        failed: Reasons of failed points by seed.
        figures: Figures by the name that they have in a run's summary.
    """

    label: str
    overrides: tuple[str, ...]
    points: dict[int, str]
    failed: dict[int, str]
    figures: dict[str, VariantFigure]


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """A sweep so far.

    Attributes:
        packages: Versions of fedge with which the finished points were run.
        best: The variant that a sampler's aim prefers; None without a sampler.
        metric: Name of the runs' figure of merit; ``metric`` if it differs between variants.
    """

    name: str
    planned: int
    packages: tuple[str, ...]
    best: str | None
    variants: tuple[VariantSummary, ...]
    metric: str = "accuracy"

    @property
    def finished_count(self) -> int:
        """Number of finished points."""
        return sum(len(variant.points) for variant in self.variants)

    @property
    def failures(self) -> dict[str, str]:
        """Reasons of failed points by the point's description."""
        return {
            f"{variant.label}, seed {seed}": reason
            for variant in self.variants
            for seed, reason in variant.failed.items()
        }


@dataclass(slots=True)
class VariantResults:
    """Results of one variant, filled while the sweep runs.

    Attributes:
        summaries: Summaries of finished runs by seed.
    """

    variant: ExperimentVariant
    points: dict[int, str] = field(default_factory=dict)
    summaries: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def list_values(self, figure: str) -> dict[int, float | None]:
        """Return a figure by seed, in the order of the seeds."""
        return {seed: self.summaries[seed].get(figure) for seed in sorted(self.summaries)}


def summarise_variants(results: Sequence[VariantResults], figures: Sequence[str]) -> tuple[VariantSummary, ...]:
    """Compute the figures of all variants; the first one is what the others are compared with."""
    summaries = []
    for one in results:
        values = {name: one.list_values(name) for name in figures}
        first = {} if one is results[0] else {name: results[0].list_values(name) for name in figures}
        found = {
            name: VariantFigure(
                mean_interval([*values[name].values()]),
                paired_interval(values[name], first[name]) if first else None,
            )
            for name in figures
        }
        points = {seed: one.points[seed] for seed in sorted(one.points)}
        label, overrides, failed = one.variant.label, one.variant.overrides, dict(one.failed)
        summaries.append(VariantSummary(label, overrides, points=points, failed=failed, figures=found))
    return tuple(summaries)


def write_summary(folder: Path, summary: SweepSummary) -> None:
    """Write the summary into the sweep's folder."""
    text = TypeAdapter(SweepSummary).dump_json(summary, indent=2).decode()
    write_text(folder / SUMMARY_JSON, text + "\n")


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is that of a sweep."""
    return (folder / SUMMARY_JSON).is_file()


def read_summary(folder: Path) -> SweepSummary:
    """Read the summary in a sweep's folder.

    Raises:
        BadInput: If it is damaged.
    """
    path = folder / SUMMARY_JSON
    try:
        return TypeAdapter(SweepSummary).validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise BadInput(str(path), "no summary of a sweep", "the file that `fedge sweep` wrote") from error


def list_point_folders(folder: Path, summary: SweepSummary) -> list[Path]:
    """Return the folders of all finished points, variant by variant."""
    return [folder / name for variant in summary.variants for name in variant.points.values()]
