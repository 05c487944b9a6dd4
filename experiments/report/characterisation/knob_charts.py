"""One chart per varied knob, with a menu: the parts of an epoch as stacked bars, then time, stall and energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from experiments.report import chart
from experiments.report.characterisation import setting_charts, setting_families
from experiments.report.characterisation.characterisation_summary import (
    FigureBasis,
    SettingSummary,
    choose_basis,
    has_later_epochs,
)
from experiments.report.characterisation.setting_charts import LINE_COLOURS, REST_OF_EPOCH, STACKED_PARTS, EpochPart
from experiments.report.characterisation.setting_families import NUMERIC_KNOBS, SAME_NAME, SettingFamily
from experiments.report.chart import GREY, SYMBOLS, Chart, ChartFrame, Trace, axis
from experiments.report.page import Section
from experiments.report.quantities import UnitScale, capitalise, energy_scale, number, percent, time_scale
from fedge.characterisation.sweep_plan import KNOB_TITLES, describe_point
from fedge.confidence_interval import Estimate

MAX_BARS = 12
"""Bars per view, with further families in the menu; with the next three constants, a default that keeps bars
readable."""
MAX_VIEWS = 8
LONGEST_NAME, LONGEST_GROUP = 26, 58
MIN_REST_SHARE = 0.005
"""Share of an epoch from which its rest is drawn."""
BAR_PX, AROUND_PX, HEIGHT_PX = 19, 104, 330
MAX_FAMILIES = 6
"""Lines per view, as many as there are colours."""
MAX_UPRIGHT_NAME = 9
"""Length of a value's name above which bars are horizontal."""
AXIS_TITLES = {
    "cores": "CPU cores online",
    "cpu_mhz": "CPU clock (MHz)",
    "gpu_mhz": "GPU clock (MHz)",
    "mem_mhz": "memory clock (MHz)",
    "batch_size": "samples per batch",
    "workers": "loader workers (processes)",
    "prefetch": "prefetch (batches per worker)",
}
"""Titles of axes that differ from the knob's title."""
Row = tuple[str, SettingSummary | None]
"""A row of the breakdown: the name of a bar with its setting, or of the group whose bars follow."""


@dataclass(frozen=True, slots=True)
class ChartQuantity:
    """A quantity that is drawn against a knob; ``suffix`` says what it refers to: an epoch, or a number of samples."""

    field: str
    title: str
    unit: str
    suffix: str = " of {0.title}"

    def format_name(self, basis: FigureBasis) -> str:
        """Return the name including what the quantity refers to: "time of an epoch"."""
        return f"{self.title}{self.suffix.format(basis)}".removesuffix(" per epoch")

    def choose_scale(self, values: Sequence[float | None]) -> UnitScale:
        """Choose the unit of the axis for values in SI units."""
        return {"W": lambda _: UnitScale("W", 1.0), "J": energy_scale, "s": time_scale}[self.unit](values)


TIMES = (ChartQuantity("e2e_s", "time", "s"), ChartQuantity("stall_s", "stall", "s"))
METERED = (ChartQuantity("energy_j", "energy", "J"), ChartQuantity("power_w", "mean power", "W", suffix=""))
FIRST_EPOCH = (
    ChartQuantity("first_e2e_s", "time of the first epoch", "s", suffix=" per {0.unit_name}"),
    ChartQuantity("first_stall_s", "stall of the first epoch", "s", suffix=" per {0.unit_name}"),
)
"""Of the first epoch, whose page cache may be empty: relevant for storage and cache."""


def build_knob_section(settings: Sequence[SettingSummary], *, metered: bool) -> Section:
    """Build the section with a chart per varied knob, or with one of all settings if no knob was varied.

    There is at least one setting. ``metered`` says whether the power of any point was metered.
    """
    axes = setting_families.find_axes(settings)
    charts = tuple(_build_knob_chart(settings, one, metered=metered) for one in axes) or (_build_plain_chart(settings),)
    lead = (
        "Stall is the time in which training waits for a batch; without workers it is the loading itself. "
        "All intervals are 95 % intervals."
    )
    unmetered = "" if metered else " Power was not measured, so energy is missing."
    title = f"{'Time and energy' if metered else 'Time'} {'by knob' if axes else 'of an epoch'}"
    return Section(title, lead + unmetered, charts, min_width="460px" if len(charts) > 1 else "")


