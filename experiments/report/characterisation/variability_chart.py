"""The section of variability: how much one setting varies between repeats on a board, and between boards of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from experiments.report.characterisation.chart_elements import LINE_COLOURS
from experiments.report.chart import LEGEND, Chart, Section, Trace, axis
from experiments.report.html_elements import TableCell, label_badge, render_table, text_cell, value_cell
from experiments.report.palette import SYMBOLS
from experiments.report.quantities import percent
from fedge.characterisation.reliability import Variability

MAX_LINES = 60
"""Settings per chart, those that vary most; with the next constant, a default that keeps the charts readable."""
MAX_ROWS = 12
QUANTITY_TITLES = {"e2e_s": "time", "energy_j": "energy"}
NO_REPEATS_TEXT = (
    "Every setting was measured once, on one board of its kind: nothing is known of how much it varies. "
    "<code>course.repeats</code> in the plan measures all of it again, and a second board of the kind shows how boards "
    "differ."
)


def build_variability_section(found: Sequence[Variability]) -> Section:
    """Build charts of deviations from the mean, and a table of the settings that vary most.

    Args:
        found: All variations.
    """
    if not found:
        return Section("Variability", NO_REPEATS_TEXT, ())
    charts = tuple(
        _build_chart(scope, field, some)
        for scope in ("within", "between")
        for field in QUANTITY_TITLES
        if (some := [one for one in found if (one.scope, one.quantity) == (scope, field)])
    )
    lead = "How far the same setting's figures lie apart: each dot is one figure, as its distance from their mean."
    return Section("Variability", lead, charts, _build_table(found))


def _build_chart(scope: str, field: str, found: Sequence[Variability]) -> Chart:
    drawn = sorted(found, key=lambda one: -one.spread)[:MAX_LINES]
    quantity = QUANTITY_TITLES[field]
    where = "from repeat to repeat" if scope == "within" else "from board to board of a kind"
    worst = drawn[0]
    title = f"{quantity.capitalize()} varies by {percent(worst.spread)} at most {where}"
    boards = sorted({one.board for one in drawn})
    data = [_make_board_trace(board, place, drawn) for place, board in enumerate(boards)]
    low, high = _axis_range(drawn)
    layout = {
        "xaxis": axis("repeat", dtick=1) if scope == "within" else axis("board", categoryorder="category ascending"),
        "yaxis": axis(f"{quantity} off its mean (%)", range=[low, high], zeroline=True, zerolinecolor="#8c959f"),
        "legend": LEGEND,
        "showlegend": len(boards) > 1,
        "hovermode": "closest",
    }
    left = f"The {len(drawn)} of {len(found):,} settings that vary most." if len(drawn) < len(found) else ""
    return Chart(f"{scope}-{field}", title=title, caption=left, data=data, layout=layout, height_px=300)


def _axis_range(drawn: Sequence[Variability]) -> tuple[float, float]:
    """Return a symmetrical range of at least +-0.5 %, so that negligible noise does not look large."""
    most = max(abs(off) for one in drawn for off in _deviations_percent(one))
    reach = max(1.15 * most, 0.5)
    return -reach, reach


def _deviations_percent(one: Variability) -> list[float]:
    """Return each value's deviation from the mean in percent of the mean."""
    mean = sum(one.values) / len(one.values)
    return [100.0 * (value / mean - 1.0) if mean else 0.0 for value in one.values]


def _make_board_trace(board: str, place: int, drawn: Sequence[Variability]) -> Trace:
    own = [one for one in drawn if one.board == board]
    colour = LINE_COLOURS[place % len(LINE_COLOURS)]
    return {
        "type": "scatter", "mode": "markers", "name": escape(board),
        "x": [_to_axis_position(name) for one in own for name in one.names],
        "y": [off for one in own for off in _deviations_percent(one)],
        "marker": {"color": colour, "size": 8, "symbol": SYMBOLS[place % len(SYMBOLS)], "opacity": 0.75},
        "hovertext": [
            f"{escape(f'{one.workload}, {one.setting}')}<br>{escape(name)}: {off:+.2f} %"
            for one in own
            for name, off in zip(one.names, _deviations_percent(one), strict=True)
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _to_axis_position(name: str) -> int | str:
    """Return the number of a repeat, or the name of a board."""
    return int(name) if name.isdigit() else escape(name)


def _build_table(found: Sequence[Variability]) -> str:
    shown = sorted(found, key=lambda one: -one.spread)[:MAX_ROWS]
    rows = [
        (
            text_cell("within a board" if one.scope == "within" else "between boards"),
            text_cell(one.board),
            text_cell(one.workload),
            text_cell(QUANTITY_TITLES.get(one.quantity, one.quantity)),
            value_cell(str(len(one.values)), len(one.values)),
            value_cell(percent(one.cv, 2), 100 * one.cv, "%"),
            value_cell(percent(one.spread, 2), 100 * one.spread, "%"),
            _make_setting_cell(one),
        )
        for one in shown
    ]
    heads = ("what", "board", "workload", "quantity", "figures", "deviation / mean", "largest − least", "setting")
    left = (
        f'<p class="caption">The {len(shown)} of {len(found):,} that vary most.</p>' if len(shown) < len(found) else ""
    )
    return render_table(heads, rows, "variability") + left


def _make_setting_cell(one: Variability) -> TableCell:
    return TableCell(f"{label_badge(one.label)} {escape(one.setting)}", words=one.setting)
