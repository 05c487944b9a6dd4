"""``fedge characterise-report``: write the page and the findings of a sweep's folder, as far as the sweep is."""

from __future__ import annotations

import sys
from pathlib import Path

from fedge.characterisation.result import Result, read_result
from fedge.characterisation.sweep.storing import unwritable
from fedge.telemetry import run_folder

FINDINGS = "findings.json"


def characterise_report(folder: Path) -> None:
    """Write them anew from what lies in ``folder``, and print where the page lies.

    Raises ``BadInput`` for a folder that no sweep was written to, or that cannot be written.
    """
    result = read_result(folder)
    write_report(result)
    sys.stdout.write(f"{(result.folder / run_folder.REPORT).resolve()}\n")


def write_report(result: Result) -> None:
    """Write ``report.html`` and ``findings.json`` into the result's folder, each replaced as a whole.

    Raises ``BadInput`` where they cannot be written, or the sweep's files cannot be read.
    """
    from experiments.report.characterisation.page import write_page
    from experiments.report.characterisation.said import as_data
    from experiments.report.characterisation.told import told_of

    told = told_of(result)
    path = result.folder / run_folder.REPORT
    try:
        write_page(told, path)
        run_folder.write_json(result.folder / FINDINGS, as_data(told))
    except OSError as error:
        raise unwritable(path, error) from error
