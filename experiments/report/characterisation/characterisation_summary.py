"""All results of a sweep, computed once for page and JSON, with repeats pooled into settings.

A setting's reference is the usual value of each of its board's knobs: that of the plan's base if present, else the most
frequent one among the board's settings, of equally frequent numbers the largest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedge.characterisation.findings import SweepFinding
from fedge.characterisation.knob_effects import KnobEffect, compute_effects_from_first, compute_pooled_effects
from fedge.characterisation.point_measurement import PointMeasurement
from fedge.characterisation.point_statistics import PointStats, PooledSetting, compute_point_stats, pool_repeats
from fedge.characterisation.sweep_findings import (
    Variability,
    add_repeat_notes,
    compute_pooled_findings,
    compute_variability,
)
from fedge.characterisation.sweep_plan import KNOBS, MODE_KNOBS, SweepPoint, get_knob_value, kind_of_board
from fedge.characterisation.sweep_store import SweepResult
from fedge.characterisation.tuning_advice import TuningAdvice, compute_pooled_advice
from fedge.confidence_interval import Estimate
from fedge.errors import BadInput
from fedge.groups import group_by
from fedge.json_reader import to_json_value
from fedge.types import PowerMode


def collect_knobs(point: SweepPoint) -> dict[str, Any]:
    """Return every knob but the repeat by name, with the power mode as its four parts."""
    return {name: get_knob_value(point, name) for name in ("board", *KNOBS[1:3], *MODE_KNOBS, *KNOBS[3:])}


def find_preset_name(board: str, mode: PowerMode | None) -> str | None:
    """Return the first name of a board's preset that equals a mode up to rounding of its clocks; None without one."""
    from fedge.devices.catalogue import find

    try:
        presets = find(kind_of_board(board)).presets if mode is not None else {}
    except BadInput:  # a board that is not in the catalogue
        return None
    for name, one in presets.items():
        if all(math.isclose(getattr(one, part), getattr(mode, part), rel_tol=1e-6) for part in MODE_KNOBS):
            return name
    return None


@dataclass(frozen=True, slots=True)
class SettingSummary:
    """A setting with its statistics over all repeats and those of each repeat (at least one)."""

    stats: PointStats
    repeats: tuple[PointStats, ...]
    reference: Mapping[str, Any]
    """The usual value of every knob, by the names of ``collect_knobs``."""

    @property
    def point(self) -> SweepPoint:
        """The first repeat."""
        return self.stats.point

    @property
    def key(self) -> str:
        """Key of the first repeat."""
        return self.stats.point.key

    @property
    def distance(self) -> int:
        """Number of knobs that differ from the reference."""
        return sum(value != self.reference[name] for name, value in collect_knobs(self.point).items())

    @property
    def stall_share(self) -> float:
        """The stall's share of an epoch; NaN if the epoch took no time."""
        return self.stats.stall_s.value / self.stats.e2e_s.value if self.stats.e2e_s.value > 0 else math.nan

    def get_mean(self, field: str) -> float | None:
        """Return the value of an estimate by its field, such as ``e2e_s``, or None if not metered."""
        estimate: Estimate | None = getattr(self.stats, field)
        return None if estimate is None else estimate.value


def summarise_settings(
    stats: Sequence[PointStats], base: Mapping[str, Any], points: Sequence[PooledSetting] | None = None
) -> tuple[SettingSummary, ...]:
    """Summarise settings in the order in which they first occur; ``points`` are the pooled ones if known already."""
    by_key = {one.key: one for one in stats}
    points = pool_repeats(stats) if points is None else points
    boards = {
        board: [collect_knobs(one.point) for one in own]
        for board, own in group_by(points, lambda one: one.point.board).items()
    }
    references = {
        board: {name: _most_common([knobs[name] for knobs in own], base.get(name)) for name in own[0]}
        for board, own in boards.items()
    }
    return tuple(
        SettingSummary(one.stats, tuple(by_key[key] for key in one.points), references[one.point.board])
        for one in points
    )


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
"""Relative difference of samples per epoch up to which epochs have the same size, since the last minibatch may be
incomplete."""
TOTAL_SUFFIXES = ("_s", "_j")
"""Suffixes of quantities that grow with an epoch; power does not."""


@dataclass(frozen=True, slots=True)
class FigureBasis:
    """Reference of the values on a chart: a whole epoch or, if epochs differ in size, ``BASIS_SAMPLES`` samples."""

    whole: bool

    @property
    def unit_name(self) -> str:
        """Name of the reference: "epoch" or "1,000 samples"."""
        return "epoch" if self.whole else f"{BASIS_SAMPLES:,.0f} samples"

    @property
    def title(self) -> str:
        """Follows "time of"."""
        return "an epoch" if self.whole else self.unit_name

    def get_estimate(self, setting: SettingSummary, field: str) -> Estimate | None:
        """Return an estimate of the setting on this basis, or None if not metered."""
        estimate: Estimate | None = getattr(setting.stats, field)
        if estimate is None or self.whole or not field.endswith(TOTAL_SUFFIXES):
            return estimate
        return estimate.scale(BASIS_SAMPLES / setting.stats.samples)

    def get_mean(self, setting: SettingSummary, field: str) -> float | None:
        """Return the value of an estimate without its interval."""
        estimate = self.get_estimate(setting, field)
        return None if estimate is None else estimate.value


def choose_basis(settings: Sequence[SettingSummary]) -> FigureBasis:
    """Choose whole epochs if those of each workload have about the same size; epochs cut by minibatches do not."""
    groups = group_by(settings, lambda one: one.point.workload)
    sizes = [[one.stats.samples for one in group] for group in groups.values()]
    return FigureBasis(whole=all(max(own) <= (1.0 + MAX_SIZE_DIFFERENCE) * min(own) for own in sizes))


