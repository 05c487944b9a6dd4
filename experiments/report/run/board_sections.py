"""Sections on what boards held: their power modes, latencies of services during training, reduced memory settings."""

from __future__ import annotations

import operator
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import ALARM, CATEGORY_AXIS, GREY, LINE_DASHES, Chart, Trace, axis
from experiments.report.page import EMPTY, Section, render_badge, render_paragraph
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


def build_mode_charts(run: LoadedRun) -> Iterator[Chart]:
    """Plot one heatmap (boards by rounds) per knob as a share of its maximum, and one of the second mode's share.

    If a board completed several tasks for one model version, the last one counts.
    """
    for knob, title, unit in KNOB_TITLES:
        tops = {device: _find_knob_top(run, device, knob) for device in run.styles}
        yield _heatmap_chart(run, f"modes-{knob}", title, operator.attrgetter(knob), tops=tops, unit=unit)
    if any(row.mix_mode is not None for row in sample_run(run).select_rows(run)):
        caption = "Share of a round's steps, in percent, that ran first in a second, slower mode."
        tops = dict.fromkeys(run.styles, 100.0)
        yield _heatmap_chart(run, "modes-mix", "Second mode", _mix_percent, tops=tops, unit=" %", caption=caption)


def _heatmap_chart(
    run: LoadedRun,
    key: str,
    title: str,
    read: Callable[[ClientRow], float | None],
    *,
    tops: Mapping[str, float],
    unit: str,
    caption: str = "",
) -> Chart:
    """Plot a value per board and round as a share of the maximum of the board's kind."""
    view = sample_run(run)
    rows = {(row.board, row.round): row for row in view.select_rows(run)}
    shares: list[list[float | None]] = []
    hover: list[list[str]] = []
    texts: list[list[str]] = []
    for board in view.boards:
        device = run.device_by_board[board]
        top, own = tops[device], [rows.get((board, one.round)) for one in view.rounds]
        values = [None if row is None else read(row) for row in own]
        shares.append([None if value is None else value / top for value in values])
        texts.append(["" if value is None else f"{value:.0f}" for value in values])
        hover.append([])
        for one, row, value in zip(view.rounds, own, values, strict=True):
            known = "unknown" if value is None else f"{value:g}{unit} of {top:g}{unit}, {100 * value / top:.0f} %"
            text = Markup("{} ({}), round {}: {}").format(board, device, one.round, known)
            if row is not None and row.mix_mode is not None:
                mixed = Markup("<br>{} of {} minibatches first in {}")
                text += mixed.format(row.mix_steps, row.steps, row.mix_mode)
            hover[-1].append(text)
    numbers, labelled = [str(one.round) for one in view.rounds], len(view.rounds) <= MAX_LABELLED_ROUNDS
    trace = chart.heatmap_trace(numbers, view.boards, shares, hover=hover, texts=texts if labelled else None)
    along, up = axis("round", type="category", showgrid=False, nticks=12), {**CATEGORY_AXIS, "dtick": 1}
    layout = {"xaxis": along, "yaxis": up, "margin": {"t": 8}}
    return Chart(key, title, caption, [trace], layout=layout, height_px=66 + 24 * max(3, len(view.boards)))


def _mix_percent(row: ClientRow) -> float | None:
    """Return the percentage of steps in the second mode; None for a board that did not train."""
    return None if row.cores is None or not row.steps else 100.0 * (row.mix_steps or 0) / row.steps


def _find_knob_top(run: LoadedRun, device: str, knob: str) -> float:
    """Return the knob's maximum of a kind of board: the catalogue's, otherwise the largest observed value."""
    try:
        return float(getattr(catalogue.find(device).maxn, knob))
    except FedgeError:
        observed = (getattr(row, knob) for row in run.clients if row.device == device)
        return max((value for value in observed if value is not None), default=1.0)


THIN = 0.8
"""Width of the lines beside a board's main line; they have no markers and no entry in the legend."""


