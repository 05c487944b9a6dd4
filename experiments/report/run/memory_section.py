"""Memory section of a report: reduced batch sizes and widths, predicted and measured peak memory."""

from __future__ import annotations

import operator
from itertools import groupby

from markupsafe import Markup

from experiments.report.chart import Chart
from experiments.report.page import EMPTY, Section, render_badge, render_paragraph
from experiments.report.palette import assign_colours
from experiments.report.quantities import UNKNOWN, duration
from experiments.report.run.board_lines import THIN, board_chart, board_traces, percent_of
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_sample import sample_run
from experiments.report.tables import Cell, Table, number_cell, swatch_cell, text_cell
from fedge.experiment import list_boards
from fedge.telemetry.store_records import ClientRow

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
        number_cell(UNKNOWN if first.batch_size is None else str(first.batch_size), first.batch_size),
        number_cell(UNKNOWN if first.width is None else f"{first.width:g}", first.width),
        *(_megabytes_cell(value) for value in (first.predicted_memory_mb, first.memory_limit_mb, last.memory_mb)),
        number_cell(str(failures), failures),
        number_cell(duration(lost_s), lost_s, "s"),
        text_cell(first.lowered or "as requested"),
    )


def _megabytes_cell(value: float | None) -> Cell:
    return number_cell(UNKNOWN if value is None else f"{value:,.0f} MB", value, "MB")


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
    data = [
        *board_traces(run, boards, "peak", lambda r: percent_of(r.memory_mb, r.memory_limit_mb), width=2.2, unit="%"),
        *board_traces(
            run,
            boards,
            "predicted",
            lambda r: percent_of(r.predicted_memory_mb, r.memory_limit_mb),
            width=THIN,
            unit="%",
        ),
    ]
    caption = (
        "Thick: peak memory in a round; thin: its prediction, corrected by the board's earlier peaks. "
        "Red line: the memory limit. " + sample_run(run).note
    )
    words = ("memory", "Memory against the limit", caption)
    return board_chart(run, words, data=data, unit="memory (% of the limit)", limit=100.0)