def has_later_epochs(settings: Sequence[SettingSummary]) -> bool:
    """Return whether the statistics include more than the first epoch, or exclude it."""
    return any(one.stats.epochs != (0,) for one in settings)


MAX_UNSETTLED = 2
"""Maximum number of chosen points that are not steady; a default that leaves room for other points in a menu."""


def choose_settings(settings: Sequence[SettingSummary], most: int) -> list[tuple[SettingSummary, str]]:
    """Choose at most ``most`` settings for a menu, each with the reason in a word or two.

    All if there are few, else a typical one, the extremes, and evenly spaced ones, which have no reason.
    """
    chosen: dict[str, tuple[SettingSummary, str]] = {}
    spaced = settings[:: max(1, math.ceil(len(settings) / most))]
    for one, why in [*_list_notable(settings), *((one, "") for one in (*spaced, *settings))]:
        chosen.setdefault(one.key, (one, why))
    return list(chosen.values())[:most]


def _list_notable(settings: Sequence[SettingSummary]) -> Iterator[tuple[SettingSummary, str]]:
    yield from ((one, "typical") for one in sorted(settings, key=lambda one: one.distance)[:1])
    timed = [one for one in settings if one.stats.e2e_s.value > 0]
    if len(timed) > 1:
        yield max(timed, key=lambda one: one.stall_share), "most stall"
        yield min(timed, key=lambda one: one.stall_share), "least stall"
        yield max(timed, key=lambda one: one.stats.e2e_s.value), "longest epoch"
        yield min(timed, key=lambda one: one.stats.e2e_s.value), "shortest epoch"
        yield max(timed, key=lambda one: max(each.outliers for each in one.repeats)), "most outliers"
    unsettled = [one for one in settings if not all(each.settled for each in one.repeats)]
    yield from ((one, "not settled") for one in unsettled[:MAX_UNSETTLED])


@dataclass(frozen=True, slots=True, eq=False)
class CharacterisationSummary:
    """A sweep with all results; ``stats`` are in the order of ``result.points``."""

    result: SweepResult
    stats: tuple[PointStats, ...]
    settings: tuple[SettingSummary, ...]
    findings: tuple[SweepFinding, ...]
    advice: tuple[TuningAdvice, ...]
    effects: tuple[KnobEffect, ...]
    effects_from_first: tuple[KnobEffect, ...]
    """Effects of ordered knobs, from the first value to later ones."""
    variability: tuple[Variability, ...]

    @property
    def finished_by_key(self) -> Mapping[str, PointMeasurement]:
        """Finished points by key."""
        return {one.point.key: one for one in self.result.points}

    @property
    def has_power(self) -> bool:
        """Whether the power of any point was metered."""
        return any(one.energy_j is not None for one in self.stats)


def summarise_result(result: SweepResult) -> CharacterisationSummary:
    """Compute all results of a sweep, reading every point's minibatches once.

    Raises:
        BadInput: A point's file is missing or damaged.
    """
    stats = add_repeat_notes([compute_point_stats(one, result.plan.course) for one in result.points])
    points = pool_repeats(stats)
    effects, firsts = compute_pooled_effects(points), compute_effects_from_first(points)
    return CharacterisationSummary(
        result=result,
        stats=stats,
        settings=summarise_settings(stats, result.plan.base, points),
        findings=compute_pooled_findings(stats, points, effects, firsts),
        advice=compute_pooled_advice(points, result.plan),
        effects=effects,
        effects_from_first=firsts,
        variability=compute_variability(stats),
    )


def summary_to_json(summary: CharacterisationSummary) -> dict[str, Any]:
    """Convert the results to JSON-compatible data; numbers that are not finite become null."""
    result = summary.result
    labels = Counter((one.label, one.power_label, one.source) for one in result.points)
    data: dict[str, Any] = to_json_value(
        {
            "plan": result.plan.name,
            "points": {
                "finished": len(result.points),
                "skipped": len(result.skipped),
                "failed": len(result.failed),
                "planned": len(result.plan.points),
            },
            "findings": [asdict(one) for one in summary.findings],
            "advice": [_advice_to_json(one) for one in summary.advice],
            "effects": [_effect_to_json(one) for one in summary.effects],
            "effects_from_first": [_effect_to_json(one) for one in summary.effects_from_first],
            "variability": [_to_record(one, values=list(one.values)) for one in summary.variability],
            "labels": [
                {"time": time, "power": power, "source": source, "points": count}
                for (time, power, source), count in labels.items()
            ],
        }
    )
    return data


def _advice_to_json(one: TuningAdvice) -> dict[str, Any]:
    expected = {"expected": one.expected.value, "expected_low": one.expected.low, "expected_high": one.expected.high}
    return {**_to_record(one, present=one.present, **expected), "saving": one.saving}


def _effect_to_json(one: KnobEffect) -> dict[str, Any]:
    rest = _to_record(one, before_value=one.before_value, after_value=one.after_value)
    ratio = rest.pop("ratio")
    return {**rest, "ratio": ratio["value"], "ratio_low": ratio["low"], "ratio_high": ratio["high"]}


def _to_record(one: TuningAdvice | KnobEffect | Variability, **figures: Any) -> dict[str, Any]:
    """Return a record's fields, with ``figures``, some of them, at the end, named with the unit of its quantity."""
    unit = one.quantity.rpartition("_")[2]
    rest = {name: value for name, value in asdict(one).items() if name not in figures}
    return {**rest, **{f"{name}_{unit}": value for name, value in figures.items()}}
