"""Sections on what boards held: their power modes, latencies of services during training, reduced memory settings."""

from __future__ import annotations

import operator
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup

from experiments.report.chart import (
    CATEGORY_AXIS,
    Chart,
    Trace,
    axis,
    heatmap_trace,
    horizontal_line,
    line_mode,
    round_axis,
    scatter_trace,
    xy_chart,
)
from experiments.report.page import EMPTY, Section, render_badge, render_paragraph
from experiments.report.palette import ALARM, GREY, LINE_DASHES, SHARE_COLOURS, assign_colours
from experiments.report.quantities import duration, number, percent, ratio
from experiments.report.run.loaded_runs import LoadedRun, sample_run
from experiments.report.tables import Cell, Column, Table, build_table, number_cell, swatch_cell, text_cell, value_cell
from fedge.devices import catalogue
from fedge.errors import FedgeError
from fedge.experiment import list_boards
from fedge.telemetry.store_records import ClientRow

KNOB_TITLES = (
    ("cores", "CPU cores", ""),
    ("cpu_mhz", "CPU clock", " MHz"),
    ("gpu_mhz", "GPU clock", " MHz"),
    ("mem_mhz", "Memory clock", " MHz"),
)
MAX_LABELLED_ROUNDS = 12
"""Number of rounds up to which a heatmap's cells show their value."""


def build_mode_charts(run: LoadedRun) -> tuple[Chart, ...]:
    """Plot one heatmap (boards by rounds) per knob as a share of its maximum, and one of the second mode's share.

    If a board completed several tasks for one model version, the last one counts.
    """
    view = sample_run(run)
    rows = {(row.board, row.round): row for row in view.select_rows(run)}
    numbers = [row.round for row in view.rounds]
    charts = []
    mixed = {(board, number): _describe_mix(row) for (board, number), row in rows.items()}
    for knob, title, unit in KNOB_TITLES:
        top = _knob_maxima(run, knob)
        cells = [[getattr(rows.get((board, n)), knob, None) for n in numbers] for board in view.boards]
        tops = [top[run.device_by_board[board]] for board in view.boards]
        trace = _heatmap_trace(run, view.boards, numbers, cells, tops=tops, unit=unit)
        trace["hovertext"] = [
            [text + mixed.get((board, number), Markup()) for number, text in zip(numbers, line, strict=True)]
            for board, line in zip(view.boards, trace["hovertext"], strict=True)
        ]
        charts.append(_heatmap_chart(f"modes-{knob}", title, trace, len(view.boards)))
    if any(mixed.values()):
        shares = [[_mix_percent(rows.get((board, number))) for number in numbers] for board in view.boards]
        trace = _heatmap_trace(run, view.boards, numbers, shares, tops=[100.0] * len(view.boards), unit=" %")
        caption = "Share of a round's steps, in percent, that ran first in a second, slower mode."
        charts.append(_heatmap_chart("modes-mix", "Second mode", trace, len(view.boards), caption=caption))
    return tuple(charts)


def _heatmap_chart(key: str, title: str, trace: Trace, boards: int, caption: str = "") -> Chart:
    along, up = axis("round", type="category", showgrid=False, nticks=12), {**CATEGORY_AXIS, "dtick": 1}
    height_px = 66 + 24 * max(3, boards)
    return Chart(
        key, title, caption, [trace], layout={"xaxis": along, "yaxis": up, "margin": {"t": 8}}, height_px=height_px
    )


def _describe_mix(row: ClientRow) -> Markup:
    if row.mix_mode is None:
        return Markup()
    return Markup("<br>{} of {} minibatches first in {}").format(row.mix_steps, row.steps, row.mix_mode)


def _mix_percent(row: ClientRow | None) -> float | None:
    """Return the percentage of steps in the second mode; None for a board that did not train."""
    return None if row is None or row.cores is None or not row.steps else 100.0 * (row.mix_steps or 0) / row.steps


def _knob_maxima(run: LoadedRun, knob: str) -> dict[str, float]:
    """Return the knob's maximum per kind of board: the catalogue's, otherwise the largest observed value."""
    tops = {}
    for device in run.devices:
        observed = [value for row in run.clients if row.device == device and (value := getattr(row, knob)) is not None]
        try:
            maxn = catalogue.find(device).maxn
        except FedgeError:
            tops[device] = max(observed, default=1.0)
        else:
            tops[device] = float(getattr(maxn, knob))
    return tops


