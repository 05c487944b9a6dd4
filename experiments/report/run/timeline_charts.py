"""Timeline of rounds: each client's phases, the straggler, and the slack to the deadline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from experiments.report.chart import LEGEND, Chart, ChartFrame, Trace, axis
from experiments.report.palette import ALARM, FETCH, GREY, SEND, WAIT, assign_colours
from experiments.report.quantities import UnitScale, duration, energy, time_scale
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_sample import RunSample, sample_run
from fedge.telemetry.store_records import ClientRow, RoundRow

BAR_WIDTH = 0.72
ROUNDS_IN_VIEW = 10
"""Number of rounds visible at first."""
ROW_PX, FRAME_PX = 24, 120
SYNCHRONOUS = (
    "Every round begins at a dotted line, when the model is fetched, and ends when the last board that is waited for "
    "has sent its own. Pale stretches are boards that wait at idle power: the less of them, the better the modes fit "
    "together. "
)
ASYNCHRONOUS = (
    "Every dotted line is a new model, and ★ the result that completed it. Nobody waits for anybody: a board fetches "
    "the newest model as soon as it is done. Tasks under way at the end are drawn up to it. "
)
TIMELINE_LEADS = {
    False: "Who worked when, and for whom the others waited.",
    True: "Who worked when, and what made each model.",
}
"""Introduction of the timeline, by whether the run is asynchronous."""
ONE_ROUND = (
    "The dashed line is the deadline the server planned from the boards' offers; the outlined stretch up to it is a "
    "board's slack. ★ marks the straggler. A board that could have worked through its slack in a cheaper mode spent "
    "more energy than the round needed."
)
ONE_MODEL = "The tasks that ended while this model was made; those that had begun before start left of 0."


def build_timeline_charts(run: LoadedRun) -> tuple[Chart, Chart]:
    """Plot all rounds over simulated time, and single rounds with the slack to their deadline."""
    view = sample_run(run)
    return _all_rounds_chart(run, view), _one_round_chart(run, view)


def _all_rounds_chart(run: LoadedRun, view: RunSample) -> Chart:
    scale = time_scale([view.rounds[-1].end_s])
    data = _phase_traces(run, view=view, rows=view.select_rows(run), scale=scale, start=lambda row: row.start_s)
    data += [
        _straggler_trace(run, view=view, rounds=view.rounds, scale=scale, end=lambda row: row.end_s),
        _round_start_trace(view, scale),
    ]
    spans = tuple((str(row.round), row.start_s / scale.per, row.end_s / scale.per) for row in view.rounds)
    shown = spans[-ROUNDS_IN_VIEW:]
    layout = _timeline_layout(view, f"fleet's clock ({scale.unit})", (shown[0][1], shown[-1][2]))
    caption = (ASYNCHRONOUS if run.asynchronous else SYNCHRONOUS) + view.note
    return Chart(
        "timeline",
        title="All rounds",
        caption=caption,
        data=data,
        layout=layout,
        height_px=_chart_height_px(view),
        spans=spans,
    )


def _one_round_chart(run: LoadedRun, view: RunSample) -> Chart:
    rows = view.select_rows(run)
    frames = tuple(_round_frame(run, view, one, [row for row in rows if row.round == one.round]) for one in view.rounds)
    caption = ONE_MODEL if run.asynchronous else ONE_ROUND
    last = frames[-1]
    return Chart(
        "round",
        title="One round",
        caption=caption,
        data=last.data,
        layout=last.layout,
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
    layout = _timeline_layout(view, "time since the round's start (s)", (first_s, end_s * 1.03 or 1.0))
    planned = "no deadline" if one.deadline_s is None else f"deadline {duration(one.deadline_s)}"
    return ChartFrame(f"Round {one.round}: {duration(one.round_s)}, {planned}", data, layout)


def _phase_traces(
    run: LoadedRun, view: RunSample, rows: Sequence[ClientRow], scale: UnitScale, start: Callable[[ClientRow], float]
) -> list[Trace]:
    """Return the traces of download, work (one colour per kind), upload and waiting; failed clients have their own."""
    alive = [row for row in rows if row.status != "failed" or row.work_s > 0]
    colour = assign_colours(run.devices)
    work = [
        _phase_trace(
            view,
            name=f"work: {escape(device)}",
            colour=colour[device],
            rows=[row for row in alive if row.device == device],
            scale=scale,
            start=start,
            phase="work",
        )
        for device in run.devices
    ]
    fetch = _phase_trace(view, name="fetch", colour=FETCH, rows=alive, scale=scale, start=start, phase="fetch")
    send = _phase_trace(view, name="send", colour=SEND, rows=alive, scale=scale, start=start, phase="send")
    waiting = "rest" if run.asynchronous else "wait"
    waited = [row for row in alive if row.status != "failed" or run.asynchronous]
    wait = _phase_trace(view, name="wait", colour=WAIT, rows=waited, scale=scale, start=start, phase=waiting)
    failed = _phase_trace(
        view,
        name="failed",
        colour="rgba(0,0,0,0)",
        rows=[row for row in rows if row.status == "failed"],
        scale=scale,
        start=start,
        phase="wait",
    )
    failed["marker"] = {"color": "rgba(200,16,46,0.15)", "line": {"color": ALARM, "width": 1}}
    late, cancelled = (
        _stop_trace(view, status=status, alive=alive, scale=scale, start=start) for status in ("late", "cancelled")
    )
    return [trace for trace in (fetch, *work, send, wait, failed, late, cancelled) if trace["x"]]


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
    scale: UnitScale,
    start: Callable[[ClientRow], float],
    *,
    phase: str,
) -> Trace:
    place = {board: i for i, board in enumerate(view.boards)}
    spans = [_phase_span(row, phase) for row in rows]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [place[row.board] for row in rows],
        "base": [(start(row) + begin) / scale.per for row, (begin, _) in zip(rows, spans, strict=True)],
        "x": [length / scale.per for _, length in spans],
        "width": BAR_WIDTH,
        "marker": {"color": colour},
        "hovertext": [_hover_text(row, phase, length) for row, (_, length) in zip(rows, spans, strict=True)],
        "hoverinfo": "text",
    }


def _hover_text(row: ClientRow, phase: str, length_s: float) -> str:
    lines = [f"<b>{escape(row.board)}</b>, round {row.round}: {phase} {length_s:.3g} s"]
    if row.status != "done":
        lines.append(f"{row.status}: {escape(row.error or '')}")
    if phase == "work" and row.gpu_mhz is not None:
        lines.append(f"{row.cores} cores, CPU {row.cpu_mhz:g}, GPU {row.gpu_mhz:g}, memory {row.mem_mhz:g} MHz")
        lines.append(f"{row.power_w or 0:.3g} W, {energy(row.work_j)}")
        if row.mix_mode is not None:
            lines.append(f"before that {row.mix_steps} of {row.steps} minibatches in {escape(row.mix_mode)}")
    return "<br>".join(lines)


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
    return {
        "type": "scatter",
        "mode": "markers",
        "name": status,
        "x": ends,
        "y": [view.boards.index(row.board) for row in rows],
        "marker": STOP_MARKERS[status],
        "hoverinfo": "skip",
    }


def _straggler_trace(
    run: LoadedRun, view: RunSample, rounds: Sequence[RoundRow], scale: UnitScale, end: Callable[[RoundRow], float]
) -> Trace:
    """Mark the client that finished a round last; in asynchronous runs, the one whose result completed the model."""
    name, told = ("completed a model", "completed model") if run.asynchronous else ("straggler", "straggler of round")
    shown = [row for row in rounds if row.straggler in view.boards]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [end(row) / scale.per for row in shown],
        "y": [view.boards.index(row.straggler) for row in shown],
        "marker": {"symbol": "star", "color": ALARM, "size": 10, "line": {"color": "white", "width": 1}},
        "hovertext": [f"{told} {row.round}: {escape(row.straggler)}" for row in shown],
        "hoverinfo": "text",
        "cliponaxis": False,
    }


def _round_start_trace(view: RunSample, scale: UnitScale) -> Trace:
    """Return a dotted line at the start of each round."""
    low, high = -0.6, len(view.boards) - 0.4
    xs = [row.start_s / scale.per for row in view.rounds]
    return {
        "type": "scatter",
        "mode": "lines",
        "showlegend": False,
        "x": [x for start in xs for x in (start, start, None)],
        "y": [y for _ in xs for y in (low, high, None)],
        "line": {"color": GREY, "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }


def _slack_trace(view: RunSample, rows: Sequence[ClientRow]) -> Trace:
    """Return outlined bars from each client's end to the deadline."""
    ends = [
        (row, row.end_s - row.start_s, row.deadline_s)
        for row in rows
        if row.status == "done" and row.deadline_s is not None
    ]
    slack = [(row, end, deadline - end) for row, end, deadline in ends if deadline > end]
    return {
        "type": "bar",
        "orientation": "h",
        "name": "slack",
        "y": [view.boards.index(row.board) for row, _, _ in slack],
        "base": [end for _, end, _ in slack],
        "x": [length for _, _, length in slack],
        "width": BAR_WIDTH,
        "marker": {"color": "rgba(0,0,0,0)", "line": {"color": GREY, "width": 1}},
        "hovertext": [
            f"<b>{escape(row.board)}</b>: {length:.3g} s of slack to the deadline" for row, _, length in slack
        ],
        "hoverinfo": "text",
    }


def _deadline_trace(view: RunSample, deadline_s: float) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "deadline",
        "x": [deadline_s, deadline_s],
        "y": [-0.6, len(view.boards) - 0.4],
        "line": {"color": ALARM, "width": 2, "dash": "dash"},
        "hovertext": f"deadline {duration(deadline_s)}",
        "hoverinfo": "text",
    }


def _timeline_layout(view: RunSample, title: str, span: tuple[float, float]) -> dict[str, Any]:
    count = len(view.boards)
    return {
        "barmode": "overlay",
        "xaxis": axis(title, range=list(span)),
        "yaxis": {
            "tickvals": list(range(count)),
            "ticktext": [escape(board) for board in view.boards],
            "range": [count - 0.4, -0.6],
            "showgrid": False,
            "fixedrange": True,
        },
        "legend": LEGEND,
        "hovermode": "closest",
    }


def _chart_height_px(view: RunSample) -> int:
    return FRAME_PX + ROW_PX * max(3, len(view.boards))
