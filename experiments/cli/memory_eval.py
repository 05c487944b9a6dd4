"""``fedge memory eval`` and ``fit``: errors on measured training steps, and fitting of the coefficients."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from experiments.cli.command_output import check_output
from fedge.costs.memory import memory_calibration
from fedge.costs.memory.memory_study import METHODS, TARGETS, MemoryErrorRow, check_study, iterate_cells
from fedge.costs.memory.memory_study import evaluate_methods as judged
from fedge.costs.memory.step_table import StepTable, read_step_tables
from fedge.errors import BadInput
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from rich.table import Table

COEFFICIENTS_HEADER = (
    "# What a training step needs: coefficients of the terms of fedge/costs/memory/step_terms.py, written by\n"
    "# `fedge memory fit`. Spreads are of the logarithm, each network left out in turn.\n"
)


def evaluate_memory(data: Path, method: str, left_out: bool, seed: int, json_file: Path | None) -> None:
    """Evaluate the methods, print the errors and optionally write them as JSON.

    Args:
        data: Folder with measured steps.
        method: Names of methods, separated by commas.
        left_out: Whether to predict each network from the others as well.
        seed: Seed of random splits.
        json_file: JSON file, or None.

    Raises:
        BadInput: If the input is invalid; raised before any computation.
    """
    from rich.console import Console

    check_output("--json", json_file, "[")
    methods = _parse_methods(method)
    tables = read_step_tables(data)
    check_study(tables, methods, left_out)
    _report_dropped_rows(tables)
    with _show_progress(len(list(iterate_cells(tables, methods, left_out)))) as told:
        rows = judged(tables, methods, left_out=left_out, seed=seed, told=told)
    for table in as_tables(rows):
        Console().print(table)
    if json_file is not None:
        _write_rows("--json", json_file, [asdict(row) for row in rows])


def fit_memory(data: Path, out: Path, board: str, source: str) -> None:
    """Fit the coefficients to all steps and write them as YAML.

    Raises:
        BadInput: If the data or the output file is invalid.
    """
    from rich.console import Console

    check_output("--out", out, "#")
    found = memory_calibration.fit_memory_calibration(read_step_tables(data), board, source)
    text = COEFFICIENTS_HEADER + yaml.safe_dump(
        memory_calibration.memory_calibration_to_dict(found), sort_keys=False, width=120
    )
    try:
        run_folder.write_text(out, text)
    except OSError as error:
        raise BadInput("--out", str(out), f"a file that can be written ({error.strerror})") from error
    spreads = f"memory {found.memory_sd_log:.1%}, time {found.step_sd_log:.1%}".replace("%", " %")
    Console().print(f"Wrote {out}. Spread on a network left out: {spreads}.", highlight=False)


def as_tables(rows: Sequence[MemoryErrorRow]) -> Iterator[Table]:
    """Yield a table per split: one line per network with the methods' errors in memory and time, and their mean."""
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


def _parse_methods(text: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(words) or len(set(words)) < len(words):
        raise BadInput("--method", repr(text), f"{', '.join(METHODS)}, separated by commas, each once")
    return tuple(words)


def _report_dropped_rows(tables: Sequence[StepTable]) -> None:
    dropped = {table.network: table.dropped for table in tables if table.dropped}
    if dropped:
        counts = ", ".join(f"{network} {count}" for network, count in dropped.items())
        sys.stderr.write(f"fedge: rows left out, of pruning levels without a geometry: {counts}\n")


def _write_rows(option: str, path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        run_folder.write_json(path, rows)
    except OSError as error:
        raise BadInput(option, str(path), f"a file that can be written ({error.strerror})") from error


@contextmanager
def _show_progress(total: int) -> Iterator[Any]:
    """Show progress on the terminal; silent without one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total)
        yield lambda step: progress.update(task, advance=1, description=step)