def _build_plain_chart(settings: Sequence[SettingSummary]) -> Chart:
    names = setting_families.make_short_names(settings)
    rows: list[Row] = [(names[one.key], one) for one in settings[:MAX_BARS]]
    omitted = f"The first {MAX_BARS} of {len(settings)} settings." if len(settings) > MAX_BARS else ""
    shown, basis = _list_visible_parts(settings), choose_basis(settings)
    frame = _make_breakdown_frame("parts of an epoch", "", rows, shown=shown, basis=basis)
    height = AROUND_PX + BAR_PX * len(rows)
    return chart.frame_chart("knob-none", "Parts of an epoch", [frame], caption=omitted, height_px=height)


def _build_knob_chart(settings: Sequence[SettingSummary], knob: str, *, metered: bool) -> Chart:
    families = setting_families.build_families(settings, knob)
    groups = setting_families.split_by_scale(families)
    views = _split_views(groups)
    basis, shown = choose_basis([one for family in families for one in family.settings]), _list_visible_parts(settings)
    parts = []
    for view in views:
        more = f" and {len(view) - 1} more" if len(view) > 1 else ""
        label = f"parts of {basis.title}" + (f": {view[0].name}{more}" if len(views) > 1 else "")
        rows = _list_rows(view)
        parts.append(
            _make_breakdown_frame(label, setting_families.describe_stall(view), rows, shown=shown, basis=basis)
        )
    first = FIRST_EPOCH if knob in {"storage", "cache"} and has_later_epochs(settings) else ()
    drawn = [group[:MAX_FAMILIES] for group in groups]
    figures = [
        frame
        for quantity in (*TIMES, *(METERED if metered else ()), *first)
        for group in drawn
        for frame in _make_quantity_frames(group, quantity, mark_workload=len(groups) > 1)
    ]
    height = max(HEIGHT_PX, AROUND_PX + BAR_PX * max(len(_list_rows(view)) for view in views))
    whose = "Other knobs of the first group" if len(families) > 1 else "Other knobs"
    caption = f"{whose}: {setting_families.describe_fixed_knobs(families[0], settings)}."
    in_bars, in_lines = sum(map(len, views)), sum(map(len, drawn))
    if min(in_bars, in_lines) < len(families):
        caption += (
            f" {in_bars:,} of {len(families):,} groups are shown as parts, {in_lines:,} as lines or bars of one "
            "quantity: those nearest to the plan's base."
        )
    frames = [parts[0], *figures, *parts[1:]]
    return chart.frame_chart(f"knob-{knob}", capitalise(KNOB_TITLES[knob]), frames, caption=caption, height_px=height)


def _split_views(groups: Sequence[Sequence[SettingFamily]]) -> list[list[SettingFamily]]:
    """Fill up to ``MAX_VIEWS`` views with whole families of one group each."""
    views: list[list[SettingFamily]] = []
    for group in groups:
        bars = MAX_BARS
        for family in group:
            if bars + len(family.settings) > MAX_BARS:
                views.append([])
                bars = 0
            views[-1].append(family)
            bars += len(family.settings)
    return views[:MAX_VIEWS]


def _list_rows(view: Sequence[SettingFamily]) -> list[Row]:
    rows: list[Row] = []
    for family in view:
        if len(view) > 1 or family.name != SAME_NAME:
            rows.append((family.name, None))
        rows += [(setting_families.format_axis_value(one, family.axis), one) for one in family.settings[:MAX_BARS]]
    return rows