def _board_chart(
    run: LoadedRun,
    boards: Sequence[str],
    key: str,
    title: str,
    lines: Sequence[tuple[str, Callable[[ClientRow], float | None], float]],
    *,
    unit: str,
    up: str,
    caption: str,
    limit: float | None = None,
) -> Chart:
    """Plot lines over the rounds for every board, with one across at ``limit``.

    ``lines`` are their names, values and widths; ``THIN`` ones belong to a board's main line. ``up`` is the title of
    the vertical axis, and ``unit`` is for hover texts.
    """
    data: list[Trace] = []
    for name, value, width in lines:
        for i, board in enumerate(boards):
            dash = LINE_DASHES[i % len(LINE_DASHES)]
            data.append(
                chart.scatter_trace(
                    board,
                    of=[row for row in run.clients if row.board == board],
                    x=lambda row: row.round,
                    y=value,
                    mode=chart.line_mode(len(run.rounds)) if width > THIN else "lines",
                    line={"color": run.style_of(board).colour, "width": width, "dash": dash},
                    hover=Markup("{}, {}: %{{y:.3~g}} {}").format(board, name, unit),
                    legend=width > THIN,
                    legendgroup=f"board-{i}",
                )
            )
    highest = max((y for trace in data for y in trace["y"] if y is not None), default=0.0)
    return chart.xy_chart(
        key,
        title,
        data,
        xaxis=chart.round_axis(len(run.rounds)),
        yaxis=axis(up, range=[0, 1.08 * max(highest, limit or 0.0) or 1.0], zerolinecolor=GREY),
        caption=caption,
        height_px=280,
        showlegend=True,
        shapes=[] if limit is None else [chart.horizontal_line(limit, ALARM)],
    )


def _read_percent(part: str, whole: str) -> Callable[[ClientRow], float | None]:

    def read(row: ClientRow) -> float | None:
        share = ratio(getattr(row, part), getattr(row, whole))
        return None if share is None else 100 * share

    return read


WORK_LEAD = (
    "The part of the work that the plan asked of each board: steps relative to its whole share, how its update was "
    "encoded, and the share of the network's channels that it trained. In the other rounds it rested."
)


def build_work_sections(run: LoadedRun) -> Iterator[Section]:
    """Yield the section, if any board was asked for another share of its steps or an encoded update."""
    table = asked_work_table(run)
    if table.rows:
        yield Section("Work asked for", WORK_LEAD, html=table.html)


def asked_work_table(run: LoadedRun) -> Table:
    """Build a table per board of the work that it was asked for; empty if that was always the whole share."""
    asked, rows = [row for row in run.clients if row.step_share is not None], []
    if any(row.step_share != 1.0 or row.encoding != "none" for row in asked):
        for board in run.device_by_board:
            own = [row for row in asked if row.board == board]
            shares = [row.step_share for row in own if row.step_share is not None]
            encodings, widths = (Counter(column) for column in ([r.encoding for r in own], [r.width for r in own]))
            rows.append((
                swatch_cell(run.style_of(board).colour, board),
                value_cell(len(own)),
                *(value_cell(pick(shares) if shares else None, ".3g") for pick in (min, statistics.mean, max)),
                text_cell(", ".join(f"{kind} x {count}" for kind, count in encodings.most_common())),
                text_cell(", ".join(f"{width or 1:g} x {count}" for width, count in widths.most_common())),
            ))  # fmt: skip
    names = ("board", "rounds", "least share", "mean share", "largest share", "encodings", "widths")
    return Table("work", names, tuple(rows))


MEMORY_LEAD = (
    "Boards whose memory is too small for the experiment's batch size. They train the same number of samples in "
    "smaller batches, or a narrower network, whose update the server merges into the full model. The time of a "
    "smaller step is estimated."
)


def build_memory_sections(run: LoadedRun) -> Iterator[Section]:
    """Yield the section, if any board reduced its settings or ran out of memory."""
    if reduced := _list_reduced_boards(run):
        view = sample_run(run)
        caption = (
            "Thick: peak memory in a round; thin: its prediction, corrected by the board's earlier peaks. "
            "Red line: the memory limit. " + view.note
        )
        peaks = _board_chart(
            run,
            [board for board in reduced if board in view.boards],
            "memory",
            "Memory against the limit",
            lines=(
                ("peak", _read_percent("memory_mb", "memory_limit_mb"), 2.2),
                ("predicted", _read_percent("predicted_memory_mb", "memory_limit_mb"), THIN),
            ),
            unit="%",
            up="memory (% of the limit)",
            caption=caption,
            limit=100.0,
        )
        below = _describe_memory_labels(run) + memory_reduction_table(run).html
        yield Section("Memory", MEMORY_LEAD, (peaks,), below)


