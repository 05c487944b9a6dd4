"""Settings: points that differ in nothing but the repeat are one, with the mean and an interval of all its repeats.

A setting's reference is where its board's knobs are when a sweep does not turn them: where the plan's base has them,
else where most of the board's settings have them, of equals the largest number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.characterisation.knob_labels import collect_knobs
from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.pooled_settings import PooledSetting, pool_repeats
from fedge.characterisation.sweep_plan import SweepPoint


@dataclass(frozen=True, slots=True)
class SettingSummary:
    """A point whatever its repeat, its figures over all repeats, and what was found in each of them (at least one)."""

    stats: PointStats
    repeats: tuple[PointStats, ...]
    reference: Mapping[str, Any]
    """Of every knob, by the names of ``collect_knobs``."""

    @property
    def point(self) -> SweepPoint:
        """The first repeat's."""
        return self.stats.point

    @property
    def key(self) -> str:
        """Of the first repeat."""
        return self.stats.point.key

    @property
    def distance(self) -> int:
        """How many knobs are not at the reference."""
        return sum(value != self.reference[name] for name, value in collect_knobs(self.point).items())

    def get_estimate(self, field: str) -> Estimate | None:
        """Of ``e2e_s``, ``stall_s``, ...; None where nobody metered it."""
        found: Estimate | None = getattr(self.stats, field)
        return found

    def get_mean(self, field: str) -> float | None:
        """The mean alone."""
        found = self.get_estimate(field)
        return None if found is None else found.value


def summarise_settings(
    stats: Sequence[PointStats], base: Mapping[str, Any], points: Sequence[PooledSetting] | None = None
) -> tuple[SettingSummary, ...]:
    """In the order in which they were first seen; ``base`` is the plan's, ``points`` what ``pool_repeats`` makes of
    them.
    """
    by_key = {one.key: one for one in stats}
    points = pool_repeats(stats) if points is None else points
    boards: dict[str, list[SweepPoint]] = {}
    for one in points:
        boards.setdefault(one.point.board, []).append(one.point)
    references = {board: _find_reference(own, base) for board, own in boards.items()}
    return tuple(
        SettingSummary(one.stats, tuple(by_key[key] for key in one.points), references[one.point.board])
        for one in points
    )


def _find_reference(points: Sequence[SweepPoint], base: Mapping[str, Any]) -> Mapping[str, Any]:
    knobs = [collect_knobs(point) for point in points]
    return {name: _most_common([one[name] for one in knobs], base.get(name)) for name in knobs[0]}


def _most_common(values: Sequence[Any], base: Any) -> Any:
    if base is not None and base in values:
        return base
    counts = Counter(values)
    most = max(counts.values())
    equals = [value for value, count in counts.items() if count == most]
    numbers = [value for value in equals if isinstance(value, int | float)]
    return max(numbers) if len(numbers) == len(equals) else equals[0]


BASIS_SAMPLES = 1000.0
MAX_SIZE_DIFFERENCE = 0.05
"""Epochs whose numbers of samples differ by less (relative) are of one size: the last minibatch may not be full."""
TOTAL_SUFFIXES = ("_s", "_j")
"""Ends of the names of what grows with an epoch; watts do not."""


@dataclass(frozen=True, slots=True)
class FigureBasis:
    """``words`` are for titles and axes; ``whole`` says whether figures are an epoch's own."""

    whole: bool

    @property
    def unit_name(self) -> str:
        return "epoch" if self.whole else f"{BASIS_SAMPLES:,.0f} samples"

    @property
    def title(self) -> str:
        """After "time of"."""
        return "an epoch" if self.whole else self.unit_name

    def get_estimate(self, setting: SettingSummary, field: str) -> Estimate | None:
        """A figure of the setting on this basis; None where nobody metered it."""
        found = setting.get_estimate(field)
        if found is None or self.whole or not field.endswith(TOTAL_SUFFIXES):
            return found
        return found.scale(BASIS_SAMPLES / setting.stats.samples)

    def get_mean(self, setting: SettingSummary, field: str) -> float | None:
        """The mean alone."""
        found = self.get_estimate(setting, field)
        return None if found is None else found.value


def choose_basis(settings: Sequence[SettingSummary]) -> FigureBasis:
    """The epoch where a workload's are of about one size; not where they were cut after so many minibatches."""
    sizes: dict[str, list[float]] = {}
    for one in settings:
        sizes.setdefault(one.point.workload, []).append(one.stats.samples)
    return FigureBasis(whole=all(max(own) <= (1.0 + MAX_SIZE_DIFFERENCE) * min(own) for own in sizes.values()))


def has_later_epochs(settings: Sequence[SettingSummary]) -> bool:
    """Whether there is more to the figures of an epoch than the first one, or they leave it out."""
    return any(one.stats.epochs != (0,) for one in settings)


MAX_UNSETTLED = 2
"""Points that did not settle, of those that are chosen; chosen by us."""


def choose_settings(settings: Sequence[SettingSummary], most: int) -> list[tuple[SettingSummary, str]]:
    """All of them where there are few; else what is typical, the extremes, and then evenly spaced ones.

    Each with why it is here, in a word or two; empty where it is one of many.
    """
    found: dict[str, tuple[SettingSummary, str]] = {}
    for one, why in _list_notable(settings):
        found.setdefault(one.key, (one, why))
    step = max(1, len(settings) // most)
    for one in [*settings[::step], *settings]:
        found.setdefault(one.key, (one, ""))
    return list(found.values())[:most]


def _list_notable(settings: Sequence[SettingSummary]) -> Iterator[tuple[SettingSummary, str]]:
    if not settings:
        return
    yield min(settings, key=lambda one: one.distance), "typical"
    stalled = [one for one in settings if (one.get_mean("e2e_s") or 0.0) > 0]
    if len(stalled) > 1:
        yield (
            max(stalled, key=lambda one: (one.get_mean("stall_s") or 0.0) / (one.get_mean("e2e_s") or 1.0)),
            "most stall",
        )
        yield (
            min(stalled, key=lambda one: (one.get_mean("stall_s") or 0.0) / (one.get_mean("e2e_s") or 1.0)),
            "least stall",
        )
        yield max(stalled, key=lambda one: one.get_mean("e2e_s") or 0.0), "longest epoch"
        yield min(stalled, key=lambda one: one.get_mean("e2e_s") or 0.0), "shortest epoch"
        yield max(stalled, key=lambda one: max(each.outliers for each in one.repeats)), "most outliers"
    restless = [one for one in settings if not all(each.settled for each in one.repeats)]
    yield from ((one, "not settled") for one in restless[:MAX_UNSETTLED])