def _list_visible_parts(settings: Sequence[SettingSummary]) -> tuple[EpochPart, ...]:
    """Return the parts that are not zero everywhere, and the rest of the epoch only if it is visible."""
    timed = [part for part in STACKED_PARTS if any((one.get_mean(part.field) or 0.0) > 0 for one in settings)]
    rest = any(one.stats.untimed_s > MIN_REST_SHARE * one.stats.e2e_s.value for one in settings)
    return (*timed, *((REST_OF_EPOCH,) if rest else ()))


def _make_breakdown_frame(
    label: str, stall: str, rows: Sequence[Row], *, shown: Sequence[EpochPart], basis: FigureBasis
) -> ChartFrame:
    bars = [(place, one) for place, (_, one) in enumerate(rows) if one is not None]
    places, settings = [place for place, _ in bars], [one for _, one in bars]
    data = []
    for part in shown:
        spent = [_part_s(one, part, basis) for one in settings]
        texts = [_describe_part(one, part, basis) for one in settings]
        look: dict[str, Any] = {"colour": part.colour, "horizontal": True, "width": 0.72}
        data.append(chart.bar_trace(part.name, places, spent, hover=texts, **look))
    totals = [basis.get_estimate(one, "e2e_s") for one in settings]
    ends = [0.0 if total is None else _cut_interval(total) for total in totals]
    figures = [None if total is None else total.value for total in totals]
    data += [
        chart.scatter_trace(
            "end to end",
            figures,
            places,
            marker={"color": GREY, "size": 5, "symbol": "line-ns-open"},
            hover=[
                Markup("end to end {}<br>{}").format(
                    setting_charts.format_with_interval(total, "s"), describe_point(one.point)
                )
                for one, total in zip(settings, totals, strict=True)
            ],
            error_x=setting_charts.make_error_bars(totals, colour=GREY),
            customdata=[one.key for one in settings],
        ),
        chart.scatter_trace(
            "",
            ends,
            places,
            mode="text",
            legend=False,
            text=[f"  {number(figure, 3, 's')}" for figure in figures],
            textposition="middle right",
            textfont={"size": 12},
        ),
    ]
    names = ["" if one is None else _shorten(name, LONGEST_NAME) for name, one in rows]
    layout = chart.xy_layout(
        axis(f"seconds per {basis.unit_name}", range=[0, 1.24 * max(ends, default=1.0)]),
        {**chart.row_axis(names), "tickcolor": "rgba(0,0,0,0)", "showline": False},
        chart.legend_layout(len(shown) + 1),
        barmode="stack",
        annotations=[_make_group_heading(name, place) for place, (name, one) in enumerate(rows) if one is None],
    )
    return ChartFrame(label, data, layout, stall)


def _cut_interval(total: Estimate) -> float:
    """Return the end of a bar's interval, cut at three times the total; the hover text has the full one."""
    return min(total.high, 3.0 * total.value) if total.is_bounded else total.value


def _make_group_heading(name: str, place: int) -> dict[str, Any]:
    text = Markup("<b>{}</b>").format(_shorten(name, LONGEST_GROUP))
    left = {"x": 0, "xref": "x", "xanchor": "left", "xshift": 2}
    return {"text": text, **left, "y": place, "yref": "y", "yanchor": "middle", "showarrow": False}


