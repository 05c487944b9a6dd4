"""``fedge report``: write the page of one run, or of several side by side, and say where it lies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedge.errors import BadInput
from fedge.telemetry import run_folder

COMPARISON = "comparison.html"


def report(runs: Sequence[Path], out: Path | None) -> None:
    """Write the report and print its path; raises ``BadInput`` for a folder that is no run with a finished round."""
    from experiments.report.page import write_report

    target = out or (runs[0] / run_folder.REPORT if len(runs) == 1 else Path(COMPARISON))
    if target.is_dir():
        raise BadInput("--out", str(target), "the path of an HTML file, not a folder")
    try:
        write_report(runs, target)
    except OSError as error:
        raise BadInput("--out", str(target), f"a file that can be written ({error.strerror})") from error
    sys.stdout.write(f"{target.resolve()}\n")
