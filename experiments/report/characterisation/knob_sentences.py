"""Sentences about a knob's effect: how a quantity changes along its values, and the stall's share at both ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.report.characterisation.setting_families import (
    NUMERIC_KNOBS,
    SAME_NAME,
    SettingFamily,
    format_axis_value,
)
from experiments.report.characterisation.setting_summary import FigureBasis, SettingSummary
from experiments.report.quantities import percent
from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.point_knobs import CLOCK_KNOBS, KNOB_TITLES, format_knob_value

MIN_CHANGE = 0.02
"""Relative change below which a change counts as none, as for findings."""
NEAR_ZERO = 0.005
"""Ratio below which nothing is left."""
OVERLAP_TEXT = " (intervals overlap)"
"""Added if the 95 % intervals overlap."""
MAX_DESCRIBED_FAMILIES = 6
"""Number of families that a sentence may describe: those that are drawn."""
MULTIPLE_FROM = 2.0
"""Ratio from which a rise is written as a multiple."""
KNOB_UNITS = {**dict.fromkeys(CLOCK_KNOBS, "MHz"), "batch_size": "samples", "prefetch": "batches ahead"}


def describe_change(title: str, families: Sequence[SettingFamily], field: str, basis: FigureBasis) -> str:
    """Describe how a quantity changes along the families' axis, as a sentence.

    Args:
        title: Name of the quantity.
        families: Families of one axis; all are described if it is numeric, else the one with the largest range.
        field: A field of ``PointStats``.
        basis: Whether values are per epoch or per number of samples.
    """
    knob = families[0].axis
    if knob in NUMERIC_KNOBS:
        change = _describe_numbers(families, field, basis)
    else:
        family = max(families, key=lambda one: _value_range([basis.get_mean(each, field) for each in one.settings]))
        change = _describe_categories(family, field, basis)
        change += _family_suffix(family, families) if change else ""
    return f"{title} {change or f'by {KNOB_TITLES[knob]}'}"


def _value_range(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return max(known) - min(known) if known else 0.0


def _family_suffix(family: SettingFamily, families: Sequence[SettingFamily]) -> str:
    return f" ({family.name})" if len(families) > 1 and family.name != SAME_NAME else ""


def _describe_numbers(families: Sequence[SettingFamily], field: str, basis: FigureBasis) -> str:
    """Describe the change from the lowest to the highest value on the axis."""
    both = [tuple(basis.get_estimate(family.settings[end], field) for end in (0, -1)) for family in families]
    ends = [(first, last) for first, last in both if first is not None and last is not None and first.value > 0]
    if not ends:
        return ""
    ratios = [last.value / first.value for first, last in ends]
    low, high = min(ratios), max(ratios)
    knob, values = families[0].axis, [value for family in families for value in family.values]
    span = " to ".join(format_knob_value(knob, end) for end in (min(values), max(values)))
    unchanged = max(abs(low - 1), abs(high - 1)) < MIN_CHANGE
    doubt = "" if unchanged or any(are_disjoint(*pair) for pair in ends) else OVERLAP_TEXT
    change = "changes by less than 2 %" if unchanged else _describe_ratios(low, high)
    return f"{change} from {span} {KNOB_UNITS.get(knob, KNOB_TITLES[knob])}{doubt}"


def are_disjoint(one: Estimate, other: Estimate) -> bool:
    """Return whether two intervals do not overlap; True if either is unbounded."""
    if not (one.is_bounded and other.is_bounded):
        return True
    return one.high < other.low or other.high < one.low


def _describe_ratios(low: float, high: float) -> str:
    """Describe a range of ratios, given the smallest and the largest."""
    if high < NEAR_ZERO:
        return "falls to nothing"
    if high < 1:
        return f"falls by {_format_range(percent(1 - high, 0), percent(1 - low, 0))}"
    if low >= MULTIPLE_FROM:
        return f"grows {_format_range(f'{low:.1f}', f'{high:.1f}')} times"
    if low > 1:
        return f"rises by {_format_range(percent(low - 1, 0), percent(high - 1, 0))}"
    return "changes by " + " to ".join(f"{'+' if end >= 1 else ''}{percent(end - 1, 0)}" for end in (low, high))


def _format_range(low: str, high: str) -> str:
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def _describe_categories(family: SettingFamily, field: str, basis: FigureBasis) -> str:
    known = [(value, one) for one in family.settings if (value := basis.get_estimate(one, field)) is not None]
    if len(known) < 2:
        return ""
    (least, first), *_, (most, last) = sorted(known, key=lambda pair: pair[0].value)
    lowest, highest = (_format_position(one, family.axis) for one in (first, last))
    if least.value <= 0:
        return f"is nothing with {lowest}, most with {highest}" if most.value > 0 else ""
    ratio = most.value / least.value
    if ratio < 1 + MIN_CHANGE:
        return f"is within {percent(MIN_CHANGE, 0)} whatever the {KNOB_TITLES[family.axis]}"
    more = f"{ratio:.1f} times as much" if ratio >= MULTIPLE_FROM else f"{percent(ratio - 1, 0)} more"
    doubt = "" if are_disjoint(least, most) else OVERLAP_TEXT
    return f"is least with {lowest}, {more} with {highest}{doubt}"


def _format_position(setting: SettingSummary, knob: str) -> str:
    """Format a value after "with": "sd"; switches and the cache with their names, such as "DVFS on"."""
    word = format_axis_value(setting, knob)
    return f"{KNOB_TITLES[knob]} {word}" if knob in {"pinned", "dvfs", "cache"} else word


def describe_stall(families: Sequence[SettingFamily]) -> str:
    """Describe the stall's share of an epoch at both ends of a numeric axis, else at its maximum and minimum.

    The families are of one axis, nearest to the reference first; the one with the largest range is described.
    """
    family = max(
        families[:MAX_DESCRIBED_FAMILIES], key=lambda one: _value_range([each.stall_share for each in one.settings])
    )
    known = [(share, one) for one in family.settings if math.isfinite(share := one.stall_share)]
    if not known:
        return f"Stall is unknown{_family_suffix(family, families)}"
    numeric = family.axis in NUMERIC_KNOBS
    ends = (max(known, key=lambda pair: pair[0]), min(known, key=lambda pair: pair[0]))
    (share, one), (other_share, other) = (known[0], known[-1]) if numeric else ends
    text = f"Stall is {percent(share, 0)} of an epoch"
    if not numeric and share - other_share < MIN_CHANGE:
        text += f" whatever the {KNOB_TITLES[family.axis]}"
    else:
        at = "at" if numeric else "with"
        text += f" {at} {_format_position(one, family.axis)}"
        text += f", {percent(other_share, 0)} {at} {_format_position(other, family.axis)}"
    return f"{text}{_family_suffix(family, families)}"
