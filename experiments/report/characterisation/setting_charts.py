"""Charts of settings: the time-energy plane, variability, and the elements that all charts share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from experiments.report import chart
from experiments.report.characterisation.characterisation_summary import (
    FigureBasis,
    SettingSummary,
    choose_basis,
    find_preset_name,
)
from experiments.report.chart import ALARM, GREY, SYMBOLS, Chart, ChartFrame, Trace, axis
from experiments.report.page import EMPTY, Section, render_badge, render_paragraph
from experiments.report.quantities import UnitScale, energy_scale, number, percent, time_scale
from experiments.report.tables import Cell, Column, Table, build_table, percent_cell, text_cell, value_cell
from fedge.characterisation.sweep_findings import Variability
from fedge.characterisation.sweep_plan import KIND_NAMES, WorkKind, describe_point
from fedge.confidence_interval import Estimate
from fedge.groups import group_by
from fedge.pareto import front_mask
from fedge.types import Floats


@dataclass(frozen=True, slots=True)
class EpochPart:
    """One part of an epoch or minibatch: the field in seconds of the records that has it."""

    field: str
    name: str
    colour: str


STALL = EpochPart("stall_s", "stall", "#E69F00")
COPY = EpochPart("copy_s", "copy", "#CC79A7")
COMPUTE = EpochPart("compute_s", "compute", "#0072B2")
OVERHEAD = EpochPart("overhead_s", "overhead", GREY)
FETCH = EpochPart("fetch_s", "fetch", "#56B4E9")
PREPROCESS = EpochPart("preprocess_s", "preprocess", "#7A6FAC")
REST_OF_EPOCH = EpochPart("rest_s", "rest of the epoch", "#c4cad1")
"""End to end minus the timed parts: start and shutdown of the loader, and gaps between timers."""
STACKED_PARTS = (STALL, COPY, COMPUTE, OVERHEAD)
"""Parts that follow one another in a minibatch and add up to it."""
TIMELINE_PARTS = (STALL, COMPUTE, FETCH, PREPROCESS)
"""Parts shown over time; the last two overlap with training if there are workers, else they make up the stall."""
LINE_COLOURS = ("#009E73", "#D55E00", "#8C8C1A", "#8b4a2b", "#117a8b", "#c2185b")
"""Colours of boards and workloads, none of which is that of a part."""


def make_error_bars(amounts: Sequence[Estimate | None], per: float = 1.0, colour: str = GREY) -> dict[str, Any]:
    """Return Plotly's ``error_x`` or ``error_y`` for 95 % intervals, divided by ``per`` and not drawn below zero.

    None and unbounded estimates have no bar.
    """
    bounded = [one if one is not None and one.is_bounded else None for one in amounts]
    if all(one is None for one in bounded):
        return {"visible": False}
    upper = [None if one is None else (one.high - one.value) / per for one in bounded]
    lower = [None if one is None else (one.value - max(one.low, 0.0)) / per for one in bounded]
    return chart.error_bars(upper, lower, colour=colour, thickness=1.3, width=3)


def format_with_interval(amount: Estimate | None, unit: str) -> str:
    """Format a value with its interval: "12.3 s (11.9 to 12.7)"; without it if it is unbounded."""
    if amount is None:
        return "not metered"
    value = number(amount.value, 3, unit)
    return f"{value} ({number(amount.low)} to {number(amount.high)})" if amount.is_bounded else value


def select_extremes(series: Sequence[Floats], most: int) -> NDArray[np.int64]:
    """Select at most ``most`` rows of series of one length to draw: both ends, and the extremes of equal stretches.

    Minimum and maximum of each series, of which NaN is never one, are always among the ascending indices.

    Raises:
        ValueError: ``most`` is less than two per series plus both ends.
    """
    n = len(series[0])
    if n <= most:
        return np.arange(n)
    stretches = (most - 2) // (2 * len(series))
    if stretches < 1:
        raise ValueError(f"{most} rows cannot hold the extremes of {len(series)} series; {2 * len(series) + 2} can")
    kept = {0, n - 1}
    edges = np.linspace(0, n, stretches + 1).astype(int)
    for one in series:
        for begin, end in pairwise(edges):
            part = one[begin:end]
            if len(part) and not np.isnan(part).all():
                kept |= {begin + int(np.nanargmin(part)), begin + int(np.nanargmax(part))}
    return np.array(sorted(kept), dtype=np.int64)


MAX_DOTS = 1200
"""Dominated settings drawn in one view; with the next two constants, a default that limits the page's size."""
MAX_VIEWS = 24
MAX_DOTS_IN_ALL = 8000
"""Dominated settings drawn in all views together."""
NEAR = (0.045, 0.06)
"""Distance below which named modes share a label, as shares of the axes: about the size of a label."""
NamedMode = tuple[int, str, SettingSummary]
"""Number, name and fastest setting of a power mode that has a name."""


