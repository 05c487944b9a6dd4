"""``fedge report``: writes the page of one run, or of several side by side, and prints its path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedge.errors import BadInput
from fedge.telemetry import run_folder

COMPARISON_FILE = "comparison.html"


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are compared.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file; by default report.html in the first run.")] = None,
    tables: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write every table to this folder, as .csv and .tex.")
    ] = None,
) -> None:
    """Write the report of one run, or compare several; runs that differ only in the seed form one group."""
    write_run_report(runs, out, tables)


def write_run_report(runs: Sequence[Path], out: Path | None, tables: Path | None = None) -> None:
    """Write the report, optionally its tables, and print their paths.

    By default, the report is in the run folder, or in the working directory for several runs.

    Raises:
        BadInput: If a folder has no finished round, or a file cannot be written.
    """
    from experiments.report.run.run_page import write_report

    target = out or (runs[0] / run_folder.REPORT if len(runs) == 1 else Path(COMPARISON_FILE))
    if target.is_dir():
        raise BadInput("--out", str(target), "the path of an HTML file, not a folder")
    try:
        write_report(runs, target)
    except OSError as error:
        raise BadInput("--out", str(target), f"a file that can be written ({error.strerror})") from error
    sys.stdout.write(f"{target.resolve()}\n")
    if tables is not None:
        _write_table_files(runs, tables)


def _write_table_files(runs: Sequence[Path], folder: Path) -> None:
    from experiments.report.run.run_page import write_report_tables

    try:
        written = write_report_tables(runs, folder)
    except OSError as error:
        right = f"a folder that can be written ({error.strerror})"
        raise BadInput("--tables", str(folder), right) from error
    sys.stdout.write(f"{folder.resolve()}: {len(written)} files\n")
