"""The course of a run's rounds: each client's phases, the straggler, the slack, outcomes, and batteries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import ALARM, COLOURS, GREY, Chart, ChartFrame, Trace, axis, scatter_trace
from experiments.report.quantities import duration, energy, time_scale
from experiments.report.run.loaded_runs import LoadedRun, RunSample, sample_run
from fedge.experiment import list_boards
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
ONE_ROUND = (
    "Dashed line: the deadline that the server planned from the boards' offers. Outlined: a board's slack up to it. "
    "★: the straggler. A board that could have used its slack in a cheaper mode spent more energy than necessary."
)
ONE_MODEL = "The tasks that ended while this model was collected; those that began earlier start left of 0."
STOP_MARKERS: dict[str, dict[str, Any]] = {
    "late": {"symbol": "x", "color": ALARM, "size": 8},
    "cancelled": {"symbol": "line-ns", "size": 11, "line": {"color": "#30363d", "width": 2.5}},
}
"""Markers at the point where unfinished clients stopped, by status."""
Bar = tuple[str, float, float, str]
"""Board, beginning and length in seconds of simulated time, hover text."""


@dataclass(frozen=True, slots=True)
class _Timeline:
    """Boards in rows over time, which counts from ``origin_s`` in units of ``per`` seconds."""

    run: LoadedRun
    view: RunSample
    per: float = 1.0
    origin_s: float = 0.0

    @property
    def height_px(self) -> int:
        return FRAME_PX + ROW_PX * max(3, len(self.view.boards))

    @property
    def rows_range(self) -> tuple[float, float]:
        """Ends of a vertical line through all rows."""
        return -0.6, len(self.view.boards) - 0.4

    def place(self, board: str | None) -> int:
        return self.view.boards.index(board or "")

    def draw_bars(self, name: str, colour: str, bars: Iterable[Bar], **more: Any) -> Trace:
        found = list(bars)
        return chart.bar_trace(
            name,
            of=found,
            labels=lambda bar: self.place(bar[0]),
            values=lambda bar: bar[2] / self.per,
            base=[(begin_s - self.origin_s) / self.per for _, begin_s, _, _ in found],
            hover=lambda bar: bar[3],
            colour=colour,
            horizontal=True,
            width=BAR_WIDTH,
            **more,
        )

    def draw_phases(self, rows: Sequence[ClientRow]) -> list[Trace]:
        """Return the traces of download, work (one colour per kind), upload and waiting, and of failed clients."""
        alive = [row for row in rows if row.status != "failed" or row.work_s > 0]
        lost = [row for row in rows if row.status == "failed"]
        waited = [row for row in alive if row.status != "failed" or self.run.asynchronous]
        work = ((f"work: {device}", style.colour, device) for device, style in self.run.styles.items())
        outlined = {"line": {"color": ALARM, "width": 1}}
        traces = [
            self.draw_bars("fetch", chart.FETCH, _list_phases(alive, "fetch")),
            *(
                self.draw_bars(name, colour, _list_phases([row for row in alive if row.device == device], "work"))
                for name, colour, device in work
            ),
            self.draw_bars("send", chart.SEND, _list_phases(alive, "send")),
            self.draw_bars("wait", chart.WAIT, _list_phases(waited, "rest" if self.run.asynchronous else "wait")),
            self.draw_bars("failed", "rgba(200,16,46,0.15)", _list_phases(lost, "wait"), marker=outlined),
            *(
                scatter_trace(
                    status,
                    of=[row for row in alive if row.status == status],
                    x=lambda row: (row.end_s - self.origin_s) / self.per,
                    y=lambda row: self.place(row.board),
                    marker=marker,
                )
                for status, marker in STOP_MARKERS.items()
            ),
        ]
        return [trace for trace in traces if trace["x"]]

    def draw_stragglers(self, ends: Sequence[tuple[RoundRow, float]]) -> Trace:
        """Mark the client that finished a round last; in asynchronous runs, the one that completed the model."""
        name, words = ("straggler", "straggler, round")
        if self.run.asynchronous:
            name, words = "completed a model", "completed model"
        return scatter_trace(
            name,
            of=[(row, end_s) for row, end_s in ends if row.straggler in self.view.boards],
            x=lambda end: end[1] / self.per,
            y=lambda end: self.place(end[0].straggler),
            marker={"symbol": "star", "color": ALARM, "size": 10, "line": {"color": "white", "width": 1}},
            hover=lambda end: Markup("{} {}: {}").format(words, end[0].round, end[0].straggler),
            cliponaxis=False,
        )

    def build_layout(self, title: str, span: tuple[float, float], data: Sequence[Trace]) -> dict[str, Any]:
        names = [trace["name"] for trace in data]
        legend = chart.legend_layout(len(data), names, self.height_px - FRAME_PX)
        rows = chart.row_axis(self.view.boards)
        return chart.xy_layout(axis(title, range=list(span)), rows, legend, barmode="overlay")


def build_timeline_charts(run: LoadedRun) -> tuple[Chart, Chart]:
    """Plot all rounds over simulated time, and single rounds with the slack to their deadline."""
    view = sample_run(run)
    rows, line = view.select_rows(run), _Timeline(run, view)
    frames = [_round_frame(run, view, one, [row for row in rows if row.round == one.round]) for one in view.rounds]
    caption = ONE_MODEL if run.asynchronous else ONE_ROUND
    single = chart.frame_chart("round", "One round", frames, caption=caption, height_px=line.height_px, menu="")
    return _all_rounds_chart(run, view, rows), single


def _all_rounds_chart(run: LoadedRun, view: RunSample, rows: Sequence[ClientRow]) -> Chart:
    scale = time_scale([view.rounds[-1].end_s])
    line = _Timeline(run, view, scale.per)
    starts = [row.start_s / scale.per for row in view.rounds]
    data = [
        *line.draw_phases(rows),
        *_evaluation_traces(line),
        line.draw_stragglers([(row, row.end_s) for row in view.rounds]),
        scatter_trace(
            "",
            [x for start in starts for x in (start, start, None)],
            [y for _ in starts for y in (*line.rows_range, None)],
            mode="lines",
            line={"color": GREY, "width": 1, "dash": "dot"},
            legend=False,
        ),
    ]
    spans = tuple(
        (str(row.round), row.start_s / scale.per, (row.end_s + (row.evaluation_s or 0.0)) / scale.per)
        for row in view.rounds
    )
    visible = spans[-chart.SPANS_IN_VIEW :]
    layout = line.build_layout(f"fleet clock ({scale.unit})", (visible[0][1], visible[-1][2]), data)
    evaluated = EVALUATED if any(row.evaluation_s for row in view.rounds) else ""
    caption = (ASYNCHRONOUS if run.asynchronous else SYNCHRONOUS) + evaluated + view.note
    return Chart("timeline", "Rounds over time", caption, data, layout=layout, height_px=line.height_px, spans=spans)


def _round_frame(run: LoadedRun, view: RunSample, one: RoundRow, rows: Sequence[ClientRow]) -> ChartFrame:
    line = _Timeline(run, view, origin_s=one.start_s)
    data = [*line.draw_phases(rows), line.draw_stragglers([(one, one.round_s)])]
    planned = "no deadline"
    if one.deadline_s is not None:
        planned = f"deadline {duration(one.deadline_s)}"
        data += [
            _slack_trace(_Timeline(run, view), rows),
            scatter_trace(
                "deadline",
                [one.deadline_s, one.deadline_s],
                line.rows_range,
                mode="lines",
                line={"color": ALARM, "width": 2, "dash": "dash"},
                hover=planned,
            ),
        ]
    end_s = max(one.round_s, one.deadline_s or 0.0)
    first_s = min((row.start_s - one.start_s for row in rows), default=0.0)
    layout = line.build_layout("time since the round's start (s)", (first_s, end_s * 1.03 or 1.0), data)
    return ChartFrame(f"Round {one.round}: {duration(one.round_s)}, {planned}", data, layout)


def _evaluation_traces(line: _Timeline) -> list[Trace]:
    run, view, numbers = line.run, line.view, {row.round for row in line.view.rounds}
    hover = Markup("<b>{}</b>, after round {}: evaluation {:.3g} s")
    bars = [
        (row.board, row.start_s, row.end_s - row.start_s, hover.format(row.board, row.round, row.end_s - row.start_s))
        for row in read_rows(run.folder, EvaluationRow)
        if row.board in view.boards and row.round in numbers
    ]
    hatched = {"pattern": {"shape": "/", "fgcolor": chart.SEND, "size": 5}}
    return [line.draw_bars("evaluation", chart.EVALUATION, bars, marker=hatched)] if bars else []


def _list_phases(rows: Sequence[ClientRow], phase: str) -> Iterator[Bar]:
    """Yield the bars of one phase; asynchronous clients may idle (``rest``) before they start."""
    for row in rows:
        sent_s = row.down_s + row.work_s + row.up_s
        offset_s, length_s = {
            "fetch": (0.0, row.down_s),
            "work": (row.down_s, row.work_s),
            "send": (row.down_s + row.work_s, row.up_s),
            "wait": (sent_s, row.wait_s),
            "rest": (-row.wait_s, row.wait_s),
        }[phase]
        yield row.board, row.start_s + offset_s, length_s, _hover_text(row, phase, length_s)


def _hover_text(row: ClientRow, phase: str, length_s: float) -> str:
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


def _slack_trace(line: _Timeline, rows: Sequence[ClientRow]) -> Trace:
    """Return outlined bars from each client's end to the deadline, both since its start."""
    hover = Markup("<b>{}</b>: {:.3g} s of slack to the deadline")
    ends = [
        (row.board, row.end_s - row.start_s, row.deadline_s)
        for row in rows
        if row.status == "done" and row.deadline_s is not None
    ]
    bars = [
        (board, end_s, deadline_s - end_s, hover.format(board, deadline_s - end_s))
        for board, end_s, deadline_s in ends
        if deadline_s > end_s
    ]
    return line.draw_bars("slack", "rgba(0,0,0,0)", bars, marker={"line": {"color": GREY, "width": 1}})


