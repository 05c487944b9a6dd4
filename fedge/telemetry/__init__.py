"""What a run leaves behind: rows of rounds, clients, events and samples, the folder that holds them, how to read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedge.telemetry.run_reader import RunReader


def open_run(path: str | Path) -> RunReader:
    """Open a run's folder to read its tables, also while the run goes on: as pandas, as Arrow, or in SQL.

    Raises ``BadInput`` when the folder is not that of a run, or a newer fedge wrote it.
    """
    from fedge.telemetry.run_reader import open_run as opened

    return opened(path)
