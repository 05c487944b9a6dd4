"""Charts of time and energy against each knob, with titles that state the change, the minimum, or the stall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from experiments.report.characterisation.chart_elements import LINE_COLOURS, format_with_interval, make_error_bars
from experiments.report.characterisation.knob_labels import (
    KNOB_TITLES,
    format_knob_value,
    format_setting,
    get_axis_title,
)
from experiments.report.characterisation.setting_families import (
    NUMERIC_KNOBS,
    SAME_NAME,
    SettingFamily,
    build_families,
    describe_fixed_knobs,
    find_axes,
    format_axis_value,
    get_axis_value,
    split_by_scale,
)
from experiments.report.characterisation.setting_summary import (
    FigureBasis,
    SettingSummary,
    choose_basis,
    has_later_epochs,
)
from experiments.report.chart import Chart, Section, Trace, axis
from experiments.report.palette import GREY, SYMBOLS
from experiments.report.quantities import UnitScale, energy_scale, percent, time_scale
from fedge.characterisation.confidence_interval import Estimate

MIN_CHANGE = 0.02
"""Relative change below which a title says "unchanged", as for findings."""
NEAR_ZERO = 0.005
"""Ratio below which a title says that nothing is left."""
UNCHANGED_TEXT = "changes by less than 2 %"
OVERLAP_TEXT = " (intervals overlap)"
"""Added if the 95 % intervals overlap."""
MAX_TITLE_FAMILIES = 6
"""Number of families that a title may describe: those that are drawn."""
MULTIPLE_FROM = 2.0
"""Ratio from which a rise is written as a multiple."""


def describe_change(title: str, families: Sequence[SettingFamily], field: str, basis: FigureBasis) -> str:
    """Describe how a quantity changes along the families' axis, for a chart's title.

    Args:
        title: Name of the quantity.
        families: Families of one axis; all are described if it is numeric, else the one with the largest range.
        field: A field of ``PointStats``.
        basis: Whether values are per epoch or per number of samples.
    """
    knob = families[0].axis
    if knob in NUMERIC_KNOBS:
        found = _describe_numbers(families, field, basis)
        return f"{title} {found}" if found else f"{title} by {KNOB_TITLES[knob]}"
    family = max(families, key=lambda one: _value_range([basis.get_mean(each, field) for each in one.settings]))
    found = _describe_categories(family, field, basis)
    return f"{title} {found}{_family_suffix(family, families)}" if found else f"{title} by {KNOB_TITLES[knob]}"


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
    values = [value for family in families for value in family.values]
    knob = families[0].axis
    over = f"from {format_knob_value(knob, min(values))} to {format_knob_value(knob, max(values))} {_knob_unit(knob)}"
    moved = _describe_ratios(min(ratios), max(ratios))
    doubt = "" if moved == UNCHANGED_TEXT or any(are_disjoint(*pair) for pair in ends) else OVERLAP_TEXT
    return f"{moved} {over}{doubt}"


def are_disjoint(one: Estimate, other: Estimate) -> bool:
    """Return whether two intervals do not overlap; True if either is unbounded."""
    if not (one.is_bounded and other.is_bounded):
        return True
    return one.high < other.low or other.high < one.low


def _knob_unit(knob: str) -> str:
    if knob in {"cpu_mhz", "gpu_mhz", "mem_mhz"}:
        return "MHz"
    return {"batch_size": "samples", "prefetch": "batches ahead"}.get(knob, KNOB_TITLES[knob])


def _describe_ratios(low: float, high: float) -> str:
    """Describe a range of ratios, given the smallest and the largest."""
    if max(abs(low - 1), abs(high - 1)) < MIN_CHANGE:
        return UNCHANGED_TEXT
    if high < NEAR_ZERO:
        return "falls to nothing"
    if high < 1:
        return f"falls by {_format_range(percent(1 - high, 0), percent(1 - low, 0))}"
    if low >= MULTIPLE_FROM:
        return f"grows {_format_range(f'{low:.1f}', f'{high:.1f}')} times"
    if low > 1:
        return f"rises by {_format_range(percent(low - 1, 0), percent(high - 1, 0))}"
    return f"changes by {_format_signed(low)} to {_format_signed(high)}"


def _format_signed(ratio: float) -> str:
    return f"{'+' if ratio >= 1 else ''}{percent(ratio - 1, 0)}"


def _format_range(low: str, high: str) -> str:
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def _describe_categories(family: SettingFamily, field: str, basis: FigureBasis) -> str:
    known = [(value, one) for one in family.settings if (value := basis.get_estimate(one, field)) is not None]
    if len(known) < 2:
        return ""
    by_value = sorted(known, key=lambda pair: pair[0].value)
    (least, first), (most, last) = by_value[0], by_value[-1]
    knob = family.axis
    if least.value <= 0:
        return (
            f"is nothing with {_format_position(first, knob)}, most with {_format_position(last, knob)}"
            if most.value > 0
            else ""
        )
    more = most.value / least.value
    if more < 1 + MIN_CHANGE:
        return f"is within {percent(MIN_CHANGE, 0)} whatever the {KNOB_TITLES[knob]}"
    told = f"{more:.1f} times as much" if more >= MULTIPLE_FROM else f"{percent(more - 1, 0)} more"
    doubt = "" if are_disjoint(least, most) else OVERLAP_TEXT
    return f"is least with {_format_position(first, knob)}, {told} with {_format_position(last, knob)}{doubt}"


def _format_position(setting: SettingSummary, knob: str) -> str:
    """Format a value for a title: "4 loader workers" without its unit; "cache dropped", "DVFS on"."""
    word = format_axis_value(setting, knob)
    return f"{KNOB_TITLES[knob]} {word}" if knob in {"pinned", "dvfs", "cache"} else word


def describe_stall(families: Sequence[SettingFamily]) -> str:
    """Describe the stall's share of an epoch at both ends of a numeric axis, else at its maximum and minimum.

    Args:
        families: Families of one axis, nearest to the reference first; the one with the largest range is described.
    """
    family = max(
        families[:MAX_TITLE_FAMILIES], key=lambda one: _value_range([_stall_share(each) for each in one.settings])
    )
    return f"{_describe_family_stall(family)}{_family_suffix(family, families)}"


def _describe_family_stall(family: SettingFamily) -> str:
    shares = [(_stall_share(one), one) for one in family.settings]
    known = [(share, one) for share, one in shares if math.isfinite(share)]
    title = KNOB_TITLES[family.axis].capitalize() if family.axis != "dvfs" else "DVFS"
    title = {"cpu_mhz": "CPU clock", "gpu_mhz": "GPU clock", "cores": "CPU cores"}.get(family.axis, title)
    if not known:
        return title
    first, last = known[0], known[-1]
    if family.axis not in NUMERIC_KNOBS:
        first, last = max(known, key=lambda pair: pair[0]), min(known, key=lambda pair: pair[0])
        if first[0] - last[0] < MIN_CHANGE:
            return f"{title}: stall is {percent(first[0], 0)} of an epoch with any"
    word = "at" if family.axis in NUMERIC_KNOBS else "with"
    ends = [f"{percent(share, 0)}{{}} {word} {format_axis_value(one, family.axis)}" for share, one in (first, last)]
    return f"{title}: stall is {ends[0].format(' of an epoch')}, {ends[1].format('')}"


def _stall_share(setting: SettingSummary) -> float:
    whole = setting.get_mean("e2e_s") or 0.0
    return (setting.get_mean("stall_s") or 0.0) / whole if whole > 0 else math.nan


MAX_FAMILIES = 6
"""Lines per chart, as many as there are colours."""
MAX_UPRIGHT_NAME = 9
"""Length of a value's name above which bars are horizontal."""
HEIGHT_PX = 270


