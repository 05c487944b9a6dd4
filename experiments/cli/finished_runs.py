"""``fedge report``, ``replay``, ``query`` and ``export``: what a finished run says."""

from __future__ import annotations

import csv as csvlib
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.command_options import AsJson, Jobs, Overrides, Run
from experiments.cli.command_output import (
    HTML_START,
    check_folder,
    check_replaceable,
    make_console,
    print_json,
    print_line,
    show_job_progress,
    warn,
    write_output,
)
from experiments.cli.run_experiment import interrupt_on_sigterm
from fedge.atomic_files import replace_file
from fedge.errors import BadInput, format_count
from fedge.json_reader import to_json_value
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from experiments.backends.run_replay import ReplayResult
    from experiments.report.tables import Table
    from fedge.telemetry.store_reader import QueryAnswer, QueryRow


COMPARISON_FILE = "comparison.html"


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or sweeps; several runs are compared.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File to write; by default report.html in the run, of several comparison.html."
        ),
    ] = None,
    tables: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write every table to this folder, as .csv and .tex.")
    ] = None,
) -> None:
    """Write the report of a run, or compare several or a sweep's.

    Runs that differ only in the seed form one group.

    Example: fedge report runs/balanced runs/maxn --out both.html
    """
    from experiments.report.run import sweep_report
    from experiments.report.run.run_page import write_report, write_report_tables

    folders = sweep_report.expand_sweeps(runs)
    target = out or (runs[0] / run_folder.REPORT if len(runs) == 1 else Path(COMPARISON_FILE))
    if out is not None:
        check_replaceable("--out", out, HTML_START)
    write_output("--out", target, lambda path: write_report(folders, path, sweep_report.build_sweep_sections(runs)))
    sys.stdout.write(f"{target.resolve()}\n")
    if tables is None:
        return
    more = sweep_report.list_sweep_tables(runs)
    written = write_output("--tables", tables, lambda path: write_report_tables(folders, path, more), "folder")
    sys.stdout.write(f"{tables.resolve()}: {len(written)} files\n")


def replay(
    folder: Run,
    policy: Annotated[str | None, typer.Option(help="Name of another policy.")] = None,
    override: Overrides = None,
    draws: Annotated[int, typer.Option(min=1, max=1000, help="Number of draws of the boards' time and power.")] = 8,
    jobs: Jobs = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Predict what a run would have cost with another policy, limit, deadline or fleet, from what it measured.

    Example: fedge replay runs/balanced --policy maxn
    """
    from experiments.backends.run_replay import replay_run

    changes = [*([] if policy is None else [f"policy={policy}"]), *(override or [])]
    if not changes:
        raise BadInput("fedge replay", "nothing that changes", "--policy NAME, or --set KEY=VALUE")
    with interrupt_on_sigterm(), show_job_progress(draws) as report:
        result = replay_run(folder, changes, draws, workers=jobs, report=report, note=warn)
    if as_json:
        print_json(result)
        return
    build_replay_table(result).print(make_console())
    for note in _list_notes(result):
        print_line(note)


def build_replay_table(result: ReplayResult) -> Table:
    """Build a table with one row per figure: of the run, predicted for the replay, and the change."""
    from experiments.report import quantities
    from experiments.report.run.seed_comparison import describe_summary_figure
    from experiments.report.tables import Table, number_cell, text_cell

    rows = []
    for figure in result.figures:
        shown = describe_summary_figure(figure.name, result.metric)
        actual, predicted = (shown.format(value)[0] for value in (figure.actual, figure.predicted))
        interval = (
            "" if figure.low is None or figure.high is None else " to ".join(shown.format(figure.low, figure.high))
        )
        if shown.unit == "%":
            change = quantities.percent(figure.predicted - figure.actual).replace("%", "points")
        elif figure.name == "final_accuracy":  # a metric of the task's own may be zero or negative
            change = quantities.number(figure.predicted - figure.actual)
        else:
            change = quantities.percent(figure.predicted / figure.actual - 1)
        rows.append(
            (
                text_cell(shown.heading),
                number_cell(actual, figure.actual),
                number_cell(predicted, figure.predicted),
                number_cell(interval),
                number_cell(change),
            )
        )
    heads = ("figure", "run", "replay", "90 % interval", "change")
    return Table("replay", heads, tuple(rows), title=f"{Path(result.run).name} with {', '.join(result.changes)}")


def _list_notes(result: ReplayResult) -> list[str]:
    notes = [f"{result.measured} boards from their own measurements in {result.rounds} rounds, {result.draws} draws"]
    if result.siblings:
        notes.append(f"{result.siblings} boards from measurements of another board of their kind")
    if result.modelled:
        notes.append(
            f"{result.modelled} boards of kinds that the run had not: by their cost profile, without its errors"
        )
    if result.warning:
        notes.append(f"warning: {result.warning}")
    return [*notes, "the replay's figures are estimated; `fedge run` measures them"]


MAX_TABLE_ROWS = 200
"""Rows printed as a table; CSV and JSON have all. A default that keeps a terminal usable."""


def query(
    run: Run,
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One SELECT over rounds, clients, evaluations, events, samples.")
    ],
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write: a new one; by default the terminal.")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Query a run's tables in SQL; nothing else can be read, and nothing written.

    Example: fedge query runs/office "select board, sum(energy_j) from clients group by board"
    """
    from fedge.telemetry import open_run

    if csv and as_json:
        raise BadInput("--json", "--csv as well", "one of the two")
    _check_new_file(out)
    write = format_json if as_json else format_csv if csv else format_table
    with open_run(run) as reader:
        answer = reader.stream(sql)
        pieces = write(answer)
        if out is None:
            _print_pieces(pieces)
            return
        write_output("--out", out, lambda path: _write_pieces(path, pieces))
    sys.stderr.write(f"{answer.row_count} rows in {out.resolve()}\n")


def _print_pieces(pieces: Iterable[str]) -> None:
    try:
        for piece in pieces:
            sys.stdout.write(piece)
        sys.stdout.flush()
    except BrokenPipeError:  # such as `| head`, which has seen enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_pieces(out: Path, pieces: Iterable[str]) -> None:
    with replace_file(out) as part, part.open("w", encoding="utf-8", newline="") as file:
        file.writelines(pieces)


def _check_new_file(out: Path | None) -> None:
    """Check that the file is new, so that a mistyped path overwrites nothing."""
    if out is None:
        return
    if not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "a file in a folder that exists")
    if out.exists():
        raise BadInput("--out", f"{out}, which exists already", "a new file")
    check_folder("--out", out.parent)


