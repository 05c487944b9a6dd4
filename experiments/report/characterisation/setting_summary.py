"""Settings on the page: the repeats of a point as one, with their mean and interval, and their distance to a reference.

A setting's reference is the usual value of each of its board's knobs: that of the plan's base if present, else the most
frequent one among the board's settings, of equally frequent numbers the largest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.point_knobs import MODE_KNOBS, get_knob_value, kind_of_board
from fedge.characterisation.point_statistics import PointStats, PooledSetting, pool_repeats
from fedge.characterisation.sweep_plan import KNOBS, SweepPoint
from fedge.errors import BadInput
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
    return next((name for name, one in presets.items() if _is_same_mode(one, mode)), None)


def _is_same_mode(first: PowerMode, second: PowerMode | None) -> bool:
    return all(math.isclose(getattr(first, part), getattr(second, part), rel_tol=1e-6) for part in MODE_KNOBS)


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

    def get_estimate(self, field: str) -> Estimate | None:
        """Return an estimate by the name of its field, such as ``e2e_s``, or None if not metered."""
        estimate: Estimate | None = getattr(self.stats, field)
        return estimate

    def get_mean(self, field: str) -> float | None:
        """Return the value of an estimate without its interval."""
        estimate = self.get_estimate(field)
        return None if estimate is None else estimate.value


def summarise_settings(
    stats: Sequence[PointStats], base: Mapping[str, Any], points: Sequence[PooledSetting] | None = None
) -> tuple[SettingSummary, ...]:
    """Summarise settings in the order in which they first occur.

    ``base`` is the plan's, a value per knob; ``points`` is the result of ``pool_repeats``, if known already.
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
        estimate = setting.get_estimate(field)
        if estimate is None or self.whole or not field.endswith(TOTAL_SUFFIXES):
            return estimate
        return estimate.scale(BASIS_SAMPLES / setting.stats.samples)

    def get_mean(self, setting: SettingSummary, field: str) -> float | None:
        """Return the value of an estimate without its interval."""
        estimate = self.get_estimate(setting, field)
        return None if estimate is None else estimate.value


def choose_basis(settings: Sequence[SettingSummary]) -> FigureBasis:
    """Choose whole epochs if those of each workload have about the same size; epochs cut by minibatches do not."""
    sizes: dict[str, list[float]] = {}
    for one in settings:
        sizes.setdefault(one.point.workload, []).append(one.stats.samples)
    return FigureBasis(whole=all(max(own) <= (1.0 + MAX_SIZE_DIFFERENCE) * min(own) for own in sizes.values()))


def has_later_epochs(settings: Sequence[SettingSummary]) -> bool:
    """Return whether the statistics include more than the first epoch, or exclude it."""
    return any(one.stats.epochs != (0,) for one in settings)


MAX_UNSETTLED = 2
"""Maximum number of chosen points that are not steady; a default that leaves room for other points in a menu."""


def choose_settings(settings: Sequence[SettingSummary], most: int) -> list[tuple[SettingSummary, str]]:
    """Choose at most ``most`` settings for a menu.

    All if there are few, else a typical one, the extremes, and evenly spaced ones.

    Returns:
        Settings with the reason in a word or two; empty for those chosen by spacing.
    """
    chosen: dict[str, tuple[SettingSummary, str]] = {}
    spaced = settings[:: max(1, len(settings) // most)]
    for one, why in [*_list_notable(settings), *((one, "") for one in (*spaced, *settings))]:
        chosen.setdefault(one.key, (one, why))
    return list(chosen.values())[:most]


def _list_notable(settings: Sequence[SettingSummary]) -> Iterator[tuple[SettingSummary, str]]:
    if not settings:
        return
    yield min(settings, key=lambda one: one.distance), "typical"
    timed = [one for one in settings if one.stats.e2e_s.value > 0]
    if len(timed) > 1:
        yield max(timed, key=lambda one: one.stall_share), "most stall"
        yield min(timed, key=lambda one: one.stall_share), "least stall"
        yield max(timed, key=lambda one: one.stats.e2e_s.value), "longest epoch"
        yield min(timed, key=lambda one: one.stats.e2e_s.value), "shortest epoch"
        yield max(timed, key=lambda one: max(each.outliers for each in one.repeats)), "most outliers"
    unsettled = [one for one in settings if not all(each.settled for each in one.repeats)]
    yield from ((one, "not settled") for one in unsettled[:MAX_UNSETTLED])