def _shorten(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _part_s(setting: SettingSummary, part: EpochPart, basis: FigureBasis) -> float:
    if part is not REST_OF_EPOCH:
        return basis.get_mean(setting, part.field) or 0.0
    timed = sum(basis.get_mean(setting, one.field) or 0.0 for one in STACKED_PARTS)
    return max(0.0, (basis.get_mean(setting, "e2e_s") or 0.0) - timed)


def _describe_part(setting: SettingSummary, part: EpochPart, basis: FigureBasis) -> str:
    seconds, whole = _part_s(setting, part, basis), basis.get_mean(setting, "e2e_s") or 0.0
    estimate = None if part is REST_OF_EPOCH else basis.get_estimate(setting, part.field)
    amount = number(seconds, 3, "s") if estimate is None else setting_charts.format_with_interval(estimate, "s")
    share = percent(seconds / whole if whole > 0 else None)
    return Markup("<b>{}</b> {}, {}").format(part.name, amount, share)


def _make_quantity_frames(
    families: Sequence[SettingFamily], quantity: ChartQuantity, *, mark_workload: bool
) -> Iterator[ChartFrame]:
    """Yield a view of one quantity against the knob; none if it is unknown for all settings."""
    settings = [one for family in families for one in family.settings]
    basis, knob = choose_basis(settings), families[0].axis
    values = [basis.get_mean(one, quantity.field) for one in settings]
    if all(value is None for value in values):
        return
    scale = quantity.choose_scale(values)
    numeric = knob in NUMERIC_KNOBS
    flat = (
        not numeric and max(len(setting_families.format_axis_value(one, knob)) for one in settings) > MAX_UPRIGHT_NAME
    )
    name = quantity.format_name(basis)
    amounts = axis(f"{name} ({scale.unit})", rangemode="tozero")
    title = "" if flat else AXIS_TITLES.get(knob, KNOB_TITLES[knob])
    knobs = axis(title, **(_number_ticks(families, knob) if numeric else {"type": "category"}))
    layout = chart.xy_layout(
        amounts if flat else knobs,
        {**knobs, "autorange": "reversed"} if flat else amounts,
        chart.legend_layout(len(families), [family.name for family in families]),
        showlegend=len(families) > 1,
        barmode="group",
    )
    workload = f", {settings[0].point.workload}" if mark_workload else ""
    data = [
        _make_family_trace(family, place, quantity, basis=basis, per=scale.per, flat=flat)
        for place, family in enumerate(families)
    ]
    change = setting_families.describe_change(capitalise(name), families, quantity.field, basis)
    yield ChartFrame(f"{name}{workload}", data, layout, change)


def _number_ticks(families: Sequence[SettingFamily], knob: str) -> dict[str, Any]:
    """Return the values as ticks if there are few; logarithmic for batch sizes that double."""
    values = sorted({float(value) for family in families for value in family.values})
    log = knob == "batch_size" and values[0] > 0 and values[-1] > 8 * values[0]
    ticks = {"tickvals": values, "ticktext": [f"{one:g}" for one in values]} if len(values) <= 10 else {}
    return {**({"type": "log"} if log else {}), **ticks}


def _make_family_trace(
    family: SettingFamily, place: int, quantity: ChartQuantity, *, basis: FigureBasis, per: float, flat: bool
) -> Trace:
    """Draw a family as a line over numbers, as bars over names; ``flat`` bars leave room for long names."""
    colour = LINE_COLOURS[place % len(LINE_COLOURS)]
    amounts = [basis.get_estimate(one, quantity.field) for one in family.settings]
    heights = [None if one is None else one.value / per for one in amounts]
    hover = [
        Markup("<b>{}</b><br>{}").format(
            setting_charts.format_with_interval(amount, quantity.unit), describe_point(one.point)
        )
        for one, amount in zip(family.settings, amounts, strict=True)
    ]
    keys = [one.key for one in family.settings]
    if family.axis in NUMERIC_KNOBS:
        return chart.line_trace(
            family.name,
            [float(value) for value in family.values],
            heights,
            colour=colour,
            markers=True,
            hover=hover,
            marker={"color": colour, "size": 8, "symbol": SYMBOLS[place % len(SYMBOLS)]},
            error_y=setting_charts.make_error_bars(amounts, per, colour),
            customdata=keys,
        )
    names = [setting_families.format_axis_value(one, family.axis) for one in family.settings]
    bars = chart.bar_trace(family.name, names, heights, colour=colour, horizontal=flat, hover=hover, customdata=keys)
    return {**bars, "error_x" if flat else "error_y": setting_charts.make_error_bars(amounts, per, GREY)}