OUTCOMES = (("done", COLOURS[0]), ("late", COLOURS[1]), ("cancelled", "#b8c0c9"), ("failed", ALARM))
"""Possible outcomes of a client in a round, with their colours."""


def build_participation_charts(run: LoadedRun) -> Iterator[Chart]:
    """Plot the clients' outcomes, unless all clients finish every round, and the batteries."""
    plain = all(row.selected == row.done == len(run.device_by_board) for row in run.rounds)
    if not plain and not run.asynchronous:
        yield _outcome_chart(run)
    if any(row.charge is not None for row in run.clients):
        yield _battery_chart(run)


def _outcome_chart(run: LoadedRun) -> Chart:
    numbers = [row.round for row in run.rounds]
    counts = {outcome: [getattr(row, outcome) for row in run.rounds] for outcome, _ in OUTCOMES}
    stacks: list[Trace] = [
        chart.bar_trace(outcome, numbers, counts[outcome], colour=colour, hover=f"round %{{x}}: %{{y}} {outcome}")
        for outcome, colour in OUTCOMES
        if outcome == "done" or any(counts[outcome])
    ]
    if any(row.stale for row in run.rounds):
        stacks.append(
            scatter_trace(
                "late results merged",
                numbers,
                [row.stale or None for row in run.rounds],
                marker={"symbol": "diamond", "size": 9, "color": "white", "line": {"color": GREY, "width": 1.5}},
                hover="round %{x}: %{y} merged",
            )
        )
    available = [row.available for row in run.rounds]
    if None not in available:
        line = {"color": GREY, "width": 1.5, "dash": "dot", "shape": "hvh"}
        hover = "round %{x}: %{y} available"
        stacks.append(scatter_trace("available", numbers, available, mode="lines", line=line, hover=hover))
    return chart.xy_chart(
        "asked",
        "Selected boards by outcome",
        stacks,
        xaxis=chart.round_axis(len(numbers)),
        yaxis=axis("boards", rangemode="tozero"),
        caption="Bars: boards selected in the round. Dotted line: boards available.",
        height_px=280,
        barmode="stack",
        showlegend=True,
    )


