"""One line per board over the rounds; boards of one kind share a colour and differ in their dashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from experiments.report.chart import (
    Chart,
    Trace,
    axis,
    horizontal_line,
    legend_layout,
    line_mode,
    round_axis,
    scatter_trace,
)
from experiments.report.palette import ALARM, GREY, LINE_DASHES, assign_colours
from experiments.report.quantities import ratio
from experiments.report.run.loaded_runs import LoadedRun
from fedge.telemetry.store_records import ClientRow

THIN = 0.8
"""Width of the lines beside a board's main line; they have no markers and no entry in the legend."""


def board_traces(
    run: LoadedRun,
    boards: Sequence[str],
    name: str,
    value: Callable[[ClientRow], float | None],
    *,
    width: float = 1.8,
    unit: str = "",
) -> list[Trace]:
    """Return one line per board.

    Args:
        run: The run.
        boards: The boards' names.
        name: What is drawn, for the hover text.
        value: The value of a row.
        width: Width of the lines; ``THIN`` lines belong to the board's main line.
        unit: Unit, for the hover text.
    """
    colour = assign_colours(run.devices)
    traces = []
    for i, board in enumerate(boards):
        rows = [row for row in run.clients if row.board == board]
        line = {"color": colour[run.device_by_board[board]], "width": width, "dash": LINE_DASHES[i % len(LINE_DASHES)]}
        traces.append(
            scatter_trace(
                board,
                [row.round for row in rows],
                [value(row) for row in rows],
                mode=line_mode(len(run.rounds)) if width > THIN else "lines",
                line=line,
                hover=Markup("{}, {}: %{{y:.3~g}} {}").format(board, name, unit),
                legend=width > THIN,
                legendgroup=f"board-{i}",
            )
        )
    return traces


def board_chart(
    run: LoadedRun, words: tuple[str, str, str], data: Sequence[Trace], unit: str, limit: float | None = None
) -> Chart:
    """Build a chart of such lines.

    Args:
        run: The run.
        words: Key, title and caption.
        data: Plotly traces.
        unit: Title of the vertical axis.
        limit: Value at which a horizontal line is drawn, or None.
    """
    key, title, caption = words
    highest = max((y for trace in data for y in trace["y"] if y is not None), default=0.0)
    names = [trace["name"] for trace in data if trace.get("showlegend", True)]
    layout = {
        "xaxis": round_axis(len(run.rounds)),
        "yaxis": axis(unit, range=[0, 1.08 * max(highest, limit or 0.0) or 1.0], zerolinecolor=GREY),
        "legend": legend_layout(len(names), names),
        "showlegend": True,
        "shapes": [] if limit is None else [horizontal_line(limit, ALARM)],
    }
    return Chart(key, title=title, caption=caption, data=list(data), layout=layout, height_px=280)


def percent_of(part: float | None, whole: float | None) -> float | None:
    """Return ``part`` in percent of ``whole``; None if either is unknown."""
    share = ratio(part, whole)
    return None if share is None else 100 * share
