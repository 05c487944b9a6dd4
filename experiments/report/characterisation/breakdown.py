"""Where an epoch's time goes: stacked bars of its parts, grouped by what else is the same, one chart per swept knob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from experiments.report.characterisation.bars import error_bars, with_interval
from experiments.report.characterisation.basis import Basis, basis_of, first_apart
from experiments.report.characterisation.families import (
    SAME,
    Family,
    axes_of,
    families_of,
    held,
    short_names,
    similar,
    value_name,
)
from experiments.report.characterisation.names import whole_word
from experiments.report.characterisation.parts import REST, STACKED, Part
from experiments.report.characterisation.settings import Setting
from experiments.report.characterisation.telling import stalls
from experiments.report.chart import Chart, Frame, Trace, axis
from experiments.report.palette import GREY
from experiments.report.quantities import number, percent

BARS = 18
"""Of one view; more families are behind the menu. Chosen by us, as are the next three."""
VIEWS = 8
LONGEST_NAME, LONGEST_GROUP = 26, 58
REST_FROM = 0.005
"""The rest of an epoch is drawn where it is at least such a share of any."""
BAR_PX, GROUP_PX, AROUND_PX = 27, 30, 78


@dataclass(frozen=True, slots=True)
class _Row:
    """One bar, at its height."""

    setting: Setting
    name: str
    at: float


@dataclass(frozen=True, slots=True)
class _View:
    """Bars that are seen together: rows, and the groups' names at their heights."""

    rows: tuple[_Row, ...]
    groups: tuple[tuple[str, float], ...]
    depth: float


@dataclass(frozen=True, slots=True)
class _Style:
    """What all views of a chart share."""

    parts: tuple[Part, ...]
    basis: Basis


def breakdowns(settings: Sequence[Setting]) -> tuple[Chart, ...]:
    """One chart per knob that was turned; one of all points where none was."""
    axes = axes_of(settings)
    if axes:
        return tuple(_chart(settings, one) for one in axes)
    if not settings:
        return ()
    names = short_names(settings)
    rows = tuple(_Row(one, _short(names[one.key]), float(place)) for place, one in enumerate(settings[:BARS]))
    left = f"The first {BARS} of {len(settings)} settings." if len(settings) > BARS else ""
    view = _View(rows, (), float(len(rows)))
    return (
        _drawn("parts", "What an epoch is made of", left, {"all": view}, _Style(_parts(settings), basis_of(settings))),
    )


def legend(settings: Sequence[Setting]) -> str:
    """The parts' colours as HTML, once for all the bars."""
    shown = "".join(
        f'<span class="key"><i class="swatch" style="background:{part.colour}"></i>{part.name}</span>'
        for part in _parts(settings)
    )
    return f'<span class="keys">{shown}<span class="key">├─┤ end to end, 95 % interval</span></span>'


def _chart(settings: Sequence[Setting], knob: str) -> Chart:
    families = families_of(settings, knob)
    views, shown = _views(families)
    words = [f"{'First group' if len(families) > 1 else 'All'}: {escape(held(families[0], settings))}."]
    if knob in {"storage", "cache"} and first_apart(settings):
        words.append("The first epoch, which fills the page cache, is drawn further below.")
    if shown < len(families):
        words.append(f"{shown:,} of {len(families):,} groups are drawn: those nearest to the plan's base.")
    style = _Style(_parts(settings), basis_of([one for family in families for one in family.settings]))
    return _drawn(f"parts-{knob}", escape(stalls(families)), " ".join(words), views, style)


def _views(families: Sequence[Family]) -> tuple[dict[str, _View], int]:
    """As many views as are allowed, each with as many whole families as fit, and how many families they hold."""
    views: dict[str, _View] = {}
    shown = 0
    for alike in similar(families):
        place = 0
        while place < len(alike) and len(views) < VIEWS:
            taken = _fitting(alike[place:])
            more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
            views[f"{taken[0].name}{more}"] = _view(taken)
            place += len(taken)
        shown += place
    return views, shown


def _fitting(families: Sequence[Family]) -> list[Family]:
    """The first one, and those after it that a view still has room for."""
    taken = [families[0]]
    for following in families[1:]:
        if sum(len(one.settings) for one in (*taken, following)) > BARS:
            break
        taken.append(following)
    return taken


def _view(families: Sequence[Family]) -> _View:
    rows, groups, at = [], [], 0.0
    for family in families:
        if len(families) > 1 or family.name != SAME:
            groups.append((family.name, at))
            at += GROUP_PX / BAR_PX
        for setting in family.settings[:BARS]:
            rows.append(_Row(setting, _short(value_name(setting, family.axis)), at))
            at += 1.0
    return _View(tuple(rows), tuple(groups), at)


