"""The course of a run's rounds: each client's phases, the straggler, the slack, outcomes, and batteries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from experiments.report.chart import (
    SPANS_IN_VIEW,
    Chart,
    ChartFrame,
    Trace,
    axis,
    bar_trace,
    horizontal_line,
    legend_layout,
    line_trace,
    round_axis,
    row_axis,
    scatter_trace,
    xy_chart,
    xy_layout,
)
from experiments.report.palette import ALARM, COLOURS, EVALUATION, FETCH, GREY, LINE_DASHES, SEND, WAIT, assign_colours
from experiments.report.quantities import UnitScale, duration, energy, time_scale
from experiments.report.run.loaded_runs import LoadedRun, RunSample, sample_run
from fedge.experiment import FleetBoard, list_boards
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EvaluationRow, RoundRow

BAR_WIDTH = 0.72
ROW_PX, FRAME_PX = 24, 120
SYNCHRONOUS = (
    "Dotted lines: start of a round, when boards fetch the model. A round ends when the last required result "
    "arrives. Pale: boards that wait at idle power; the less there is, the better the modes are matched. "
)
ASYNCHRONOUS = (
    "Dotted lines: new models; ★: the result that completed one. Boards do not wait for each other: each fetches "
    "the newest model as soon as it is done. Tasks that are unfinished at the end are shown up to it. "
)
EVALUATED = "Hatched, between two rounds: boards evaluate the new model; the clock waits for the last of them. "
TIMELINE_LEADS = {
    False: "Phases of every board, and the straggler of each round.",
    True: "Phases of every board, and the result that completed each model.",
}
"""Introduction of the timeline, by whether the run is asynchronous."""
ONE_ROUND = (
    "Dashed line: the deadline that the server planned from the boards' offers. Outlined: a board's slack up to it. "
    "★: the straggler. A board that could have used its slack in a cheaper mode spent more energy than necessary."
)
ONE_MODEL = "The tasks that ended while this model was collected; those that began earlier start left of 0."


def build_timeline_charts(run: LoadedRun) -> tuple[Chart, Chart]:
    """Plot all rounds over simulated time, and single rounds with the slack to their deadline."""
    view = sample_run(run)
    return _all_rounds_chart(run, view), _one_round_chart(run, view)


def _all_rounds_chart(run: LoadedRun, view: RunSample) -> Chart:
    scale = time_scale([view.rounds[-1].end_s])
    data = _phase_traces(run, view=view, rows=view.select_rows(run), scale=scale, start=lambda row: row.start_s)
    data += [
        *_evaluation_traces(run, view, scale),
        _straggler_trace(run, view=view, rounds=view.rounds, scale=scale, end=lambda row: row.end_s),
        _round_start_trace(view, scale),
    ]
    ends_s = [row.end_s + (row.evaluation_s or 0.0) for row in view.rounds]
    spans = tuple(
        (str(row.round), row.start_s / scale.per, end_s / scale.per)
        for row, end_s in zip(view.rounds, ends_s, strict=True)
    )
    visible = spans[-SPANS_IN_VIEW:]
    layout = _timeline_layout(view, f"fleet clock ({scale.unit})", (visible[0][1], visible[-1][2]), data)
    evaluated = EVALUATED if any(row.evaluation_s for row in view.rounds) else ""
    caption = (ASYNCHRONOUS if run.asynchronous else SYNCHRONOUS) + evaluated + view.note
    return Chart("timeline", "All rounds", caption, data, layout=layout, height_px=_chart_height_px(view), spans=spans)


def _one_round_chart(run: LoadedRun, view: RunSample) -> Chart:
    rows = view.select_rows(run)
    frames = tuple(_round_frame(run, view, one, [row for row in rows if row.round == one.round]) for one in view.rounds)
    caption = ONE_MODEL if run.asynchronous else ONE_ROUND
    return Chart(
        "round",
        "One round",
        caption,
        frames[-1].data,
        layout=frames[-1].layout,
        height_px=_chart_height_px(view),
        frames=frames,
    )


def _round_frame(run: LoadedRun, view: RunSample, one: RoundRow, rows: Sequence[ClientRow]) -> ChartFrame:
    seconds = UnitScale("s", 1.0)
    data = _phase_traces(run, view=view, rows=rows, scale=seconds, start=lambda row: row.start_s - one.start_s)
    data.append(_straggler_trace(run, view=view, rounds=[one], scale=seconds, end=lambda row: row.round_s))
    if one.deadline_s is not None:
        data += [_slack_trace(view, rows), _deadline_trace(view, one.deadline_s)]
    end_s = max(one.round_s, one.deadline_s or 0.0)
    first_s = min((row.start_s - one.start_s for row in rows), default=0.0)
    layout = _timeline_layout(view, "time since the round's start (s)", (first_s, end_s * 1.03 or 1.0), data)
    planned = "no deadline" if one.deadline_s is None else f"deadline {duration(one.deadline_s)}"
    return ChartFrame(f"Round {one.round}: {duration(one.round_s)}, {planned}", data, layout)


def _phase_traces(
    run: LoadedRun, view: RunSample, rows: Sequence[ClientRow], scale: UnitScale, start: Callable[[ClientRow], float]
) -> list[Trace]:
    """Return the traces of download, work (one colour per kind), upload and waiting; failed clients have their own."""
    alive = [row for row in rows if row.status != "failed" or row.work_s > 0]
    lost = [row for row in rows if row.status == "failed"]
    waited = [row for row in alive if row.status != "failed" or run.asynchronous]
    trace = partial(_phase_trace, view, scale=scale, start=start)
    colour = assign_colours(run.devices)
    traces = [
        trace("fetch", FETCH, alive, phase="fetch"),
        *(
            trace(f"work: {device}", colour[device], [row for row in alive if row.device == device], phase="work")
            for device in run.devices
        ),
        trace("send", SEND, alive, phase="send"),
        trace("wait", WAIT, waited, phase="rest" if run.asynchronous else "wait"),
        trace("failed", "rgba(200,16,46,0.15)", lost, phase="wait", marker={"line": {"color": ALARM, "width": 1}}),
        *(_stop_trace(view, status=status, alive=alive, scale=scale, start=start) for status in STOP_MARKERS),
    ]
    return [one for one in traces if one["x"]]


def _evaluation_traces(run: LoadedRun, view: RunSample, scale: UnitScale) -> list[Trace]:
    """Return bars of the boards' evaluations of the model after a round; none without any."""
    numbers = {row.round for row in view.rounds}
    rows = [row for row in read_rows(run.folder, EvaluationRow) if row.board in view.boards and row.round in numbers]
    hover = Markup("<b>{}</b>, after round {}: evaluation {:.3g} s")
    texts = [hover.format(row.board, row.round, row.end_s - row.start_s) for row in rows]
    spans = [(row.start_s / scale.per, (row.end_s - row.start_s) / scale.per) for row in rows]
    hatched = {"pattern": {"shape": "/", "fgcolor": SEND, "size": 5}}
    boards = [row.board for row in rows]
    return (
        [_span_trace(view, "evaluation", EVALUATION, boards, spans=spans, hover=texts, marker=hatched)] if rows else []
    )


