"""Participation in one run's rounds, and the charge of its batteries."""

from __future__ import annotations

from html import escape

from experiments.report.chart import LEGEND, Chart, Trace, axis, line_mode
from experiments.report.palette import ALARM, COLOURS, GREY, assign_colours
from experiments.report.quantities import UnitScale, time_scale
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_sample import sample_run
from fedge.experiment import FleetBoard, list_boards

OUTCOMES = (("done", COLOURS[0]), ("late", COLOURS[1]), ("cancelled", "#b8c0c9"), ("failed", ALARM))
"""Possible outcomes of a client in a round, with their colours."""
LINE_DASHES = ("solid", "dash", "dot", "dashdot")
"""Dash patterns by board, because boards of one kind share a colour."""


def build_participation_charts(run: LoadedRun) -> tuple[Chart, ...]:
    """Plot the clients' outcomes, unless all clients finish every round, and the batteries."""
    plain = all(row.selected == row.done == len(run.device_by_board) for row in run.rounds)
    counted = () if plain or run.asynchronous else (_outcome_chart(run),)
    return (*counted, *((_battery_chart(run),) if any(row.charge is not None for row in run.clients) else ()))


def _outcome_chart(run: LoadedRun) -> Chart:
    """Plot a stack of the selected clients by outcome per round, below the number of available clients."""
    numbers = [row.round for row in run.rounds]
    stacks: list[Trace] = [
        {
            "type": "bar",
            "name": fate,
            "x": numbers,
            "y": [getattr(row, fate) for row in run.rounds],
            "marker": {"color": colour},
            "hovertemplate": f"round %{{x}}: %{{y}} {fate}<extra></extra>",
        }
        for fate, colour in OUTCOMES
        if fate == "done" or any(getattr(row, fate) for row in run.rounds)
    ]
    if any(row.stale for row in run.rounds):
        stacks.append(_stale_trace(run, numbers))
    if all(row.available is not None for row in run.rounds):
        line = {"color": GREY, "width": 1.5, "dash": "dot", "shape": "hvh"}
        available = {"x": numbers, "y": [row.available for row in run.rounds]}
        stacks.append({"type": "scatter", "mode": "lines", "name": "could be asked", **available, "line": line})
    layout = {
        "barmode": "stack",
        "xaxis": axis("round"),
        "yaxis": axis("boards", rangemode="tozero"),
        "legend": LEGEND,
        "showlegend": True,
    }
    caption = "A bar is as high as the number of boards asked in the round. The dotted line is how many could be asked."
    return Chart(
        "asked",
        title="Boards asked, and what became of them",
        caption=caption,
        data=stacks,
        layout=layout,
        height_px=280,
    )


def _stale_trace(run: LoadedRun, numbers: list[int]) -> Trace:
    """Mark the late results of earlier rounds that were aggregated in a round."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "late results that joined",
        "x": numbers,
        "y": [row.stale or None for row in run.rounds],
        "marker": {"symbol": "diamond", "size": 9, "color": "white", "line": {"color": GREY, "width": 1.5}},
        "hovertemplate": "round %{x}: %{y} joined<extra></extra>",
    }


def _battery_chart(run: LoadedRun) -> Chart:
    """Plot the charge of every battery after its board's rounds, with the levels below which boards pause."""
    view, scale = sample_run(run), time_scale([run.rounds[-1].end_s])
    powered = [board for board in list_boards(run.experiment) if board.entry.battery and board.name in view.boards]
    data = [_battery_trace(run, board, LINE_DASHES[i % len(LINE_DASHES)], scale) for i, board in enumerate(powered)]
    floors = sorted({board.entry.battery.floor for board in powered if board.entry.battery is not None})
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"color": ALARM, "width": 1, "dash": "dot"}}
    layout = {
        "xaxis": axis(f"fleet's clock ({scale.unit})", rangemode="tozero"),
        "yaxis": axis("charge (%)", range=[0, 103]),
        "legend": LEGEND,
        "showlegend": True,
        "shapes": [{**line, "y0": 100 * floor, "y1": 100 * floor} for floor in floors],
    }
    caption = (
        "A mark is the end of a round that the board took part in; between two marks it may have rested or charged. "
        "Below the dotted line, its floor, a board is not asked. " + view.note
    )
    return Chart("charge", title="Batteries", caption=caption, data=data, layout=layout, height_px=280)


def _battery_trace(run: LoadedRun, board: FleetBoard, dash: str, scale: UnitScale) -> Trace:
    """Return one board's charge over time, from the start of the run."""
    ends = {row.round: row.end_s for row in run.rounds}
    told = [row for row in run.clients if row.board == board.name and row.charge is not None]
    times = [row.end_s if run.asynchronous else max(row.end_s, ends[row.round]) for row in told]
    start = 1.0 if board.entry.battery is None else board.entry.battery.charge
    return {
        "type": "scatter",
        "mode": line_mode(len(told)),
        "name": escape(board.name),
        "x": [0.0, *(time / scale.per for time in times)],
        "y": [100 * start, *(100 * row.charge for row in told if row.charge is not None)],
        "line": {"color": assign_colours(run.devices)[run.device_by_board[board.name]], "width": 1.8, "dash": dash},
        "hovertemplate": f"{escape(board.name)}: %{{y:.1f}} %<extra></extra>",
    }
