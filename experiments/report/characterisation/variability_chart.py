"""The section of variability: how much one setting varies between repeats on a board, and between boards of a kind."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from experiments.report.characterisation.chart_elements import LINE_COLOURS
from experiments.report.chart import Chart, ChartFrame, Trace, axis, legend_layout, menu_chart, scatter_trace
from experiments.report.page import EMPTY, Section, render_badge, render_paragraph
from experiments.report.palette import SYMBOLS
from experiments.report.quantities import percent
from experiments.report.tables import Cell, Table, percent_cell, text_cell, value_cell
from fedge.characterisation.reliability import Variability

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
        _build_chart(scope, rows)
        for scope in SCOPE_TITLES
        if (rows := [one for one in variability if one.scope == scope])
    )
    lead = "Variability of repeated settings: each dot is the relative deviation of one measurement from the mean."
    rest = len(variability) - MAX_ROWS
    omitted = f"The {MAX_ROWS} of {len(variability):,} that vary most."
    below = render_paragraph(omitted, "caption") if rest > 0 else EMPTY
    html = build_variability_table(variability).html + below
    return Section("Variability", lead, charts, html, min_width="420px")


def _build_chart(scope: str, variability: Sequence[Variability]) -> Chart:
    by_quantity = {name: [one for one in variability if one.quantity == name] for name in QUANTITY_TITLES}
    frames = [_make_frame(name, scope, rows) for name, rows in by_quantity.items() if rows]
    return menu_chart(scope, f"Deviation {SCOPE_TITLES[scope]}", frames, height_px=300)


def _make_frame(quantity: str, scope: str, variability: Sequence[Variability]) -> ChartFrame:
    drawn = sorted(variability, key=lambda one: -one.spread)[:MAX_LINES]
    boards = sorted({one.board for one in drawn})
    traces = [_make_board_trace(board, place, drawn) for place, board in enumerate(boards)]
    reach = max(0.5, 1.15 * max(abs(value) for trace in traces for value in trace["y"]))
    layout = {
        "xaxis": axis("repeat", dtick=1) if scope == "within" else axis("board", categoryorder="category ascending"),
        # At least +-0.5 %, so that negligible noise does not look large.
        "yaxis": axis("deviation from mean (%)", range=[-reach, reach], zeroline=True, zerolinecolor="#8c959f"),
        "legend": legend_layout(len(boards), boards),
        "showlegend": len(boards) > 1,
        "hovermode": "closest",
    }
    name, count = QUANTITY_TITLES[quantity], len(variability)
    summary = f"{name.capitalize()} varies by at most {percent(drawn[0].spread)} {SCOPE_TITLES[scope]}"
    omitted = f"; the {len(drawn)} of {count:,} settings that vary most" if len(drawn) < count else ""
    return ChartFrame(name, traces, layout, f"{summary}{omitted}")


def _make_board_trace(board: str, place: int, drawn: Sequence[Variability]) -> Trace:
    """Draw each value of a board's settings as its deviation from their mean, in percent."""
    means = [(one, sum(one.values) / len(one.values)) for one in drawn if one.board == board]
    dots = [
        (one, name, 100.0 * (value / mean - 1.0) if mean else 0.0)
        for one, mean in means
        for name, value in zip(one.names, one.values, strict=True)
    ]
    colour, symbol = LINE_COLOURS[place % len(LINE_COLOURS)], SYMBOLS[place % len(SYMBOLS)]
    hover = Markup("{}, {}<br>{}: {:+.2f} %")
    return scatter_trace(
        board,
        [int(name) if name.isdigit() else name for _, name, _ in dots],
        [deviation for *_, deviation in dots],
        marker={"color": colour, "size": 8, "symbol": symbol, "opacity": 0.75},
        hover=[hover.format(one.workload, one.setting, name, deviation) for one, name, deviation in dots],
    )


def build_variability_table(variability: Sequence[Variability]) -> Table:
    """Build the table of the settings that vary most."""
    rows = tuple(
        (
            text_cell("within a board" if one.scope == "within" else "between boards"),
            text_cell(one.board),
            text_cell(one.workload),
            text_cell(QUANTITY_TITLES.get(one.quantity, one.quantity)),
            value_cell(len(one.values)),
            percent_cell(one.cv, 2),
            percent_cell(one.spread, 2),
            Cell(Markup("{} {}").format(render_badge(one.label), one.setting), words=one.setting),
        )
        for one in sorted(variability, key=lambda one: -one.spread)[:MAX_ROWS]
    )
    heads = ("scope", "board", "workload", "quantity", "values", "deviation / mean", "largest − least", "setting")
    return Table("variability", heads, rows)
