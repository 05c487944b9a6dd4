"""Inference services during training: latency against the budget, throughput and dropped requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from experiments.report.chart import LEGEND, Chart, Section, Trace, axis, line_mode, round_axis
from experiments.report.html_elements import ReportTable, TableCell, label_badge, swatch_cell, value_cell
from experiments.report.palette import ALARM, GREY, assign_colours
from experiments.report.quantities import UNKNOWN, duration, number, percent, ratio
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.participation_charts import LINE_DASHES
from experiments.report.run.run_sample import sample_run
from fedge.experiment import FleetBoard, list_boards
from fedge.telemetry.store_records import ClientRow

MAX_SERVING_ROWS = 100
"""Rows of the table in the page: those of the last rounds."""
SERVING_LEAD = (
    "What the boards' standing inference services did while the boards worked: every request's time from its arrival "
    "to its answer, against the budget, and what was left for training. While a board fetches, sends and waits it "
    "serves on: that energy is in the round's, but those requests are not counted here."
)


def build_serving_sections(run: LoadedRun) -> tuple[Section, ...]:
    """Build the section, if any board of the run has an inference service."""
    if not _list_serving_rows(run):
        return ()
    table, count = serving_table(run, MAX_SERVING_ROWS), len(_list_serving_rows(run))
    more = f'<p class="caption">The last {MAX_SERVING_ROWS} of {count:,} rows.</p>' if count > MAX_SERVING_ROWS else ""
    return (
        Section(
            "Serving",
            SERVING_LEAD,
            (_latency_chart(run), _violations_chart(run), _throughput_chart(run)),
            _describe_services(run) + table.html + more,
        ),
    )


def serving_table(run: LoadedRun, most: int = 0) -> ReportTable:
    """Build a table of each service's results per round and board.

    Args:
        run: The run.
        most: Maximum number of rows, the latest ones; 0 for all.
    """
    heads = ("round", "board", "requests", "late", "dropped", "budget", "median", "95 %", "99 %", "worst", "batch")
    colour = assign_colours(run.devices)
    rows = tuple(_serving_row(row, colour[run.device_by_board[row.board]]) for row in _list_serving_rows(run)[-most:])
    return ReportTable("serving", (*heads, "share of time", "minibatches/s"), rows)


def _serving_row(row: ClientRow, colour: str) -> tuple[TableCell, ...]:
    budget_s = row.latency_budget_s
    seconds = (row.latency_p50_s, row.latency_p95_s, row.latency_p99_s, row.latency_worst_s)
    return (
        value_cell(str(row.round), row.round),
        swatch_cell(colour, row.board),
        _count_cell(row.requests),
        _count_cell(row.late_requests),
        _count_cell(row.dropped_requests),
        value_cell(duration(budget_s), budget_s, "s"),
        *(_latency_cell(value, budget_s) for value in seconds),
        _count_cell(row.service_batch),
        value_cell(percent(row.service_share), row.service_share),
        value_cell(number(row.train_steps_per_s), row.train_steps_per_s, "1/s"),
    )


def _count_cell(value: int | None) -> TableCell:
    return value_cell(UNKNOWN if value is None else f"{value:,}", value)


def _latency_cell(value_s: float | None, budget_s: float | None) -> TableCell:
    """Build a cell of a latency, highlighted if it exceeds the budget."""
    over = value_s is not None and budget_s is not None and value_s > budget_s
    shown = escape(duration(value_s))
    html = f'<span class="status late">{shown}</span>' if over else shown
    return TableCell(html, numeric=True, value=value_s, unit="s")


def _list_serving_rows(run: LoadedRun) -> list[ClientRow]:
    return [row for row in run.clients if row.requests is not None]


def _list_serving_boards(run: LoadedRun) -> list[FleetBoard]:
    shown = set(sample_run(run).boards)
    return [board for board in list_boards(run.experiment) if board.entry.serving is not None and board.name in shown]


def _describe_services(run: LoadedRun) -> str:
    """Describe the service of each kind of board in words."""
    told = dict[str, str]()
    for board in list_boards(run.experiment):
        spec = board.entry.serving
        if spec is not None:
            name = board.name.rpartition("-")[0]
            how = f"{spec.rate_hz:g} requests a second ({spec.arrivals}) within {duration(spec.latency_s)}"
            label = run.labels.get(name, {}).get("serving", {}).get("label", "")
            told[name] = (
                f"<b>{escape(name)}</b> serves {escape(spec.cost)} {label_badge(label) if label else ''}: {how}"
            )
    played = [row.service_played for row in _list_serving_rows(run) if row.service_played is not None]
    part = ""
    if played and min(played) < 1.0:
        part = (
            " Of rounds with very many requests only the first are played one by one and the rest is taken to go "
            f"likewise (at least {percent(min(played), 0)} were played); late ones are counted in proportion."
        )
    return f"<p>{'; '.join(told.values())}.{part}</p>"


def _latency_chart(run: LoadedRun) -> Chart:
    """Plot the 99th percentile of the latency as a share of the budget, and the median as a thin line."""
    data = [
        *_board_traces(run, "99 %", lambda r: _percent_of_whole(r.latency_p99_s, r.latency_budget_s), 2.2),
        *_board_traces(run, "median", lambda r: _percent_of_whole(r.latency_p50_s, r.latency_budget_s), 0.8),
    ]
    caption = (
        "Thick: the 99th percentile of a round's requests; thin: the median. On the red line the whole budget is used "
        "up. Percentiles are told to 5 %, but over the line only where so many requests were late. "
        + sample_run(run).note
    )
    return _serving_chart(
        run,
        words=("latency", "Latency against the budget", caption),
        data=data,
        unit="latency (% of the budget)",
        limit=100.0,
    )


def _violations_chart(run: LoadedRun) -> Chart:
    data = _board_traces(
        run, "late", lambda r: _percent_of_whole(float(_count_violations(r)), float(r.requests or 0)), 1.8
    )
    caption = "Requests that were answered after the budget, or dropped."
    return _serving_chart(run, words=("late", "Violations", caption), data=data, unit="requests (%)", limit=None)


def _throughput_chart(run: LoadedRun) -> Chart:
    data = _board_traces(run, "training", lambda r: r.train_steps_per_s, 1.8)
    caption = "Minibatches trained per second of work, the service beside them."
    return _serving_chart(
        run, words=("training", "Training throughput", caption), data=data, unit="minibatches/s", limit=None
    )


def _count_violations(row: ClientRow) -> int:
    return (row.late_requests or 0) + (row.dropped_requests or 0)


def _percent_of_whole(part: float | None, whole: float | None) -> float | None:
    share = ratio(part, whole)
    return None if share is None else 100 * share


def _board_traces(run: LoadedRun, name: str, value: Callable[[ClientRow], float | None], width: float) -> list[Trace]:
    """Return one line per board; boards of one kind share a colour and differ in their dashes."""
    colour, rows = assign_colours(run.devices), _list_serving_rows(run)
    return [
        {
            "type": "scatter",
            "mode": line_mode(len(run.rounds)) if width > 1 else "lines",
            "name": escape(board.name),
            "legendgroup": escape(board.name),
            "showlegend": width > 1,
            "x": [row.round for row in rows if row.board == board.name],
            "y": [value(row) for row in rows if row.board == board.name],
            "line": {
                "color": colour[run.device_by_board[board.name]],
                "width": width,
                "dash": LINE_DASHES[i % len(LINE_DASHES)],
            },
            "hovertemplate": f"{escape(board.name)}, {name}: %{{y:.3~g}}<extra></extra>",
        }
        for i, board in enumerate(_list_serving_boards(run))
    ]


def _serving_chart(
    run: LoadedRun, words: tuple[str, str, str], data: Sequence[Trace], unit: str, limit: float | None
) -> Chart:
    """Build a chart.

    Args:
        run: The run.
        words: Key, title and caption.
        data: Plotly traces.
        unit: Title of the vertical axis.
        limit: Value at which a horizontal line is drawn, or None.
    """
    key, title, caption = words
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"color": ALARM, "width": 1.2, "dash": "dot"}}
    highest = max((y for trace in data for y in trace["y"] if y is not None), default=0.0)
    top = 1.08 * max(highest, limit or 0.0) or 1.0
    layout = {
        "xaxis": round_axis(len(run.rounds)),
        "yaxis": axis(unit, range=[0, top], zerolinecolor=GREY),
        "legend": LEGEND,
        "showlegend": True,
        "shapes": [] if limit is None else [{**line, "y0": limit, "y1": limit}],
    }
    return Chart(f"serving-{key}", title=title, caption=caption, data=list(data), layout=layout, height_px=280)
