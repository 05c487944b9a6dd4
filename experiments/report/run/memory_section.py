"""Memory section of a report: reduced batch sizes and widths, predicted and measured peak memory."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from experiments.report.chart import LEGEND, Chart, Section, Trace, axis, line_mode, round_axis
from experiments.report.html_elements import ReportTable, TableCell, label_badge, swatch_cell, text_cell, value_cell
from experiments.report.palette import ALARM, GREY, assign_colours
from experiments.report.quantities import UNKNOWN, duration, ratio
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.participation_charts import LINE_DASHES
from experiments.report.run.run_sample import sample_run
from fedge.experiment import list_boards
from fedge.telemetry.store_records import ClientRow

MEMORY_LEAD = (
    "Boards whose memory is too small for the minibatches of the experiment. They train smaller ones, as many samples "
    "in all, or a part of every layer's channels, whose update is put back in its place. How long a smaller step takes "
    "is estimated."
)


def build_memory_sections(run: LoadedRun) -> tuple[Section, ...]:
    """Build the section, if any board reduced its settings or ran out of memory."""
    shown = _list_reduced_boards(run)
    if not shown:
        return ()
    return (
        Section(
            "Memory",
            MEMORY_LEAD,
            (_memory_chart(run),),
            _describe_memory_labels(run) + memory_reduction_table(run).html,
        ),
    )


def memory_reduction_table(run: LoadedRun) -> ReportTable:
    """Build a table per board and series of rounds with equal settings: the settings and their reason."""
    heads = ("board", "rounds", "batch", "width", "predicted", "allowed", "peak", "out of memory", "lost", "why")
    colour = assign_colours(run.devices)
    rows = []
    for board in _list_reduced_boards(run):
        own = [row for row in run.clients if row.board == board and row.batch_size is not None]
        rows += [_stretch_row(stretch, colour[run.device_by_board[board]]) for stretch in _split_by_scale(own)]
    return ReportTable("memory", heads, tuple(rows))


def _split_by_scale(rows: list[ClientRow]) -> list[list[ClientRow]]:
    """Split one board's rows into consecutive series with the same batch size and width."""
    found: list[list[ClientRow]] = []
    for row in rows:
        if found and (found[-1][-1].batch_size, found[-1][-1].width) == (row.batch_size, row.width):
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _stretch_row(stretch: list[ClientRow], colour: str) -> tuple[TableCell, ...]:
    first, last = stretch[0], stretch[-1]
    rounds = f"{first.round}" if first is last else f"{first.round} to {last.round}"
    failures, lost_s = sum(row.out_of_memory or 0 for row in stretch), sum(row.lost_s or 0.0 for row in stretch)
    return (
        swatch_cell(colour, first.board),
        text_cell(rounds),
        value_cell(UNKNOWN if first.batch_size is None else str(first.batch_size), first.batch_size),
        value_cell(UNKNOWN if first.width is None else f"{first.width:g}", first.width),
        *(_megabytes_cell(value) for value in (first.predicted_memory_mb, first.memory_limit_mb, last.memory_mb)),
        value_cell(str(failures), failures),
        value_cell(duration(lost_s), lost_s, "s"),
        text_cell(first.lowered or "as asked"),
    )


def _megabytes_cell(value: float | None) -> TableCell:
    return value_cell(UNKNOWN if value is None else f"{value:,.0f} MB", value, "MB")


def _list_reduced_boards(run: LoadedRun) -> tuple[str, ...]:
    told = {row.board for row in run.clients if row.lowered or row.out_of_memory}
    return tuple(board.name for board in list_boards(run.experiment) if board.name in told)


def _describe_memory_labels(run: LoadedRun) -> str:
    """Describe the provenance of the memory predictions per kind of board."""
    told = {}
    for name in dict.fromkeys(board.rpartition("-")[0] for board in _list_reduced_boards(run)):
        label = run.labels.get(name, {}).get("memory", {})
        if label:
            told[name] = (
                f"<b>{escape(name)}</b>: {label_badge(label.get('label', ''))} {escape(label.get('source', ''))}"
            )
    peaks = "Peaks are the boards' own."
    if run.experiment.backend != "fleet":
        peaks = "Peaks are emulated: the prediction, times a factor of each board's own."
    return f"<p>What a step needs is predicted. {peaks} {'; '.join(told.values())}</p>" if told else ""


def _memory_chart(run: LoadedRun) -> Chart:
    """Plot measured and predicted peak memory as shares of the limit."""
    data = [
        *_board_traces(run, "peak", lambda row: _percent_of_limit(row.memory_mb, row), 2.2),
        *_board_traces(run, "predicted", lambda row: _percent_of_limit(row.predicted_memory_mb, row), 0.8),
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
        "had seen. The red line is all that is allowed. " + sample_run(run).note
    )
    return Chart(
        "memory", title="Memory against what is allowed", caption=caption, data=data, layout=layout, height_px=280
    )


def _percent_of_limit(value_mb: float | None, row: ClientRow) -> float | None:
    share = ratio(value_mb, row.memory_limit_mb)
    return None if share is None else 100 * share


def _board_traces(run: LoadedRun, name: str, value: Callable[[ClientRow], float | None], width: float) -> list[Trace]:
    colour, shown = assign_colours(run.devices), set(sample_run(run).boards)
    return [
        {
            "type": "scatter",
            "mode": line_mode(len(run.rounds)) if width > 1 else "lines",
            "name": escape(board),
            "legendgroup": escape(board),
            "showlegend": width > 1,
            "x": [row.round for row in run.clients if row.board == board],
            "y": [value(row) for row in run.clients if row.board == board],
            "line": {
                "color": colour[run.device_by_board[board]],
                "width": width,
                "dash": LINE_DASHES[i % len(LINE_DASHES)],
            },
            "hovertemplate": f"{escape(board)}, {name}: %{{y:.3~g}} %<extra></extra>",
        }
        for i, board in enumerate(board for board in _list_reduced_boards(run) if board in shown)
    ]
