"""Participation in one run's rounds, and the charge of its batteries."""

from __future__ import annotations

from markupsafe import Markup

from experiments.report.chart import (
    LEGEND,
    Chart,
    Trace,
    axis,
    bar_trace,
    horizontal_line,
    legend_layout,
    line_trace,
    round_axis,
    scatter_trace,
)
from experiments.report.palette import ALARM, COLOURS, GREY, LINE_DASHES, assign_colours
from experiments.report.quantities import UnitScale, time_scale
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_sample import sample_run
from fedge.experiment import FleetBoard, list_boards

OUTCOMES = (("done", COLOURS[0]), ("late", COLOURS[1]), ("cancelled", "#b8c0c9"), ("failed", ALARM))
"""Possible outcomes of a client in a round, with their colours."""


def build_participation_charts(run: LoadedRun) -> tuple[Chart, ...]:
    """Plot the clients' outcomes, unless all clients finish every round, and the batteries."""
    plain = all(row.selected == row.done == len(run.device_by_board) for row in run.rounds)
    counted = () if plain or run.asynchronous else (_outcome_chart(run),)
    return (*counted, *((_battery_chart(run),) if any(row.charge is not None for row in run.clients) else ()))


def _outcome_chart(run: LoadedRun) -> Chart:
    """Plot a stack of the selected clients by outcome per round, below the number of available clients."""
    numbers = [row.round for row in run.rounds]
    stacks: list[Trace] = [
        bar_trace(
            outcome,
            numbers,
            [getattr(row, outcome) for row in run.rounds],
            colour=colour,
            hover=f"round %{{x}}: %{{y}} {outcome}",
        )
        for outcome, colour in OUTCOMES
        if outcome == "done" or any(getattr(row, outcome) for row in run.rounds)
    ]
    if any(row.stale for row in run.rounds):
        stacks.append(_stale_trace(run, numbers))
    if all(row.available is not None for row in run.rounds):
        available = [row.available for row in run.rounds]
        line = {"color": GREY, "width": 1.5, "dash": "dot", "shape": "hvh"}
        hover = "round %{x}: %{y} available"
        stacks.append(scatter_trace("available", numbers, available, mode="lines", line=line, hover=hover))
    layout = {
        "barmode": "stack",
        "xaxis": round_axis(len(numbers)),
        "yaxis": axis("boards", rangemode="tozero"),
        "legend": LEGEND,
        "showlegend": True,
    }
    caption = "Bars: boards selected in the round. Dotted line: boards available."
    title = "Selected boards by outcome"
    return Chart("asked", title, caption, stacks, layout=layout, height_px=280)


def _stale_trace(run: LoadedRun, numbers: list[int]) -> Trace:
    """Mark the late results of earlier rounds that were aggregated in a round."""
    return scatter_trace(
        "late results merged",
        numbers,
        [row.stale or None for row in run.rounds],
        marker={"symbol": "diamond", "size": 9, "color": "white", "line": {"color": GREY, "width": 1.5}},
        hover="round %{x}: %{y} merged",
    )


def _battery_chart(run: LoadedRun) -> Chart:
    """Plot the charge of every battery after its board's rounds, with the levels below which boards pause."""
    view, scale = sample_run(run), time_scale([run.rounds[-1].end_s])
    powered = [board for board in list_boards(run.experiment) if board.entry.battery and board.name in view.boards]
    data = [_battery_trace(run, board, LINE_DASHES[i % len(LINE_DASHES)], scale) for i, board in enumerate(powered)]
    floors = sorted({board.entry.battery.floor for board in powered if board.entry.battery is not None})
    layout = {
        "xaxis": axis(f"fleet clock ({scale.unit})", rangemode="tozero"),
        "yaxis": axis("charge (%)", range=[0, 103]),
        "legend": legend_layout(len(powered), [board.name for board in powered]),
        "showlegend": True,
        "shapes": [horizontal_line(100 * floor, ALARM, width=1) for floor in floors],
    }
    caption = (
        "Marks: ends of the rounds in which the board took part; in between it may idle or charge. "
        "Below the dotted line, its floor, a board is not selected. " + view.note
    )
    return Chart("charge", "Batteries", caption, data, layout=layout, height_px=280)


def _battery_trace(run: LoadedRun, board: FleetBoard, dash: str, scale: UnitScale) -> Trace:
    """Return one board's charge over time, from the start of the run."""
    ends = {row.round: row.end_s for row in run.rounds}
    rows = [row for row in run.clients if row.board == board.name and row.charge is not None]
    times = [row.end_s if run.asynchronous else max(row.end_s, ends[row.round]) for row in rows]
    start = 1.0 if board.entry.battery is None else board.entry.battery.charge
    return line_trace(
        board.name,
        [0.0, *(time / scale.per for time in times)],
        [100 * start, *(100 * row.charge for row in rows if row.charge is not None)],
        colour=assign_colours(run.devices)[run.device_by_board[board.name]],
        width=1.8,
        dash=dash,
        hover=Markup("{}: %{{y:.1f}} %").format(board.name),
    )