def _heatmap_trace(
    run: LoadedRun,
    boards: Sequence[str],
    numbers: Sequence[int],
    cells: Sequence[Sequence[float | None]],
    tops: Sequence[float],
    unit: str,
) -> Trace:
    shares = [[None if v is None else v / top for v in line] for line, top in zip(cells, tops, strict=True)]
    hover = [
        [
            Markup("{} ({}), round {}: {}").format(
                board,
                run.device_by_board[board],
                number,
                "unknown" if v is None else f"{v:g}{unit} of {top:g}{unit}, {100 * v / top:.0f} %",
            )
            for number, v in zip(numbers, line, strict=True)
        ]
        for board, line, top in zip(boards, cells, tops, strict=True)
    ]
    labelled = len(numbers) <= MAX_LABELLED_ROUNDS
    return heatmap_trace(
        [str(number) for number in numbers],
        boards,
        shares,
        colours=SHARE_COLOURS,
        hover=hover,
        texts=[["" if v is None else f"{v:.0f}" for v in line] for line in cells] if labelled else None,
    )


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
    """Return one line per board; name and unit are for the hover text, ``THIN`` lines belong to a board's main line."""
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
    """Build a chart of such lines, with one across at ``limit``; ``words`` are key, title and caption."""
    key, title, caption = words
    highest = max((y for trace in data for y in trace["y"] if y is not None), default=0.0)
    up = axis(unit, range=[0, 1.08 * max(highest, limit or 0.0) or 1.0], zerolinecolor=GREY)
    shapes = [] if limit is None else [horizontal_line(limit, ALARM)]
    more: dict[str, Any] = {"caption": caption, "height_px": 280, "showlegend": True, "shapes": shapes}
    return xy_chart(key, title, data, xaxis=round_axis(len(run.rounds)), yaxis=up, **more)


def percent_of(part: float | None, whole: float | None) -> float | None:
    """Return ``part`` in percent of ``whole``; None if either is unknown."""
    share = ratio(part, whole)
    return None if share is None else 100 * share


WORK_LEAD = (
    "The part of the work that the plan asked of each board: steps relative to its whole share, how its update was "
    "encoded, and the share of the network's channels that it trained. In the other rounds it rested."
)


def build_work_sections(run: LoadedRun) -> tuple[Section, ...]:
    """Build the section, if any board was asked for another share of its steps or an encoded update."""
    table = asked_work_table(run)
    return (Section("Work asked for", WORK_LEAD, (), table.html),) if table.rows else ()


def asked_work_table(run: LoadedRun) -> Table:
    """Build a table per board of the work that it was asked for; empty if that was always the whole share."""
    asked = [row for row in run.clients if row.step_share is not None]
    colour, rows = assign_colours(run.devices), []
    if any(row.step_share != 1.0 or row.encoding != "none" for row in asked):
        for board, device in run.device_by_board.items():
            own = [row for row in asked if row.board == board]
            shares = [row.step_share for row in own if row.step_share is not None]
            encodings, widths = (Counter(column) for column in ([r.encoding for r in own], [r.width for r in own]))
            rows.append(
                (
                    swatch_cell(colour[device], board),
                    value_cell(len(own)),
                    *(value_cell(pick(shares) if shares else None, ".3g") for pick in (min, statistics.mean, max)),
                    text_cell(", ".join(f"{kind} x {count}" for kind, count in encodings.most_common())),
                    text_cell(", ".join(f"{width or 1:g} x {count}" for width, count in widths.most_common())),
                )
            )
    names = ("board", "rounds", "least share", "mean share", "largest share", "encodings", "widths")
    return Table("work", names, tuple(rows))


MEMORY_LEAD = (
    "Boards whose memory is too small for the experiment's batch size. They train the same number of samples in "
    "smaller batches, or a narrower network, whose update the server merges into the full model. The time of a "
    "smaller step is estimated."
)


def build_memory_sections(run: LoadedRun) -> tuple[Section, ...]:
    """Build the section, if any board reduced its settings or ran out of memory."""
    if not _list_reduced_boards(run):
        return ()
    return (
        Section(
            "Memory",
            MEMORY_LEAD,
            (_memory_chart(run),),
            _describe_memory_labels(run) + memory_reduction_table(run).html,
        ),
    )


def memory_reduction_table(run: LoadedRun) -> Table:
    """Build a table per board and series of rounds with equal settings: the settings and their reason."""
    heads = ("board", "rounds", "batch", "width", "predicted", "limit", "peak", "out of memory", "lost", "reason")
    colour = assign_colours(run.devices)
    rows = []
    for board in _list_reduced_boards(run):
        own = [row for row in run.clients if row.board == board and row.batch_size is not None]
        rows += [_stretch_row(stretch, colour[run.device_by_board[board]]) for stretch in _split_by_scale(own)]
    return Table("memory", heads, tuple(rows))


