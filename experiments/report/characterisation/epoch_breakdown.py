"""Breakdown of an epoch's time: stacked bars of its parts, one chart per varied knob, grouped by the other knobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from experiments.report.characterisation.chart_elements import (
    REST_OF_EPOCH,
    STACKED_PARTS,
    EpochPart,
    format_with_interval,
    make_error_bars,
)
from experiments.report.characterisation.knob_charts import describe_stall
from experiments.report.characterisation.knob_labels import format_setting
from experiments.report.characterisation.setting_families import (
    SAME_NAME,
    SettingFamily,
    build_families,
    describe_fixed_knobs,
    find_axes,
    format_axis_value,
    make_short_names,
    split_by_scale,
)
from experiments.report.characterisation.setting_summary import (
    FigureBasis,
    SettingSummary,
    choose_basis,
    has_later_epochs,
)
from experiments.report.chart import Chart, ChartFrame, Trace, axis
from experiments.report.palette import GREY
from experiments.report.quantities import number, percent

MAX_BARS = 18
"""Bars per view, with further families in the menu; with the next three constants, a default that keeps bars
readable."""
MAX_VIEWS = 8
LONGEST_NAME, LONGEST_GROUP = 26, 58
MIN_REST_SHARE = 0.005
"""Share of an epoch from which its rest is drawn."""
BAR_PX, GROUP_PX, AROUND_PX = 27, 30, 78


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar and its vertical position."""

    setting: SettingSummary
    name: str
    at: float


@dataclass(frozen=True, slots=True)
class _BarView:
    """Bars that are shown together, and the groups' names with their vertical positions."""

    rows: tuple[_Bar, ...]
    groups: tuple[tuple[str, float], ...]
    depth: float


@dataclass(frozen=True, slots=True)
class _BarStyle:
    """Style that all views of a chart share."""

    parts: tuple[EpochPart, ...]
    basis: FigureBasis


def build_breakdown_charts(settings: Sequence[SettingSummary]) -> tuple[Chart, ...]:
    """Build one chart per varied knob, or one of all settings if no knob was varied.

    Args:
        settings: All settings.
    """
    axes = find_axes(settings)
    if axes:
        return tuple(_build_knob_chart(settings, one) for one in axes)
    if not settings:
        return ()
    names = make_short_names(settings)
    rows = tuple(_Bar(one, _shorten(names[one.key]), float(place)) for place, one in enumerate(settings[:MAX_BARS]))
    left = f"The first {MAX_BARS} of {len(settings)} settings." if len(settings) > MAX_BARS else ""
    view = _BarView(rows, (), float(len(rows)))
    return (
        _build_chart(
            "parts",
            title="What an epoch is made of",
            caption=left,
            views={"all": view},
            style=_BarStyle(_list_visible_parts(settings), choose_basis(settings)),
        ),
    )


def build_part_legend(settings: Sequence[SettingSummary]) -> str:
    """Build one legend of the parts' colours for all charts, as HTML."""
    shown = "".join(
        f'<span class="key"><i class="swatch" style="background:{part.colour}"></i>{part.name}</span>'
        for part in _list_visible_parts(settings)
    )
    return f'<span class="keys">{shown}<span class="key">├─┤ end to end, 95 % interval</span></span>'


def _build_knob_chart(settings: Sequence[SettingSummary], knob: str) -> Chart:
    families = build_families(settings, knob)
    views, shown = _build_views(families)
    words = [f"{'First group' if len(families) > 1 else 'All'}: {escape(describe_fixed_knobs(families[0], settings))}."]
    if knob in {"storage", "cache"} and has_later_epochs(settings):
        words.append("The first epoch, which fills the page cache, is drawn further below.")
    if shown < len(families):
        words.append(f"{shown:,} of {len(families):,} groups are drawn: those nearest to the plan's base.")
    style = _BarStyle(
        _list_visible_parts(settings), choose_basis([one for family in families for one in family.settings])
    )
    return _build_chart(
        f"parts-{knob}", title=escape(describe_stall(families)), caption=" ".join(words), views=views, style=style
    )


def _build_views(families: Sequence[SettingFamily]) -> tuple[dict[str, _BarView], int]:
    """Fill up to ``MAX_VIEWS`` views with whole families; return them and the number of families in them."""
    views: dict[str, _BarView] = {}
    shown = 0
    for alike in split_by_scale(families):
        place = 0
        while place < len(alike) and len(views) < MAX_VIEWS:
            taken = _take_fitting(alike[place:])
            more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
            views[f"{taken[0].name}{more}"] = _build_view(taken)
            place += len(taken)
        shown += place
    return views, shown


def _take_fitting(families: Sequence[SettingFamily]) -> list[SettingFamily]:
    """Return the first family and those after it that fit into one view."""
    taken = [families[0]]
    for following in families[1:]:
        if sum(len(one.settings) for one in (*taken, following)) > MAX_BARS:
            break
        taken.append(following)
    return taken


def _build_view(families: Sequence[SettingFamily]) -> _BarView:
    rows, groups, at = [], [], 0.0
    for family in families:
        if len(families) > 1 or family.name != SAME_NAME:
            groups.append((family.name, at))
            at += GROUP_PX / BAR_PX
        for setting in family.settings[:MAX_BARS]:
            rows.append(_Bar(setting, _shorten(format_axis_value(setting, family.axis)), at))
            at += 1.0
    return _BarView(tuple(rows), tuple(groups), at)