def memory_reduction_table(run: LoadedRun) -> Table:
    """Build a table per board and series of rounds with equal settings: the settings and their reason."""
    known = [row for row in run.clients if row.batch_size is not None]
    series = [
        list(rows)
        for board in _list_reduced_boards(run)
        for _, rows in groupby((r for r in known if r.board == board), operator.attrgetter("batch_size", "width"))
    ]
    columns: tuple[Column[list[ClientRow]], ...] = (
        ("board", lambda rows: swatch_cell(run.style_of(rows[0].board).colour, rows[0].board)),
        ("rounds", lambda rows: text_cell(" to ".join(dict.fromkeys(f"{rows[i].round}" for i in (0, -1))))),
        ("batch", lambda rows: value_cell(rows[0].batch_size)),
        ("width", lambda rows: value_cell(rows[0].width, "g")),
        ("predicted", lambda rows: _memory_cell(rows[0].predicted_memory_mb)),
        ("limit", lambda rows: _memory_cell(rows[0].memory_limit_mb)),
        ("peak", lambda rows: _memory_cell(rows[-1].memory_mb)),
        ("out of memory", lambda rows: value_cell(sum(row.out_of_memory or 0 for row in rows))),
        ("lost", lambda rows: value_cell(sum(row.lost_s or 0.0 for row in rows), duration, "s")),
        ("reason", lambda rows: text_cell(rows[0].lowered or "as requested")),
    )
    return build_table("memory", columns, series)


def _memory_cell(amount_mb: float | None) -> Cell:
    return value_cell(amount_mb, lambda amount: f"{amount:,.0f} MB", "MB")


def _list_reduced_boards(run: LoadedRun) -> tuple[str, ...]:
    reduced = {row.board for row in run.clients if row.lowered or row.out_of_memory}
    return tuple(board.name for board in list_boards(run.experiment) if board.name in reduced)


def _describe_memory_labels(run: LoadedRun) -> Markup:
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


MAX_SERVING_ROWS = 100
"""Rows of the table in the page: those of the last rounds."""
SERVING_LEAD = (
    "Standing inference services while the boards trained: latency of each request from arrival to answer, against "
    "its budget, and the remaining training throughput. While a board transfers the model or waits, its service keeps "
    "running: the round's energy includes this, but these requests are not counted here."
)


def build_serving_sections(run: LoadedRun) -> Iterator[Section]:
    """Yield the section, if any board of the run has an inference service."""
    count = len(_list_serving_rows(run))
    if count:
        note = f"The last {MAX_SERVING_ROWS} of {count:,} rows."
        more = render_paragraph(note, "caption") if count > MAX_SERVING_ROWS else EMPTY
        below = _describe_services(run) + serving_table(run, MAX_SERVING_ROWS).html + more
        yield Section("Serving", SERVING_LEAD, tuple(_list_serving_charts(run)), below)


def serving_table(run: LoadedRun, most: int = 0) -> Table:
    """Build a table of each service's results per round and board; only the latest ``most`` rows (0: all)."""
    columns: tuple[Column[ClientRow], ...] = (
        ("round", lambda row: value_cell(row.round)),
        ("board", lambda row: swatch_cell(run.style_of(row.board).colour, row.board)),
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


def _describe_services(run: LoadedRun) -> Markup:
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


def _list_serving_charts(run: LoadedRun) -> Iterator[Chart]:
    view = sample_run(run)
    boards = [
        board.name
        for board in list_boards(run.experiment)
        if board.entry.serving is not None and board.name in view.boards
    ]
    caption = (
        "Thick: the 99th percentile of a round's requests; thin: the median. Red line: the latency budget. "
        "Percentiles are accurate to 5 %, and exceed the line only if that share of requests was late. " + view.note
    )
    yield _board_chart(
        run,
        boards,
        "serving-latency",
        "Latency against the budget",
        lines=(
            ("99 %", _read_percent("latency_p99_s", "latency_budget_s"), 2.2),
            ("median", _read_percent("latency_p50_s", "latency_budget_s"), THIN),
        ),
        unit="%",
        up="latency (% of the budget)",
        caption=caption,
        limit=100.0,
    )

    def violations(row: ClientRow) -> float | None:
        share = ratio(float((row.late_requests or 0) + (row.dropped_requests or 0)), row.requests)
        return None if share is None else 100 * share

    yield _board_chart(
        run,
        boards,
        "serving-late",
        "Violations",
        lines=(("late", violations, 1.8),),
        unit="%",
        up="requests (%)",
        caption="Requests that were dropped or exceeded the budget.",
    )
    yield _board_chart(
        run,
        boards,
        "serving-training",
        "Training throughput",
        lines=(("training", lambda row: row.train_steps_per_s, 1.8),),
        unit="steps/s",
        up="steps/s",
        caption="Training steps per second of work, while the service runs.",
    )
