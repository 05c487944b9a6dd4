"""``fedge memory eval`` and ``fit``: errors on measured training steps, and the coefficients fitted to all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from experiments.commands.outputs import check_output
from fedge.errors import BadInput
from fedge.memory import calibration
from fedge.memory.study import METHODS, TARGETS, Row, cells, check
from fedge.memory.study import evaluate as judged
from fedge.memory.table import StepTable, read_tables
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from rich.table import Table

HEAD = (
    "# What a training step needs: coefficients of the terms of fedge/memory/terms.py, written by\n"
    "# `fedge memory fit`. Spreads are of the logarithm, each network left out in turn.\n"
)


def evaluate(data: Path, method: str, left_out: bool, seed: int, json_file: Path | None) -> None:
    """Judge, print the errors, write them to ``json_file``. Raises ``BadInput`` before anything is computed."""
    from rich.console import Console

    check_output("--json", json_file, "[")
    methods = _methods(method)
    tables = read_tables(data)
    check(tables, methods, left_out)
    _tell_dropped(tables)
    with _progress(len(list(cells(tables, methods, left_out)))) as told:
        rows = judged(tables, methods, left_out=left_out, seed=seed, told=told)
    for table in as_tables(rows):
        Console().print(table)
    if json_file is not None:
        _write("--json", json_file, [asdict(row) for row in rows])


def fit(data: Path, out: Path, board: str, source: str) -> None:
    """Fit the coefficients to all steps and write them. Raises ``BadInput``."""
    from rich.console import Console

    check_output("--out", out, "#")
    found = calibration.fit(read_tables(data), board, source)
    text = HEAD + yaml.safe_dump(calibration.as_data(found), sort_keys=False, width=120)
    try:
        run_folder.write_text(out, text)
    except OSError as error:
        raise BadInput("--out", str(out), f"a file that can be written ({error.strerror})") from error
    spreads = f"memory {found.memory_sd_log:.1%}, time {found.step_sd_log:.1%}".replace("%", " %")
    Console().print(f"Wrote {out}. Spread on a network left out: {spreads}.", highlight=False)


def as_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """One table per split: a network a line, the methods' errors in memory and time side by side, and their mean."""
    from rich.table import Table

    for split in dict.fromkeys(row.split for row in rows):
        title = "Levels not learnt from" if split == "within" else "Network left out"
        table = Table(box=None, padding=(0, 2, 0, 0), title=f"\n{title}: error in %", title_justify="left")
        table.add_column("Network", style="cyan")
        table.add_column("Steps", justify="right")
        shown = [(m, t) for t in TARGETS for m in dict.fromkeys(row.method for row in rows)]
        for method, target in shown:
            table.add_column(f"{target}\n{method}", justify="right", no_wrap=True)
        errors = {(row.network, row.method, row.target): row for row in rows if row.split == split}
        networks = list(dict.fromkeys(network for network, _, _ in errors))
        for network in networks:
            found = [errors[network, method, target] for method, target in shown]
            steps = "/".join(str(n) for n in dict.fromkeys(row.n for row in found))
            table.add_row(network, steps, *(f"{row.mape:.1f}" for row in found), end_section=network == networks[-1])
        for name, of in (("mean", lambda values: sum(values) / len(values)), ("worst", max)):
            columns = [[errors[network, m, t].mape for network in networks] for m, t in shown]
            table.add_row(name, "", *(f"{of(values):.1f}" for values in columns), style="bold")
        yield table


def _methods(text: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(words) or len(set(words)) < len(words):
        raise BadInput("--method", repr(text), f"{', '.join(METHODS)}, separated by commas, each once")
    return tuple(words)


def _tell_dropped(tables: Sequence[StepTable]) -> None:
    dropped = {table.network: table.dropped for table in tables if table.dropped}
    if dropped:
        counts = ", ".join(f"{network} {count}" for network, count in dropped.items())
        sys.stderr.write(f"fedge: rows left out, of pruning levels without a geometry: {counts}\n")


def _write(option: str, path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        run_folder.write_json(path, rows)
    except OSError as error:
        raise BadInput(option, str(path), f"a file that can be written ({error.strerror})") from error


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A line on the terminal; nothing where there is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total)
        yield lambda step: progress.update(task, advance=1, description=step)