def _shorten(word: str, most: int = LONGEST_NAME) -> str:
    return word if len(word) <= most else f"{word[: most - 1]}…"


def _build_chart(key: str, title: str, caption: str, views: dict[str, _BarView], style: _BarStyle) -> Chart:
    height = round(AROUND_PX + BAR_PX * max(view.depth for view in views.values()))
    frames = tuple(
        ChartFrame(name, _make_bar_traces(view, style), _make_layout(view, style), f"{len(view.rows)} bars")
        for name, view in views.items()
    )
    if len(frames) == 1:
        return Chart(key, title=title, caption=caption, data=frames[0].data, layout=frames[0].layout, height_px=height)
    return Chart(key, title=title, caption=caption, data=[], layout={}, height_px=height, frames=frames, menu="groups")


def _list_visible_parts(settings: Sequence[SettingSummary]) -> tuple[EpochPart, ...]:
    """Return the parts that are not zero everywhere, and the rest of the epoch only if it is visible."""
    timed = [part for part in STACKED_PARTS if any((one.get_mean(part.field) or 0.0) > 0 for one in settings)]
    rest = any(one.stats.untimed_s > MIN_REST_SHARE * one.stats.e2e_s.value for one in settings)
    return (*timed, *((REST_OF_EPOCH,) if rest else ()))


def _part_s(setting: SettingSummary, part: EpochPart, basis: FigureBasis) -> float:
    if part is not REST_OF_EPOCH:
        return basis.get_mean(setting, part.field) or 0.0
    timed = sum(basis.get_mean(setting, one.field) or 0.0 for one in STACKED_PARTS)
    return max(0.0, (basis.get_mean(setting, "e2e_s") or 0.0) - timed)


def _make_bar_traces(view: _BarView, style: _BarStyle) -> list[Trace]:
    stacked: list[Trace] = [
        {
            "type": "bar", "orientation": "h", "name": part.name, "y": [row.at for row in view.rows], "width": 0.72,
            "x": [_part_s(row.setting, part, style.basis) for row in view.rows],
            "marker": {"color": part.colour},
            "hovertext": [_make_hover_text(row.setting, part, style.basis) for row in view.rows], "hoverinfo": "text",
        }
        for part in style.parts
    ]  # fmt: skip
    return [*stacked, *_make_total_traces(view, style.basis)]


def _make_total_traces(view: _BarView, basis: FigureBasis) -> list[Trace]:
    """Draw the interval of each bar's total, and the total to the right of it."""
    totals = [basis.get_estimate(row.setting, "e2e_s") for row in view.rows]
    heights = [row.at for row in view.rows]
    whole: Trace = {
        "type": "scatter", "mode": "markers", "name": "end to end", "y": heights,
        "x": [None if one is None else one.value for one in totals],
        "error_x": make_error_bars(totals, colour=GREY), "marker": {"color": GREY, "size": 5, "symbol": "line-ns-open"},
        "hovertext": [
            f"end to end {format_with_interval(total, 's')}<br>{escape(format_setting(row.setting.point))}"
            for row, total in zip(view.rows, totals, strict=True)
        ],
        "hoverinfo": "text", "customdata": [row.setting.key for row in view.rows],
    }  # fmt: skip
    figures: Trace = {
        "type": "scatter", "mode": "text", "y": heights, "x": [_bar_end_s(row.setting, basis) for row in view.rows],
        "text": [f"  {number(basis.get_mean(row.setting, 'e2e_s'), 3, 's')}" for row in view.rows],
        "textposition": "middle right", "textfont": {"size": 12}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    return [whole, figures]


def _make_hover_text(setting: SettingSummary, part: EpochPart, basis: FigureBasis) -> str:
    seconds, whole = _part_s(setting, part, basis), basis.get_mean(setting, "e2e_s") or 0.0
    amount = (
        number(seconds, 3, "s")
        if part is REST_OF_EPOCH
        else format_with_interval(basis.get_estimate(setting, part.field), "s")
    )
    share = percent(seconds / whole) if whole > 0 else "–"
    return f"<b>{part.name}</b> {amount}, {share}"


def _make_layout(view: _BarView, style: _BarStyle) -> dict[str, Any]:
    longest = max((_bar_end_s(row.setting, style.basis) for row in view.rows), default=1.0)
    return {
        "barmode": "stack",
        "xaxis": axis(f"seconds per {style.basis.unit_name}", range=[0, 1.24 * longest]),
        "yaxis": axis(
            "", range=[view.depth - 0.4, -0.6], tickvals=[row.at for row in view.rows],
            ticktext=[escape(row.name) for row in view.rows], showgrid=False, ticks="", showline=False,
        ),
        "annotations": [
            {
                "x": 0, "xref": "x", "xanchor": "left", "y": at, "yref": "y", "yanchor": "middle", "showarrow": False,
                "text": f"<b>{escape(_shorten(name, LONGEST_GROUP))}</b>", "font": {"size": 12.5}, "xshift": 2,
            }
            for name, at in view.groups
        ],
        "showlegend": False,
        "hovermode": "closest",
    }  # fmt: skip


def _bar_end_s(setting: SettingSummary, basis: FigureBasis) -> float:
    """Return the end of the bar's interval, cut at three times the total; the hover text has the full interval."""
    found = basis.get_estimate(setting, "e2e_s")
    if found is None:
        return 0.0
    return min(found.high, 3.0 * found.value) if found.is_bounded else found.value