@dataclass(frozen=True, slots=True)
class ChartQuantity:
    """A quantity that is drawn against a knob.

    Attributes:
        field: A field of ``PointStats``.
        title: Name of the quantity in titles.
        unit: SI unit.
    """

    field: str
    title: str
    """Followed by "of an epoch"."""
    unit: str

    def full_title(self, basis: FigureBasis) -> str:
        """Return the title including what the quantity refers to."""
        if self is POWER:
            return self.title
        if self in FIRST_EPOCH:
            return f"{self.title} epoch" if basis.whole else f"{self.title} epoch, per {basis.unit_name},"
        return f"{self.title} of {basis.title}"

    def axis_label(self, basis: FigureBasis, unit: str) -> str:
        """Return the label of the axis, with the given unit."""
        if self is POWER:
            return f"mean power ({unit})"
        of = f"per {basis.unit_name}"
        if self in FIRST_EPOCH:
            of = "epoch" if basis.whole else f"epoch {of}"
        return f"{self.title.lower()} {of} ({unit})"


TIME = ChartQuantity("e2e_s", "Time", "s")
STALL = ChartQuantity("stall_s", "Stall", "s")
ENERGY = ChartQuantity("energy_j", "Energy", "J")
POWER = ChartQuantity("power_w", "Power while it runs", "W")
FIRST_EPOCH = (
    ChartQuantity("first_e2e_s", "Time of the first", "s"),
    ChartQuantity("first_stall_s", "Stall of the first", "s"),
)
"""Of the first epoch, whose page cache may be empty: relevant for storage and cache."""


