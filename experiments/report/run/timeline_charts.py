"""Timeline of rounds: each client's phases, the straggler, and the slack to the deadline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    legend_layout,
    row_axis,
    scatter_trace,
    xy_layout,
)
from experiments.report.palette import ALARM, EVALUATION, FETCH, GREY, SEND, WAIT, assign_colours
from experiments.report.quantities import UnitScale, duration, energy, time_scale
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_sample import RunSample, sample_run
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
    last = frames[-1]
    return Chart(
        "round", "One round", caption, last.data, layout=last.layout, height_px=_chart_height_px(view), frames=frames
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
    return (
        [
            bar_trace(
                "evaluation",
                [view.boards.index(row.board) for row in rows],
                [(row.end_s - row.start_s) / scale.per for row in rows],
                colour=EVALUATION,
                horizontal=True,
                hover=[hover.format(row.board, row.round, row.end_s - row.start_s) for row in rows],
                base=[row.start_s / scale.per for row in rows],
                width=BAR_WIDTH,
                marker={"pattern": {"shape": "/", "fgcolor": SEND, "size": 5}},
            )
        ]
        if rows
        else []
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
    place = {board: i for i, board in enumerate(view.boards)}
    spans = [_phase_span(row, phase) for row in rows]
    return bar_trace(
        name,
        [place[row.board] for row in rows],
        [length / scale.per for _, length in spans],
        colour=colour,
        horizontal=True,
        hover=[_hover_text(row, phase, length) for row, (_, length) in zip(rows, spans, strict=True)],
        base=[(start(row) + begin) / scale.per for row, (begin, _) in zip(rows, spans, strict=True)],
        width=BAR_WIDTH,
        **more,
    )


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
    return bar_trace(
        "slack",
        [view.boards.index(row.board) for row, _, _ in slack],
        [length for _, _, length in slack],
        colour="rgba(0,0,0,0)",
        horizontal=True,
        hover=[hover.format(row.board, length) for row, _, length in slack],
        base=[end for _, end, _ in slack],
        width=BAR_WIDTH,
        marker={"line": {"color": GREY, "width": 1}},
    )


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
