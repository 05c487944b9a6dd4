"""Rows of a run (rounds, clients, evaluations, events, samples), the folder that holds them, and how to read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedge.telemetry.store_reader import RunReader


def open_run(path: str | Path) -> RunReader:
    """Open a run's folder to read its tables as pandas, as Arrow, or in SQL, also while the run goes on.

    Raises:
        BadInput: The folder is not a run, or a newer fedge wrote it.
    """
    from fedge.telemetry.store_reader import open_run as opened

    return opened(path)