def format_table(answer: QueryAnswer) -> Iterator[str]:
    """Format rows as a table: as wide as the terminal, or as needed in a file or pipe."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    names, rows = answer.names, iter(answer)
    shown = list(islice(rows, MAX_TABLE_ROWS))
    more = sum(1 for _ in rows)
    console = Console(
        file=io.StringIO(), width=None if sys.stdout.isatty() else _table_width(names, shown), highlight=False
    )
    table = Table(box=None, pad_edge=False, header_style="bold" if sys.stdout.isatty() else "")
    for place, name in enumerate(names):
        figures = all(row[place] is None or isinstance(row[place], int | float | Decimal) for row in shown)
        table.add_column(escape(_strip_control(name)), justify="right" if figures else "left")
    for row in shown:
        table.add_row(*(escape(_strip_control(_format_cell(value))) for value in row))
    console.print(table)
    if more:
        console.print(f"{MAX_TABLE_ROWS} of {MAX_TABLE_ROWS + more} rows; --csv or --json has all")
    written: str = console.file.getvalue()  # type: ignore[attr-defined]
    yield "".join(line.rstrip() + "\n" for line in written.splitlines())


def format_csv(answer: QueryAnswer) -> Iterator[str]:
    """Format rows as CSV with a header, floats in full precision, NULL as an empty field, and nested values as JSON."""
    yield _csv_line(answer.names)
    for row in answer:
        yield _csv_line([_dump_json(value) if _is_nested(value) else value for value in row])


def _csv_line(values: Sequence[Any]) -> str:
    text = io.StringIO()
    csvlib.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def format_json(answer: QueryAnswer) -> Iterator[str]:
    """Format rows as a JSON list with one object per line; non-finite numbers are null.

    Raises:
        BadInput: If two columns have the same name, since an object could keep only one.
    """
    names = answer.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput("SQL", f"two columns called {twice}", "a name for each, such as `... as other`, for --json")
    between = "["
    for row in answer:
        yield between + _dump_json(dict(zip(names, row, strict=True)))
        between = ",\n"
    yield "]\n" if between != "[" else "[]\n"


def _strip_control(text: str) -> str:
    """Remove control characters, which a terminal would interpret: events contain text from boards."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def _format_cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if _is_nested(value):
        return _dump_json(value)
    return "" if value is None else str(value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


def _dump_json(value: Any) -> str:
    return json.dumps(to_json_value(value), default=_dump_other)


def _dump_other(value: Any) -> int | float | str:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _table_width(names: Sequence[str], shown: Sequence[QueryRow]) -> int:
    widest = [max([len(name), *(len(_format_cell(row[place])) for row in shown)]) for place, name in enumerate(names)]
    return max(80, sum(widest) + 2 * len(widest))


def export(
    run: Run,
    to: Annotated[str, typer.Option(metavar="NAME", help="tensorboard, mlflow, or your own module:Class.")],
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the exporter; may be repeated.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write; by default one in the run's.")
    ] = None,
) -> None:
    """Export every round of a run to TensorBoard, MLflow or your own exporter.

    Example: fedge export runs/office --to tensorboard --folder events
    """
    if folder is not None:
        check_folder("--folder", folder)
    from experiments.backends.run_export import export_run

    count = export_run(run, to, option or [], folder)
    typer.echo(f"{format_count(count, 'round')} exported to {to}")
