"""How much the same setting varies: on a board from repeat to repeat, and between boards of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from experiments.report.cells import Cell, badge, measured, table, text
from experiments.report.characterisation.parts import LINES
from experiments.report.chart import LEGEND, Chart, Section, Trace, axis
from experiments.report.palette import SYMBOLS
from experiments.report.quantities import percent
from fedge.characterisation.judging.variability import Variability

MOST_LINES = 60
"""Settings drawn per picture: those that vary most. Chosen by us, as is the next."""
MOST_ROWS = 12
QUANTITIES = {"e2e_s": "time", "energy_j": "energy"}
NONE = (
    "Every setting was measured once, on one board of its kind: nothing is known of how much it varies. "
    "<code>course.repeats</code> in the plan measures all of it again, and a second board of the kind shows how boards "
    "differ."
)


def section(found: Sequence[Variability]) -> Section:
    """Deviations from the mean, and a table of the settings that vary most."""
    if not found:
        return Section("Variability", NONE, ())
    charts = tuple(
        _chart(scope, field, some)
        for scope in ("within", "between")
        for field in QUANTITIES
        if (some := [one for one in found if (one.scope, one.quantity) == (scope, field)])
    )
    lead = "How far the same setting's figures lie apart: each dot is one figure, as its distance from their mean."
    return Section("Variability", lead, charts, _table(found))


def _chart(scope: str, field: str, found: Sequence[Variability]) -> Chart:
    drawn = sorted(found, key=lambda one: -one.spread)[:MOST_LINES]
    quantity = QUANTITIES[field]
    where = "from repeat to repeat" if scope == "within" else "from board to board of a kind"
    worst = drawn[0]
    title = f"{quantity.capitalize()} varies by {percent(worst.spread)} at most {where}"
    boards = sorted({one.board for one in drawn})
    data = [_dots(board, place, drawn) for place, board in enumerate(boards)]
    low, high = _range(drawn)
    layout = {
        "xaxis": axis("repeat", dtick=1) if scope == "within" else axis("board", categoryorder="category ascending"),
        "yaxis": axis(f"{quantity} off its mean (%)", range=[low, high], zeroline=True, zerolinecolor="#8c959f"),
        "legend": LEGEND,
        "showlegend": len(boards) > 1,
        "hovermode": "closest",
    }
    left = f"The {len(drawn)} of {len(found):,} settings that vary most." if len(drawn) < len(found) else ""
    return Chart(f"{scope}-{field}", title, left, data, layout, 300)


def _range(drawn: Sequence[Variability]) -> tuple[float, float]:
    """Symmetrical, and never so narrow that noise of a hundredth of a percent looks like something."""
    most = max(abs(off) for one in drawn for off in _off(one))
    reach = max(1.15 * most, 0.5)
    return -reach, reach


def _off(one: Variability) -> list[float]:
    """Each figure's distance from the mean, percent of it."""
    mean = sum(one.values) / len(one.values)
    return [100.0 * (value / mean - 1.0) if mean else 0.0 for value in one.values]


def _dots(board: str, place: int, drawn: Sequence[Variability]) -> Trace:
    own = [one for one in drawn if one.board == board]
    colour = LINES[place % len(LINES)]
    return {
        "type": "scatter", "mode": "markers", "name": escape(board),
        "x": [_named(name) for one in own for name in one.names], "y": [off for one in own for off in _off(one)],
        "marker": {"color": colour, "size": 8, "symbol": SYMBOLS[place % len(SYMBOLS)], "opacity": 0.75},
        "hovertext": [
            f"{escape(f'{one.workload}, {one.setting}')}<br>{escape(name)}: {off:+.2f} %"
            for one in own
            for name, off in zip(one.names, _off(one), strict=True)
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _named(name: str) -> int | str:
    """A repeat's number, or a board's name."""
    return int(name) if name.isdigit() else escape(name)


def _table(found: Sequence[Variability]) -> str:
    shown = sorted(found, key=lambda one: -one.spread)[:MOST_ROWS]
    rows = [
        (
            text("within a board" if one.scope == "within" else "between boards"),
            text(one.board),
            text(one.workload),
            text(QUANTITIES.get(one.quantity, one.quantity)),
            measured(str(len(one.values)), len(one.values)),
            measured(percent(one.cv, 2), 100 * one.cv, "%"),
            measured(percent(one.spread, 2), 100 * one.spread, "%"),
            _labelled(one),
        )
        for one in shown
    ]
    heads = ("what", "board", "workload", "quantity", "figures", "deviation / mean", "largest − least", "setting")
    left = (
        f'<p class="caption">The {len(shown)} of {len(found):,} that vary most.</p>' if len(shown) < len(found) else ""
    )
    return table(heads, rows, "variability") + left


def _labelled(one: Variability) -> Cell:
    return Cell(f"{badge(one.label)} {escape(one.setting)}", words=one.setting)