@dataclass(frozen=True, slots=True)
class _Plane:
    """One view: its settings, the basis of their values, and the axes' units."""

    settings: Sequence[SettingSummary]
    basis: FigureBasis
    times: UnitScale
    joules: UnitScale

    def locate(self, setting: SettingSummary) -> tuple[float | None, float | None]:
        """Return a setting's time and energy in the axes' units."""
        time_s, energy_j = (self.basis.get_mean(setting, field) for field in ("e2e_s", "energy_j"))
        return self.times.convert(time_s), self.joules.convert(energy_j)

    def measure_s(self, setting: SettingSummary) -> float:
        """Return a setting's time in seconds."""
        return self.basis.get_mean(setting, "e2e_s") or 0.0

    def mark(self, settings: Sequence[SettingSummary]) -> dict[str, Any]:
        """Return what all traces of settings have: places, hover texts and keys."""
        return {
            "of": settings,
            "x": lambda one: self.locate(one)[0],
            "y": lambda one: self.locate(one)[1],
            "hover": lambda one: _describe_setting(one, self.basis),
            "customdata": [one.key for one in settings],
        }


def build_plane_section(settings: Sequence[SettingSummary]) -> Iterator[Section]:
    """Yield the plane with a menu of workload, board and kind; nothing if no power was metered."""
    metered = (one for one in settings if one.get_mean("energy_j") is not None)
    groups = group_by(metered, lambda one: (one.point.workload, one.point.board, one.point.kind))
    several = {group: some for group, some in groups.items() if len(some) > 1}
    title = "Time against energy"
    if several:
        lead = "Time and energy of an epoch for each setting. Coloured: the Pareto front. Faint: dominated settings."
        yield Section(title, lead, (_build_plane_chart(several),))
    elif groups:
        yield Section(title, "Each board has only one setting of each workload.")