def _span_trace(
    view: RunSample,
    name: str,
    colour: str,
    boards: Iterable[str],
    spans: Sequence[tuple[float, float]],
    hover: Sequence[str],
    **more: Any,
) -> Trace:
    """Return bars in the boards' rows; ``spans`` are their beginnings and lengths."""
    place = {board: i for i, board in enumerate(view.boards)}
    rows, lengths, base = [place[one] for one in boards], [length for _, length in spans], [begin for begin, _ in spans]
    return bar_trace(
        name, rows, lengths, colour=colour, horizontal=True, hover=hover, base=base, width=BAR_WIDTH, **more
    )


def _phase_span(row: ClientRow, phase: str) -> tuple[float, float]:
    """Return a phase's offset from the task's start and its length, in seconds; asynchronous clients may idle first."""
    sent_s = row.down_s + row.work_s + row.up_s
    return {
        "fetch": (0.0, row.down_s),
        "work": (row.down_s, row.work_s),
        "send": (row.down_s + row.work_s, row.up_s),
        "wait": (sent_s, row.wait_s),
        "rest": (-row.wait_s, row.wait_s),
    }[phase]


def _phase_trace(
    view: RunSample,
    name: str,
    colour: str,
    rows: Sequence[ClientRow],
    *,
    scale: UnitScale,
    start: Callable[[ClientRow], float],
    phase: str,
    **more: Any,
) -> Trace:
    phases = [(row, *_phase_span(row, phase)) for row in rows]
    spans = [((start(row) + begin) / scale.per, length / scale.per) for row, begin, length in phases]
    texts = [_hover_text(row, phase, length) for row, _, length in phases]
    return _span_trace(view, name, colour, [row.board for row in rows], spans=spans, hover=texts, **more)


def _hover_text(row: ClientRow, phase: str, length_s: float) -> Markup:
    lines = [Markup("<b>{}</b>, round {}: {} {:.3g} s").format(row.board, row.round, phase, length_s)]
    if row.status != "done":
        lines.append(Markup("{}: {}").format(row.status, row.error or ""))
    if phase == "work" and row.gpu_mhz is not None:
        clocks = f"CPU {row.cpu_mhz:g}, GPU {row.gpu_mhz:g}, memory {row.mem_mhz:g} MHz"
        lines.append(Markup("{} cores, {}").format(row.cores, clocks))
        lines.append(Markup("{} W, {}").format(f"{row.power_w or 0:.3g}", energy(row.work_j)))
        if row.mix_mode is not None:
            mixed = Markup("before that {} of {} steps in {}")
            lines.append(mixed.format(row.mix_steps, row.steps, row.mix_mode))
    return Markup("<br>").join(lines)


