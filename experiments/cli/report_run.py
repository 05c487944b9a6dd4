"""``fedge report``: writes the page of one run, or of several side by side, and prints its path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedge.errors import BadInput
from fedge.telemetry import run_folder

COMPARISON_FILE = "comparison.html"


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or sweeps; several runs are compared.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; by default report.html in the run.")
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
    if target.is_dir():
        raise BadInput("--out", str(target), "the path of an HTML file, not a folder")
    try:
        write_report(folders, target, sweep_report.build_sweep_sections(runs))
    except OSError as error:
        raise BadInput("--out", str(target), f"a file that can be written ({error.strerror})") from error
    sys.stdout.write(f"{target.resolve()}\n")
    if tables is None:
        return
    try:
        written = write_report_tables(folders, tables, sweep_report.list_sweep_tables(runs))
    except OSError as error:
        right = f"a folder that can be written ({error.strerror})"
        raise BadInput("--tables", str(tables), right) from error
    sys.stdout.write(f"{tables.resolve()}: {len(written)} files\n")
