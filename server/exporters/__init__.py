"""Where a run's rows go besides its store: one file per exporter, and the table of their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedge.telemetry.store import Row

EXPORTERS: dict[str, str] = {}
"""Name in the YAML -> ``module:Class``."""


class Exporter(Protocol):
    """Hears of every row after the store has it; made from the experiment, the run's folder and its own options."""

    def append(self, rows: Iterable[Row]) -> None:
        """Pass ``rows`` on; whatever it raises ends this exporter, not the run."""
        ...

    def close(self) -> None:
        """The run is over, well or not."""
        ...
