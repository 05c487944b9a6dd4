"""Titles that say what is seen: how much a quantity changes along a knob, where it is least, how much is stall."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.report.characterisation.basis import Basis
from experiments.report.characterisation.families import NUMERIC, SAME, Family, value_name
from experiments.report.characterisation.names import TITLES, value_word
from experiments.report.characterisation.settings import Setting
from experiments.report.quantities import percent
from fedge.characterisation.judging.estimate import Estimate

LITTLE = 0.02
"""A smaller change is not called one; chosen by us."""
NOTHING = 0.005
"""A ratio below which next to nothing is left."""
UNMOVED = "changes by less than 2 %"
DOUBT = " (intervals overlap)"
"""Where intervals overlap."""
NEAR = 6
"""Families that a title may speak of; chosen by us."""
FOLD = 2.0
"""From here on a rise is told as a multiple."""


def change(title: str, families: Sequence[Family], field: str, basis: Basis) -> str:
    """Of a quantity along the families' axis; of all families where it is a number, else where most is seen."""
    knob = families[0].axis
    if knob in NUMERIC:
        found = _numbers(families, field, basis)
        return f"{title} {found}" if found else f"{title} by {TITLES[knob]}"
    family = max(families, key=lambda one: _spread([basis.value(each, field) for each in one.settings]))
    found = _words(family, field, basis)
    return f"{title} {found}{_which(family, families)}" if found else f"{title} by {TITLES[knob]}"


def _spread(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return max(known) - min(known) if known else 0.0


def _which(family: Family, families: Sequence[Family]) -> str:
    return f" ({family.name})" if len(families) > 1 and family.name != SAME else ""


def _numbers(families: Sequence[Family], field: str, basis: Basis) -> str:
    """From the least to the greatest value on the axis."""
    both = [tuple(basis.amount(family.settings[end], field) for end in (0, -1)) for family in families]
    ends = [(first, last) for first, last in both if first is not None and last is not None and first.value > 0]
    if not ends:
        return ""
    ratios = [last.value / first.value for first, last in ends]
    values = [value for family in families for value in family.values]
    knob = families[0].axis
    over = f"from {value_word(knob, min(values))} to {value_word(knob, max(values))} {_unit(knob)}"
    moved = _moved(min(ratios), max(ratios))
    doubt = "" if moved == UNMOVED or any(apart(*pair) for pair in ends) else DOUBT
    return f"{moved} {over}{doubt}"


def apart(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals have nothing in common; where nothing is known of the scatter nothing speaks against it."""
    if not (one.bounded and other.bounded):
        return True
    return one.high < other.low or other.high < one.low


def _unit(knob: str) -> str:
    if knob in {"cpu_mhz", "gpu_mhz", "mem_mhz"}:
        return "MHz"
    return {"batch_size": "samples", "prefetch": "batches ahead"}.get(knob, TITLES[knob])


def _moved(low: float, high: float) -> str:
    """In words, of the least and the greatest ratio."""
    if max(abs(low - 1), abs(high - 1)) < LITTLE:
        return UNMOVED
    if high < NOTHING:
        return "falls to nothing"
    if high < 1:
        return f"falls by {_range(percent(1 - high, 0), percent(1 - low, 0))}"
    if low >= FOLD:
        return f"grows {_range(f'{low:.1f}', f'{high:.1f}')} times"
    if low > 1:
        return f"rises by {_range(percent(low - 1, 0), percent(high - 1, 0))}"
    return f"changes by {_signed(low)} to {_signed(high)}"


def _signed(ratio: float) -> str:
    return f"{'+' if ratio >= 1 else ''}{percent(ratio - 1, 0)}"


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def _words(family: Family, field: str, basis: Basis) -> str:
    known = [(value, one) for one in family.settings if (value := basis.amount(one, field)) is not None]
    if len(known) < 2:
        return ""
    by_value = sorted(known, key=lambda pair: pair[0].value)
    (least, first), (most, last) = by_value[0], by_value[-1]
    knob = family.axis
    if least.value <= 0:
        return f"is nothing with {_at(first, knob)}, most with {_at(last, knob)}" if most.value > 0 else ""
    more = most.value / least.value
    if more < 1 + LITTLE:
        return f"is within {percent(LITTLE, 0)} whatever the {TITLES[knob]}"
    told = f"{more:.1f} times as much" if more >= FOLD else f"{percent(more - 1, 0)} more"
    doubt = "" if apart(least, most) else DOUBT
    return f"is least with {_at(first, knob)}, {told} with {_at(last, knob)}{doubt}"


def _at(setting: Setting, knob: str) -> str:
    """``4 loader workers`` without its unit where the knob stands beside it; ``cache dropped``, ``DVFS on``."""
    word = value_name(setting, knob)
    return f"{TITLES[knob]} {word}" if knob in {"pinned", "dvfs", "cache"} else word


def stalls(families: Sequence[Family]) -> str:
    """How much of an epoch is stall, at both ends of a number's axis, else where it is most and least.

    Of the near families that in which it differs most.
    """
    family = max(families[:NEAR], key=lambda one: _spread([_share(each) for each in one.settings]))
    return f"{_stalls(family)}{_which(family, families)}"


def _stalls(family: Family) -> str:
    shares = [(_share(one), one) for one in family.settings]
    known = [(share, one) for share, one in shares if math.isfinite(share)]
    title = TITLES[family.axis].capitalize() if family.axis != "dvfs" else "DVFS"
    title = {"cpu_mhz": "CPU clock", "gpu_mhz": "GPU clock", "cores": "CPU cores"}.get(family.axis, title)
    if not known:
        return title
    first, last = known[0], known[-1]
    if family.axis not in NUMERIC:
        first, last = max(known, key=lambda pair: pair[0]), min(known, key=lambda pair: pair[0])
        if first[0] - last[0] < LITTLE:
            return f"{title}: stall is {percent(first[0], 0)} of an epoch with any"
    word = "at" if family.axis in NUMERIC else "with"
    ends = [f"{percent(share, 0)}{{}} {word} {value_name(one, family.axis)}" for share, one in (first, last)]
    return f"{title}: stall is {ends[0].format(' of an epoch')}, {ends[1].format('')}"


def _share(setting: Setting) -> float:
    whole = setting.value("e2e_s") or 0.0
    return (setting.value("stall_s") or 0.0) / whole if whole > 0 else math.nan