def build_knob_sections(settings: Sequence[SettingSummary], metered: bool) -> list[Section]:
    """Build one section per knob that the sweep varied.

    Args:
        settings: All settings.
        metered: Whether the power of any point was metered.
    """
    return [_build_knob_section(settings, knob, metered) for knob in find_axes(settings)]


def _build_knob_section(settings: Sequence[SettingSummary], knob: str, metered: bool) -> Section:
    every = build_families(settings, knob)
    apart = [alike[:MAX_FAMILIES] for alike in split_by_scale(every)]
    first = FIRST_EPOCH if knob in {"storage", "cache"} and has_later_epochs(settings) else ()
    watts = (ENERGY, *((POWER,) if len(apart) == 1 else ())) if metered else ()
    quantities = (*first, TIME, STALL, *watts)
    charts = []
    for place, drawn in enumerate(apart):
        basis = choose_basis([one for family in drawn for one in family.settings])
        some = _FamilyGroup(
            drawn, basis, str(place or ""), drawn[0].settings[0].point.workload if len(apart) > 1 else ""
        )
        charts += [chart for one in quantities if (chart := _build_chart(some, one)) is not None]
    shown = [family for drawn in apart for family in drawn]
    whose = "The first line's other" if len(every) > 1 else "The other"
    words = [f"With 95 % intervals. {whose} knobs: {escape(describe_fixed_knobs(shown[0], settings))}."]
    if len(shown) < len(every):
        words.append(f"{len(shown)} of {len(every):,} lines are drawn: those nearest to the plan's base.")
    if not metered:
        words.append("Nobody metered power, so there is no energy to draw.")
    title = f"{'Time and energy' if metered else 'Time'} against {KNOB_TITLES[knob]}"
    legends = "".join(_build_legend(drawn) for drawn in apart if len(drawn) > 1)
    return Section(title, " ".join(words) + legends, tuple(charts))


@dataclass(frozen=True, slots=True)
class _FamilyGroup:
    """Families that share their charts; ``mark`` distinguishes the charts' keys, ``workload`` is for their titles."""

    families: Sequence[SettingFamily]
    basis: FigureBasis
    mark: str
    workload: str


def _build_legend(families: Sequence[SettingFamily]) -> str:
    """Build one legend for all charts of a section, outside of the charts, so that it never covers a line."""
    shown = "".join(
        f'<span class="key"><i class="swatch" style="background:{LINE_COLOURS[i]}"></i>{escape(one.name)}</span>'
        for i, one in enumerate(families)
    )
    return f'<span class="keys">{shown}</span>'