def _split_by_scale(rows: list[ClientRow]) -> list[list[ClientRow]]:
    """Split one board's rows into consecutive series with the same batch size and width."""
    key = operator.attrgetter("batch_size", "width")
    return [list(series) for _, series in groupby(rows, key)]


def _stretch_row(stretch: list[ClientRow], colour: str) -> tuple[Cell, ...]:
    first, last = stretch[0], stretch[-1]
    rounds = f"{first.round}" if first is last else f"{first.round} to {last.round}"
    failures, lost_s = sum(row.out_of_memory or 0 for row in stretch), sum(row.lost_s or 0.0 for row in stretch)
    return (
        swatch_cell(colour, first.board),
        text_cell(rounds),
        value_cell(first.batch_size),
        value_cell(first.width, "g"),
        *(
            value_cell(value, lambda amount: f"{amount:,.0f} MB", "MB")
            for value in (first.predicted_memory_mb, first.memory_limit_mb, last.memory_mb)
        ),
        value_cell(failures),
        value_cell(lost_s, duration, "s"),
        text_cell(first.lowered or "as requested"),
    )


def _list_reduced_boards(run: LoadedRun) -> tuple[str, ...]:
    reduced = {row.board for row in run.clients if row.lowered or row.out_of_memory}
    return tuple(board.name for board in list_boards(run.experiment) if board.name in reduced)


def _describe_memory_labels(run: LoadedRun) -> Markup:
    """Describe the provenance of the memory predictions per kind of board."""
    sources = []
    for name in dict.fromkeys(board.rpartition("-")[0] for board in _list_reduced_boards(run)):
        label = run.labels.get(name, {}).get("memory", {})
        if label:
            badge = render_badge(label.get("label", ""))
            sources.append(Markup("<b>{}</b>: {} {}").format(name, badge, label.get("source", "")))
    peaks = "Peaks are measured by the boards."
    if run.experiment.backend != "fleet":
        peaks = "Peaks are emulated: the prediction times a factor per board."
    lead = Markup("What a step needs is predicted. {} ").format(peaks)
    return render_paragraph(lead + Markup("; ").join(sources)) if sources else EMPTY


def _memory_chart(run: LoadedRun) -> Chart:
    """Plot measured and predicted peak memory as shares of the limit."""
    drawn = set(sample_run(run).boards)
    boards = [board for board in _list_reduced_boards(run) if board in drawn]
    shares = (("peak", "memory_mb", 2.2), ("predicted", "predicted_memory_mb", THIN))
    caption = (
        "Thick: peak memory in a round; thin: its prediction, corrected by the board's earlier peaks. "
        "Red line: the memory limit. " + sample_run(run).note
    )
    words = ("memory", "Memory against the limit", caption)
    data = _share_traces(run, boards, shares, "memory_limit_mb")
    return board_chart(run, words, data=data, unit="memory (% of the limit)", limit=100.0)


def _share_traces(
    run: LoadedRun, boards: Sequence[str], shares: Sequence[tuple[str, str, float]], limit: str
) -> list[Trace]:
    """Return lines of columns in percent of the column ``limit``; ``shares`` are names, columns and widths."""

    def read(column: str) -> Callable[[ClientRow], float | None]:
        return lambda row: percent_of(getattr(row, column), getattr(row, limit))

    return [
        trace
        for name, column, width in shares
        for trace in board_traces(run, boards, name, read(column), width=width, unit="%")
    ]


MAX_SERVING_ROWS = 100
"""Rows of the table in the page: those of the last rounds."""
SERVING_LEAD = (
    "Standing inference services while the boards trained: latency of each request from arrival to answer, against "
    "its budget, and the remaining training throughput. While a board transfers the model or waits, its service keeps "
    "running: the round's energy includes this, but these requests are not counted here."
)


def build_serving_sections(run: LoadedRun) -> tuple[Section, ...]:
    """Build the section, if any board of the run has an inference service."""
    if not _list_serving_rows(run):
        return ()
    table, count = serving_table(run, MAX_SERVING_ROWS), len(_list_serving_rows(run))
    note = f"The last {MAX_SERVING_ROWS} of {count:,} rows."
    more = render_paragraph(note, "caption") if count > MAX_SERVING_ROWS else EMPTY
    return (
        Section(
            "Serving",
            SERVING_LEAD,
            (_latency_chart(run), _violations_chart(run), _throughput_chart(run)),
            _describe_services(run) + table.html + more,
        ),
    )