def _build_plane_chart(groups: Mapping[tuple[str, str, WorkKind], list[SettingSummary]]) -> Chart:
    listed = list(groups.items())[:MAX_VIEWS]
    most = min(MAX_DOTS, MAX_DOTS_IN_ALL // len(listed))
    frames = [
        _make_plane_frame(f"{workload}, {board}, {KIND_NAMES[kind]}", settings, most)
        for (workload, board, kind), settings in listed
    ]
    caption = "Bars: 95 % intervals of the settings on the front."
    if any(len(frame.data) > 2 for frame in frames):
        caption += " Stars: the power modes with a name, each at its fastest; numbers as in the legend."
    if len(listed) < len(groups):
        caption += f" The menu has the first {len(listed)} of {len(groups)}."
    return chart.frame_chart("plane", "Pareto front of settings", frames, caption=caption, height_px=380)


def _make_plane_frame(label: str, settings: Sequence[SettingSummary], most: int) -> ChartFrame:
    basis = choose_basis(settings)
    times_s, energies_j = ([basis.get_mean(one, field) for one in settings] for field in ("e2e_s", "energy_j"))
    plane = _Plane(settings, basis, time_scale(times_s), energy_scale(energies_j))
    on_front = front_mask(np.array(times_s, dtype=np.float64), np.array(energies_j, dtype=np.float64))
    front = sorted((one for one, best in zip(settings, on_front, strict=True) if best), key=plane.measure_s)
    others = [one for one, best in zip(settings, on_front, strict=True) if not best]
    drawn, colour = [others[row] for row in chart.thin_rows(len(others), most)], LINE_COLOURS[0]
    data = [
        chart.scatter_trace("dominated", **plane.mark(drawn), marker={"color": GREY, "size": 7, "opacity": 0.5}),
        chart.line_trace(
            "front",
            **plane.mark(front),
            colour=colour,
            markers=True,
            marker={"color": colour, "size": 8},
            error_x=make_error_bars([basis.get_estimate(one, "e2e_s") for one in front], plane.times.per, colour),
            error_y=make_error_bars([basis.get_estimate(one, "energy_j") for one in front], plane.joules.per, colour),
        ),
        *(_make_named_modes_trace(group, plane) for group in _group_named_modes(plane)),
    ]
    layout = chart.xy_layout(
        axis(f"time of {basis.title} ({plane.times.unit})"),
        axis(f"energy of {basis.title} ({plane.joules.unit})"),
        chart.legend_layout(len(data), [trace["name"] for trace in data]),
    )
    omitted = f"; {len(others) - len(drawn):,} dominated not shown" if len(drawn) < len(others) else ""
    return ChartFrame(label, data, layout, f"{len(settings):,} settings, {len(front)} on the front{omitted}")


def _describe_setting(one: SettingSummary, basis: FigureBasis) -> str:
    units = {"e2e_s": "s", "energy_j": "J", "power_w": "W"}
    figures = ", ".join(format_with_interval(basis.get_estimate(one, field), unit) for field, unit in units.items())
    return Markup("<b>{}</b><br>{}<br>point {}").format(describe_point(one.point), figures, one.key)


def _group_named_modes(plane: _Plane) -> list[list[NamedMode]]:
    """Number the named power modes, the fastest first, and group those whose labels would overlap."""
    fastest: dict[str, SettingSummary] = {}
    for one in sorted(plane.settings, key=plane.measure_s):
        name = find_preset_name(one.point.board, one.point.mode)
        if name is not None:
            fastest.setdefault(name, one)
    least = np.array(NEAR) * np.ptp(np.array([plane.locate(one) for one in plane.settings], dtype=np.float64), axis=0)
    groups: list[tuple[Floats, list[NamedMode]]] = []
    for row, (name, one) in enumerate(fastest.items(), 1):
        place = np.array(plane.locate(one), dtype=np.float64)
        near = next((group for first, group in groups if (np.abs(place - first) <= least).all()), None)
        if near is None:
            groups.append((place, [(row, name, one)]))
        else:
            near.append((row, name, one))
    return [group for _, group in groups]


def _make_named_modes_trace(group: Sequence[NamedMode], plane: _Plane) -> Trace:
    numbers = [number for number, _, _ in group]
    consecutive = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    label = f"{numbers[0]}–{numbers[-1]}" if consecutive else ", ".join(map(str, numbers))
    return chart.scatter_trace(
        ", ".join(f"{number} {name}" for number, name, _ in group),
        **plane.mark([one for _, _, one in group]),
        mode="markers+text",
        marker={"symbol": "star", "size": 13, "color": ALARM, "line": {"width": 1.2, "color": "white"}},
        text=[label, *[""] * (len(group) - 1)],
        textposition="top center",
        textfont={"size": 12},
        cliponaxis=False,
    )


MAX_LINES = 60
"""Settings per chart, those that vary most; with the next constant, a default that keeps the charts readable."""
MAX_ROWS = 12
QUANTITY_TITLES = {"e2e_s": "time", "energy_j": "energy"}
SCOPE_TITLES = {"within": "between repeats", "between": "between boards of a kind"}
NO_REPEATS_TEXT = Markup(
    "Every setting was measured once, on one board of its kind, so its variability is unknown. "
    "<code>course.repeats</code> in the plan repeats every point; a second board of the same kind shows how boards "
    "differ."
)


def build_variability_section(variability: Sequence[Variability]) -> Section:
    """Build a chart of deviations from the mean for repeats and for boards, and a table of the largest."""
    if not variability:
        return Section("Variability", NO_REPEATS_TEXT)
    charts = tuple(
        _build_deviation_chart(scope, rows)
        for scope in SCOPE_TITLES
        if (rows := [one for one in variability if one.scope == scope])
    )
    lead = "Variability of repeated settings: each dot is the relative deviation of one measurement from the mean."
    rest = len(variability) - MAX_ROWS
    omitted = f"The {MAX_ROWS} of {len(variability):,} that vary most."
    below = render_paragraph(omitted, "caption") if rest > 0 else EMPTY
    html = build_variability_table(variability).html + below
    return Section("Variability", lead, charts, html, min_width="420px")


def _build_deviation_chart(scope: str, variability: Sequence[Variability]) -> Chart:
    by_quantity = {name: [one for one in variability if one.quantity == name] for name in QUANTITY_TITLES}
    frames = [_make_deviation_frame(name, scope, rows) for name, rows in by_quantity.items() if rows]
    return chart.frame_chart(scope, f"Deviation {SCOPE_TITLES[scope]}", frames, height_px=300)


def _make_deviation_frame(quantity: str, scope: str, variability: Sequence[Variability]) -> ChartFrame:
    drawn = sorted(variability, key=lambda one: -one.spread)[:MAX_LINES]
    boards = sorted({one.board for one in drawn})
    traces = [_make_board_trace(board, place, drawn) for place, board in enumerate(boards)]
    reach = max(0.5, 1.15 * max(abs(value) for trace in traces for value in trace["y"]))
    layout = {
        "xaxis": axis("repeat", dtick=1) if scope == "within" else axis("board", categoryorder="category ascending"),
        # At least +-0.5 %, so that negligible noise does not look large.
        "yaxis": axis("deviation from mean (%)", range=[-reach, reach], zeroline=True, zerolinecolor="#8c959f"),
        "legend": chart.legend_layout(len(boards), boards),
        "showlegend": len(boards) > 1,
        "hovermode": "closest",
    }
    name, count = QUANTITY_TITLES[quantity], len(variability)
    summary = f"{name.capitalize()} varies by at most {percent(drawn[0].spread)} {SCOPE_TITLES[scope]}"
    omitted = f"; the {len(drawn)} of {count:,} settings that vary most" if len(drawn) < count else ""
    return ChartFrame(name, traces, layout, f"{summary}{omitted}")


def _make_board_trace(board: str, place: int, drawn: Sequence[Variability]) -> Trace:
    means = [(one, sum(one.values) / len(one.values)) for one in drawn if one.board == board]
    dots = [
        (one, name, 100.0 * (value / mean - 1.0) if mean else 0.0)
        for one, mean in means
        for name, value in zip(one.names, one.values, strict=True)
    ]
    colour, symbol = LINE_COLOURS[place % len(LINE_COLOURS)], SYMBOLS[place % len(SYMBOLS)]
    hover = Markup("{}, {}<br>{}: {:+.2f} %")
    return chart.scatter_trace(
        board,
        [int(name) if name.isdigit() else name for _, name, _ in dots],
        [deviation for *_, deviation in dots],
        marker={"color": colour, "size": 8, "symbol": symbol, "opacity": 0.75},
        hover=[hover.format(one.workload, one.setting, name, deviation) for one, name, deviation in dots],
    )


def build_variability_table(variability: Sequence[Variability]) -> Table:
    """Build the table of the settings that vary most."""
    columns: tuple[Column[Variability], ...] = (
        ("scope", lambda one: text_cell("within a board" if one.scope == "within" else "between boards")),
        ("board", lambda one: text_cell(one.board)),
        ("workload", lambda one: text_cell(one.workload)),
        ("quantity", lambda one: text_cell(QUANTITY_TITLES.get(one.quantity, one.quantity))),
        ("values", lambda one: value_cell(len(one.values))),
        ("deviation / mean", lambda one: percent_cell(one.cv, 2)),
        ("largest − least", lambda one: percent_cell(one.spread, 2)),
        ("setting", lambda one: Cell(Markup("{} {}").format(render_badge(one.label), one.setting), words=one.setting)),
    )
    return build_table("variability", columns, sorted(variability, key=lambda one: -one.spread)[:MAX_ROWS])
