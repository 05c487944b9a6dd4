"""Inference services during training: latency against the budget, throughput and dropped requests."""

from __future__ import annotations

from markupsafe import Markup

from experiments.report.chart import Chart
from experiments.report.page import EMPTY, Section, render_badge, render_paragraph
from experiments.report.palette import assign_colours
from experiments.report.quantities import UNKNOWN, duration, number, percent
from experiments.report.run.board_lines import THIN, board_chart, board_traces, percent_of
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_sample import sample_run
from experiments.report.tables import Cell, Table, number_cell, swatch_cell
from fedge.experiment import list_boards
from fedge.telemetry.store_records import ClientRow

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
    heads = ("round", "board", "requests", "late", "dropped", "budget", "median", "95 %", "99 %", "worst", "batch")
    colour = assign_colours(run.devices)
    rows = tuple(_serving_row(row, colour[run.device_by_board[row.board]]) for row in _list_serving_rows(run)[-most:])
    return Table("serving", (*heads, "share of time", "steps/s"), rows)


def _serving_row(row: ClientRow, colour: str) -> tuple[Cell, ...]:
    budget_s = row.latency_budget_s
    seconds = (row.latency_p50_s, row.latency_p95_s, row.latency_p99_s, row.latency_worst_s)
    return (
        number_cell(str(row.round), row.round),
        swatch_cell(colour, row.board),
        _count_cell(row.requests),
        _count_cell(row.late_requests),
        _count_cell(row.dropped_requests),
        number_cell(duration(budget_s), budget_s, "s"),
        *(_latency_cell(value, budget_s) for value in seconds),
        _count_cell(row.service_batch),
        number_cell(percent(row.service_share), row.service_share),
        number_cell(number(row.train_steps_per_s), row.train_steps_per_s, "1/s"),
    )


def _count_cell(value: int | None) -> Cell:
    return number_cell(UNKNOWN if value is None else f"{value:,}", value)


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
    boards = _list_drawn_boards(run)
    data = [
        *board_traces(
            run, boards, "99 %", lambda r: percent_of(r.latency_p99_s, r.latency_budget_s), width=2.2, unit="%"
        ),
        *board_traces(
            run, boards, "median", lambda r: percent_of(r.latency_p50_s, r.latency_budget_s), width=THIN, unit="%"
        ),
    ]
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