def serving_table(run: LoadedRun, most: int = 0) -> Table:
    """Build a table of each service's results per round and board; only the latest ``most`` rows (0: all)."""
    colour = assign_colours(run.devices)
    columns: tuple[Column[ClientRow], ...] = (
        ("round", lambda row: value_cell(row.round)),
        ("board", lambda row: swatch_cell(colour[run.device_by_board[row.board]], row.board)),
        ("requests", lambda row: value_cell(row.requests, ",")),
        ("late", lambda row: value_cell(row.late_requests, ",")),
        ("dropped", lambda row: value_cell(row.dropped_requests, ",")),
        ("budget", lambda row: value_cell(row.latency_budget_s, duration, "s")),
        ("median", lambda row: _latency_cell(row.latency_p50_s, row.latency_budget_s)),
        ("95 %", lambda row: _latency_cell(row.latency_p95_s, row.latency_budget_s)),
        ("99 %", lambda row: _latency_cell(row.latency_p99_s, row.latency_budget_s)),
        ("worst", lambda row: _latency_cell(row.latency_worst_s, row.latency_budget_s)),
        ("batch", lambda row: value_cell(row.service_batch, ",")),
        ("share of time", lambda row: number_cell(percent(row.service_share), row.service_share)),
        ("steps/s", lambda row: value_cell(row.train_steps_per_s, number, "1/s")),
    )
    return build_table("serving", columns, _list_serving_rows(run)[-most:])


def _latency_cell(value_s: float | None, budget_s: float | None) -> Cell:
    """Build a cell of a latency, highlighted if it exceeds the budget."""
    over = value_s is not None and budget_s is not None and value_s > budget_s
    words = duration(value_s)
    content = Markup('<span class="status late">{}</span>').format(words) if over else words
    return Cell(content, numeric=True, value=value_s, unit="s")


def _list_serving_rows(run: LoadedRun) -> list[ClientRow]:
    return [row for row in run.clients if row.requests is not None]


def _list_drawn_boards(run: LoadedRun) -> list[str]:
    drawn = set(sample_run(run).boards)
    boards = list_boards(run.experiment)
    return [board.name for board in boards if board.entry.serving is not None and board.name in drawn]


def _describe_services(run: LoadedRun) -> Markup:
    """Describe the service of each kind of board in words."""
    services = dict[str, Markup]()
    for board in list_boards(run.experiment):
        spec = board.entry.serving
        if spec is not None:
            name = board.name.rpartition("-")[0]
            rate = f"{spec.rate_hz:g} requests a second ({spec.arrivals}) within {duration(spec.latency_s)}"
            label = run.labels.get(name, {}).get("serving", {}).get("label", "")
            badge = render_badge(label) if label else EMPTY
            services[name] = Markup("<b>{}</b> serves {} {}: {}").format(name, spec.cost, badge, rate)
    shares = [row.service_played for row in _list_serving_rows(run) if row.service_played is not None]
    note = ""
    if shares and min(shares) < 1.0:
        note = (
            " In rounds with very many requests, only the first ones are simulated one by one (at least "
            f"{percent(min(shares), 0)}); late requests are extrapolated in proportion."
        )
    return render_paragraph(Markup("{}.{}").format(Markup("; ").join(services.values()), note))


def _latency_chart(run: LoadedRun) -> Chart:
    """Plot the 99th percentile of the latency as a share of the budget, and the median as a thin line."""
    shares = (("99 %", "latency_p99_s", 2.2), ("median", "latency_p50_s", THIN))
    data = _share_traces(run, _list_drawn_boards(run), shares, "latency_budget_s")
    caption = (
        "Thick: the 99th percentile of a round's requests; thin: the median. Red line: the latency budget. "
        "Percentiles are accurate to 5 %, and exceed the line only if that share of requests was late. "
        + sample_run(run).note
    )
    words = ("serving-latency", "Latency against the budget", caption)
    return board_chart(run, words, data=data, unit="latency (% of the budget)", limit=100.0)


def _violations_chart(run: LoadedRun) -> Chart:
    def violations(row: ClientRow) -> float | None:
        return percent_of(float((row.late_requests or 0) + (row.dropped_requests or 0)), row.requests)

    data = board_traces(run, _list_drawn_boards(run), "late", violations, unit="%")
    words = ("serving-late", "Violations", "Requests that were dropped or exceeded the budget.")
    return board_chart(run, words, data=data, unit="requests (%)")


def _throughput_chart(run: LoadedRun) -> Chart:
    data = board_traces(run, _list_drawn_boards(run), "training", lambda r: r.train_steps_per_s, unit="steps/s")
    words = ("serving-training", "Training throughput", "Training steps per second of work, while the service runs.")
    return board_chart(run, words, data=data, unit="steps/s")