STOP_MARKERS: dict[str, dict[str, Any]] = {
    "late": {"symbol": "x", "color": ALARM, "size": 8},
    "cancelled": {"symbol": "line-ns", "size": 11, "line": {"color": "#30363d", "width": 2.5}},
}
"""Markers at the point where unfinished clients stopped, by status."""


def _stop_trace(
    view: RunSample, status: str, alive: Sequence[ClientRow], scale: UnitScale, start: Callable[[ClientRow], float]
) -> Trace:
    rows = [row for row in alive if row.status == status]
    ends = [(start(row) + row.end_s - row.start_s) / scale.per for row in rows]
    return scatter_trace(status, ends, [view.boards.index(row.board) for row in rows], marker=STOP_MARKERS[status])


def _straggler_trace(
    run: LoadedRun, view: RunSample, rounds: Sequence[RoundRow], scale: UnitScale, end: Callable[[RoundRow], float]
) -> Trace:
    """Mark the client that finished a round last; in asynchronous runs, the one whose result completed the model."""
    name, words = ("completed a model", "completed model") if run.asynchronous else ("straggler", "straggler, round")
    marked = [row for row in rounds if row.straggler in view.boards]
    return scatter_trace(
        name,
        [end(row) / scale.per for row in marked],
        [view.boards.index(row.straggler) for row in marked],
        marker={"symbol": "star", "color": ALARM, "size": 10, "line": {"color": "white", "width": 1}},
        hover=[Markup("{} {}: {}").format(words, row.round, row.straggler) for row in marked],
        cliponaxis=False,
    )


def _round_start_trace(view: RunSample, scale: UnitScale) -> Trace:
    """Return a dotted line at the start of each round."""
    low, high = -0.6, len(view.boards) - 0.4
    xs = [row.start_s / scale.per for row in view.rounds]
    return scatter_trace(
        "",
        [x for start in xs for x in (start, start, None)],
        [y for _ in xs for y in (low, high, None)],
        mode="lines",
        line={"color": GREY, "width": 1, "dash": "dot"},
        legend=False,
    )


def _slack_trace(view: RunSample, rows: Sequence[ClientRow]) -> Trace:
    """Return outlined bars from each client's end to the deadline."""
    ends = [
        (row, row.end_s - row.start_s, row.deadline_s)
        for row in rows
        if row.status == "done" and row.deadline_s is not None
    ]
    slack = [(row, end, deadline - end) for row, end, deadline in ends if deadline > end]
    hover = Markup("<b>{}</b>: {:.3g} s of slack to the deadline")
    texts = [hover.format(row.board, length) for row, _, length in slack]
    boards, spans = [row.board for row, _, _ in slack], [(end, length) for _, end, length in slack]
    outlined = {"line": {"color": GREY, "width": 1}}
    return _span_trace(view, "slack", "rgba(0,0,0,0)", boards, spans=spans, hover=texts, marker=outlined)


def _deadline_trace(view: RunSample, deadline_s: float) -> Trace:
    return scatter_trace(
        "deadline",
        [deadline_s, deadline_s],
        [-0.6, len(view.boards) - 0.4],
        mode="lines",
        line={"color": ALARM, "width": 2, "dash": "dash"},
        hover=f"deadline {duration(deadline_s)}",
    )


def _timeline_layout(view: RunSample, title: str, span: tuple[float, float], data: Sequence[Trace]) -> dict[str, Any]:
    return xy_layout(
        axis(title, range=list(span)),
        row_axis(view.boards),
        legend_layout(len(data), [trace["name"] for trace in data], _chart_height_px(view) - FRAME_PX),
        barmode="overlay",
    )


def _chart_height_px(view: RunSample) -> int:
    return FRAME_PX + ROW_PX * max(3, len(view.boards))


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
    return xy_chart(
        "asked",
        "Selected boards by outcome",
        stacks,
        xaxis=round_axis(len(numbers)),
        yaxis=axis("boards", rangemode="tozero"),
        caption="Bars: boards selected in the round. Dotted line: boards available.",
        height_px=280,
        barmode="stack",
        showlegend=True,
    )


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
    caption = (
        "Marks: ends of the rounds in which the board took part; in between it may idle or charge. "
        "Below the dotted line, its floor, a board is not selected. " + view.note
    )
    return xy_chart(
        "charge",
        "Batteries",
        data,
        xaxis=axis(f"fleet clock ({scale.unit})", rangemode="tozero"),
        yaxis=axis("charge (%)", range=[0, 103]),
        caption=caption,
        height_px=280,
        showlegend=True,
        shapes=[horizontal_line(100 * floor, ALARM, width=1) for floor in floors],
    )


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
