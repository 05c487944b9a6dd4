"""Exporters: destinations of a run's rows besides its store, one file each, and the table of their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedge.telemetry.store import Row

EXPORTERS: dict[str, str] = {
    "mlflow": "server.exporters.mlflow:MLflow",
    "ray": "server.exporters.ray_mirror:RayMirror",
    "tensorboard": "server.exporters.tensorboard:TensorBoard",
}
"""Name in the YAML file -> ``module:Class``."""
PACKAGES: dict[str, tuple[str, str]] = {
    "mlflow": ("mlflow", "mlflow"),
    "tensorboard": ("tensorboard", "tensorboard"),
}
"""Name in the YAML file -> the module that the exporter needs, and the extra of fedge that installs it."""


class Exporter(Protocol):
    """Receives every row after it is stored; constructed as ``Class(experiment, folder, **options)``."""

    def append(self, rows: Iterable[Row]) -> None:
        """Export rows; an exception ends this exporter, not the run."""
        ...

    def close(self) -> None:
        """Finish the export at the end of the run, whether it succeeded or not."""
        ...