def _short(word: str, most: int = LONGEST_NAME) -> str:
    return word if len(word) <= most else f"{word[: most - 1]}…"


def _drawn(key: str, title: str, caption: str, views: dict[str, _View], style: _Style) -> Chart:
    height = round(AROUND_PX + BAR_PX * max(view.depth for view in views.values()))
    frames = tuple(
        Frame(name, _bars(view, style), _layout(view, style), f"{len(view.rows)} bars") for name, view in views.items()
    )
    if len(frames) == 1:
        return Chart(key, title, caption, frames[0].data, frames[0].layout, height)
    return Chart(key, title, caption, [], {}, height, frames, menu="groups")


def _parts(settings: Sequence[Setting]) -> tuple[Part, ...]:
    """Those that are anything at all; the rest only where it can be seen."""
    timed = [part for part in STACKED if any((one.value(part.field) or 0.0) > 0 for one in settings)]
    rest = any(one.stats.untimed_s > REST_FROM * one.stats.e2e_s.value for one in settings)
    return (*timed, *((REST,) if rest else ()))


def _seconds(setting: Setting, part: Part, basis: Basis) -> float:
    if part is not REST:
        return basis.value(setting, part.field) or 0.0
    timed = sum(basis.value(setting, one.field) or 0.0 for one in STACKED)
    return max(0.0, (basis.value(setting, "e2e_s") or 0.0) - timed)


def _bars(view: _View, style: _Style) -> list[Trace]:
    stacked: list[Trace] = [
        {
            "type": "bar", "orientation": "h", "name": part.name, "y": [row.at for row in view.rows], "width": 0.72,
            "x": [_seconds(row.setting, part, style.basis) for row in view.rows],
            "marker": {"color": part.colour},
            "hovertext": [_told(row.setting, part, style.basis) for row in view.rows], "hoverinfo": "text",
        }
        for part in style.parts
    ]  # fmt: skip
    return [*stacked, *_totals(view, style.basis)]


def _totals(view: _View, basis: Basis) -> list[Trace]:
    """The interval of every bar's whole length, and the figure to the right of it."""
    totals = [basis.amount(row.setting, "e2e_s") for row in view.rows]
    heights = [row.at for row in view.rows]
    whole: Trace = {
        "type": "scatter", "mode": "markers", "name": "end to end", "y": heights,
        "x": [None if one is None else one.value for one in totals],
        "error_x": error_bars(totals, colour=GREY), "marker": {"color": GREY, "size": 5, "symbol": "line-ns-open"},
        "hovertext": [
            f"end to end {with_interval(total, 's')}<br>{escape(whole_word(row.setting.point))}"
            for row, total in zip(view.rows, totals, strict=True)
        ],
        "hoverinfo": "text", "customdata": [row.setting.key for row in view.rows],
    }  # fmt: skip
    figures: Trace = {
        "type": "scatter", "mode": "text", "y": heights, "x": [_reach(row.setting, basis) for row in view.rows],
        "text": [f"  {number(basis.value(row.setting, 'e2e_s'), 3, 's')}" for row in view.rows],
        "textposition": "middle right", "textfont": {"size": 12}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    return [whole, figures]


def _told(setting: Setting, part: Part, basis: Basis) -> str:
    seconds, whole = _seconds(setting, part, basis), basis.value(setting, "e2e_s") or 0.0
    amount = number(seconds, 3, "s") if part is REST else with_interval(basis.amount(setting, part.field), "s")
    share = percent(seconds / whole) if whole > 0 else "–"
    return f"<b>{part.name}</b> {amount}, {share}"


def _layout(view: _View, style: _Style) -> dict[str, Any]:
    longest = max((_reach(row.setting, style.basis) for row in view.rows), default=1.0)
    return {
        "barmode": "stack",
        "xaxis": axis(f"seconds per {style.basis.words}", range=[0, 1.24 * longest]),
        "yaxis": axis(
            "", range=[view.depth - 0.4, -0.6], tickvals=[row.at for row in view.rows],
            ticktext=[escape(row.name) for row in view.rows], showgrid=False, ticks="", showline=False,
        ),
        "annotations": [
            {
                "x": 0, "xref": "x", "xanchor": "left", "y": at, "yref": "y", "yanchor": "middle", "showarrow": False,
                "text": f"<b>{escape(_short(name, LONGEST_GROUP))}</b>", "font": {"size": 12.5}, "xshift": 2,
            }
            for name, at in view.groups
        ],
        "showlegend": False,
        "hovermode": "closest",
    }  # fmt: skip


def _reach(setting: Setting, basis: Basis) -> float:
    """To the interval's end, at most three times the figure: what is longer is cut and in the words."""
    found = basis.amount(setting, "e2e_s")
    if found is None:
        return 0.0
    return min(found.high, 3.0 * found.value) if found.bounded else found.value