def _battery_chart(run: LoadedRun) -> Chart:
    view, scale = sample_run(run), time_scale([run.rounds[-1].end_s])
    powered = {
        board.name: board.entry.battery
        for board in list_boards(run.experiment)
        if board.entry.battery and board.name in view.boards
    }
    ends = {row.round: row.end_s for row in run.rounds}
    data = []
    for i, (board, battery) in enumerate(powered.items()):
        rows = [row for row in run.clients if row.board == board and row.charge is not None]
        times = [row.end_s if run.asynchronous else max(row.end_s, ends[row.round]) for row in rows]
        data.append(
            chart.line_trace(
                board,
                [0.0, *(time / scale.per for time in times)],
                [100 * battery.charge, *(100 * row.charge for row in rows if row.charge is not None)],
                colour=run.style_of(board).colour,
                width=1.8,
                dash=chart.LINE_DASHES[i % len(chart.LINE_DASHES)],
                hover=Markup("{}: %{{y:.1f}} %").format(board),
            )
        )
    caption = (
        "Marks: ends of the rounds in which the board took part; in between it may idle or charge. "
        "Below the dotted line, its floor, a board is not selected. " + view.note
    )
    floors = sorted({battery.floor for battery in powered.values()})
    return chart.xy_chart(
        "charge",
        "Batteries",
        data,
        xaxis=axis(f"fleet clock ({scale.unit})", rangemode="tozero"),
        yaxis=axis("charge (%)", range=[0, 103]),
        caption=caption,
        height_px=280,
        showlegend=True,
        shapes=[chart.horizontal_line(100 * floor, ALARM, width=1) for floor in floors],
    )
