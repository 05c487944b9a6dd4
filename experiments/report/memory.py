"""What boards lowered to fit into their memory, and what their training was thought to take and took; pure."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from experiments.report.cells import Cell, Table, badge, measured, swatch, text
from experiments.report.chart import LEGEND, Chart, Section, Trace, axis, marks, round_axis
from experiments.report.palette import ALARM, GREY, colours
from experiments.report.participation import DASHES
from experiments.report.quantities import UNKNOWN, duration, ratio
from experiments.report.runs import Run
from experiments.report.sampling import view_of
from fedge.experiment import boards
from fedge.telemetry.rows import ClientRow

LEAD = (
    "Boards whose memory is too small for the minibatches of the experiment. They train smaller ones, as many samples "
    "in all, or a part of every layer's channels, whose update is put back in its place. How long a smaller step takes "
    "is estimated."
)


def section(run: Run) -> tuple[Section, ...]:
    """The section, where any board lowered anything or ran out of memory."""
    shown = _boards(run)
    if not shown:
        return ()
    return (Section("Memory", LEAD, (_memory(run),), _labels(run) + lowered(run).html),)


def lowered(run: Run) -> Table:
    """Per board and stretch of rounds at one scale: what it trained at, and why."""
    heads = ("board", "rounds", "batch", "width", "predicted", "allowed", "peak", "out of memory", "lost", "why")
    colour = colours(run.devices)
    rows = []
    for board in _boards(run):
        own = [row for row in run.clients if row.board == board and row.batch_size is not None]
        rows += [_row(stretch, colour[run.kinds[board]]) for stretch in _stretches(own)]
    return Table("memory", heads, tuple(rows))


def _stretches(rows: list[ClientRow]) -> list[list[ClientRow]]:
    """Rows of one board that trained at the same scale, one after the other."""
    found: list[list[ClientRow]] = []
    for row in rows:
        if found and (found[-1][-1].batch_size, found[-1][-1].width) == (row.batch_size, row.width):
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _row(stretch: list[ClientRow], colour: str) -> tuple[Cell, ...]:
    first, last = stretch[0], stretch[-1]
    rounds = f"{first.round}" if first is last else f"{first.round} to {last.round}"
    failures, lost_s = sum(row.out_of_memory or 0 for row in stretch), sum(row.lost_s or 0.0 for row in stretch)
    return (
        swatch(colour, first.board),
        text(rounds),
        measured(UNKNOWN if first.batch_size is None else str(first.batch_size), first.batch_size),
        measured(UNKNOWN if first.width is None else f"{first.width:g}", first.width),
        *(_megabytes(value) for value in (first.predicted_memory_mb, first.memory_limit_mb, last.memory_mb)),
        measured(str(failures), failures),
        measured(duration(lost_s), lost_s, "s"),
        text(first.lowered or "as asked"),
    )


def _megabytes(value: float | None) -> Cell:
    return measured(UNKNOWN if value is None else f"{value:,.0f} MB", value, "MB")


def _boards(run: Run) -> tuple[str, ...]:
    told = {row.board for row in run.clients if row.lowered or row.out_of_memory}
    return tuple(board.name for board in boards(run.experiment) if board.name in told)


def _labels(run: Run) -> str:
    """How the predictions of each kind of board came about."""
    told = {}
    for name in dict.fromkeys(board.rpartition("-")[0] for board in _boards(run)):
        label = run.labels.get(name, {}).get("memory", {})
        if label:
            told[name] = f"<b>{escape(name)}</b>: {badge(label.get('label', ''))} {escape(label.get('source', ''))}"
    peaks = "Peaks are the boards' own."
    if run.experiment.backend != "fleet":
        peaks = "Peaks are emulated: the prediction, times a factor of each board's own."
    return f"<p>What a step needs is predicted. {peaks} {'; '.join(told.values())}</p>" if told else ""


def _memory(run: Run) -> Chart:
    """Peak and prediction as shares of what is allowed."""
    data = [
        *_lines(run, "peak", lambda row: _percent(row.memory_mb, row), 2.2),
        *_lines(run, "predicted", lambda row: _percent(row.predicted_memory_mb, row), 0.8),
    ]
    highest = max((y for trace in data for y in trace["y"] if y is not None), default=0.0)
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"color": ALARM, "width": 1.2, "dash": "dot"}}
    layout = {
        "xaxis": round_axis(len(run.rounds)),
        "yaxis": axis("memory (% of what is allowed)", range=[0, 1.08 * max(highest, 100.0)], zerolinecolor=GREY),
        "legend": LEGEND,
        "showlegend": True,
        "shapes": [{**line, "y0": 100.0, "y1": 100.0}],
    }
    caption = (
        "Thick: the peak of a round's training; thin: what it was thought to need before, corrected by what the board "
        "had seen. The red line is all that is allowed. " + view_of(run).note
    )
    return Chart("memory", "Memory against what is allowed", caption, data, layout, 280)


def _percent(value_mb: float | None, row: ClientRow) -> float | None:
    share = ratio(value_mb, row.memory_limit_mb)
    return None if share is None else 100 * share


def _lines(run: Run, name: str, value: Callable[[ClientRow], float | None], width: float) -> list[Trace]:
    colour, shown = colours(run.devices), set(view_of(run).boards)
    return [
        {
            "type": "scatter",
            "mode": marks(len(run.rounds)) if width > 1 else "lines",
            "name": escape(board),
            "legendgroup": escape(board),
            "showlegend": width > 1,
            "x": [row.round for row in run.clients if row.board == board],
            "y": [value(row) for row in run.clients if row.board == board],
            "line": {"color": colour[run.kinds[board]], "width": width, "dash": DASHES[i % len(DASHES)]},
            "hovertemplate": f"{escape(board)}, {name}: %{{y:.3~g}} %<extra></extra>",
        }
        for i, board in enumerate(board for board in _boards(run) if board in shown)
    ]