def _build_chart(some: _FamilyGroup, quantity: ChartQuantity) -> Chart | None:
    """Build the chart of one quantity, or None if it is unknown for all settings."""
    families, basis, knob = some.families, some.basis, some.families[0].axis
    values = [basis.get_mean(one, quantity.field) for family in families for one in family.settings]
    if not any(value is not None for value in values):
        return None
    scale = _choose_scale(quantity, values)
    long = (
        knob not in NUMERIC_KNOBS
        and max(len(format_axis_value(one, knob)) for each in families for one in each.settings) > MAX_UPRIGHT_NAME
    )
    style = _KnobChartStyle(quantity, basis, scale, flat=long)
    data = [_make_family_trace(family, i, style) for i, family in enumerate(families)]
    amount = axis(quantity.axis_label(basis, scale.unit), rangemode="tozero")
    knobs = (
        _make_knob_axis(families, knob)
        if knob in NUMERIC_KNOBS
        else axis("" if long else get_axis_title(knob), type="category")
    )
    layout: dict[str, Any] = {
        "xaxis": amount if long else knobs,
        "yaxis": {**knobs, "autorange": "reversed"} if long else amount,
        "showlegend": False,
        "barmode": "group",
        "hovermode": "closest",
    }
    height = HEIGHT_PX if not long else max(HEIGHT_PX, 90 + 17 * len(values))
    said = describe_change(quantity.full_title(basis), families, quantity.field, basis)
    title = escape(f"{some.workload}: {said}" if some.workload else said)
    return Chart(
        f"{quantity.field}-{knob}{some.mark}", title=title, caption="", data=data, layout=layout, height_px=height
    )


def _choose_scale(quantity: ChartQuantity, values: Sequence[float | None]) -> UnitScale:
    if quantity is ENERGY:
        return energy_scale(values)
    return UnitScale("W", 1.0) if quantity is POWER else time_scale(values)


def _make_knob_axis(families: Sequence[SettingFamily], knob: str) -> dict[str, Any]:
    """Build a numeric axis with the values as ticks if there are few; logarithmic for batch sizes that double."""
    found = sorted({float(value) for family in families for value in family.values})
    log = knob == "batch_size" and found[0] > 0 and found[-1] > 8 * found[0]
    ticks = {"tickvals": found, "ticktext": [f"{one:g}" for one in found]} if len(found) <= 10 else {}
    return axis(get_axis_title(knob), **({"type": "log"} if log else {}), **ticks)


@dataclass(frozen=True, slots=True)
class _KnobChartStyle:
    """Style that all traces of a chart share; ``flat`` bars are horizontal, which leaves room for long names."""

    quantity: ChartQuantity
    basis: FigureBasis
    scale: UnitScale
    flat: bool


def _make_family_trace(family: SettingFamily, place: int, style: _KnobChartStyle) -> Trace:
    """Draw a family as a line over numbers, as bars over names."""
    colour = LINE_COLOURS[place % len(LINE_COLOURS)]
    amounts = [style.basis.get_estimate(one, style.quantity.field) for one in family.settings]
    heights = [None if one is None else one.value / style.scale.per for one in amounts]
    common: Trace = {
        "name": escape(family.name),
        "hovertext": [
            f"<b>{format_with_interval(amount, style.quantity.unit)}</b><br>{escape(format_setting(one.point))}"
            for one, amount in zip(family.settings, amounts, strict=True)
        ],
        "hoverinfo": "text",
        "customdata": [one.key for one in family.settings],
    }
    if family.axis in NUMERIC_KNOBS:
        line = {"color": colour, "width": 2}
        marker = {"color": colour, "size": 8, "symbol": SYMBOLS[place % len(SYMBOLS)]}
        bars = make_error_bars(amounts, style.scale.per, colour)
        x = [float(get_axis_value(one, family.axis)) for one in family.settings]
        drawn = {"mode": "lines+markers", "x": x, "y": heights, "error_y": bars, "line": line, "marker": marker}
        return {"type": "scatter", **drawn, **common}
    names = [escape(format_axis_value(one, family.axis)) for one in family.settings]
    bars = make_error_bars(amounts, style.scale.per, GREY)
    lying = {"orientation": "h", "x": heights, "y": names, "error_x": bars}
    standing = {"x": names, "y": heights, "error_y": bars}
    return {"type": "bar", "marker": {"color": colour}, **(lying if style.flat else standing), **common}
