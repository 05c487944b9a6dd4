"""Where a run's rows go besides its store: one file per exporter, and the table of their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedge.telemetry.store import Row

EXPORTERS: dict[str, str] = {
    "mlflow": "server.exporters.mlflow:MLflow",
    "ray": "server.exporters.ray_mirror:RayMirror",
    "tensorboard": "server.exporters.tensorboard:TensorBoard",
}
"""Name in the YAML -> ``module:Class``."""
PACKAGES: dict[str, tuple[str, str]] = {
    "mlflow": ("mlflow", "mlflow"),
    "tensorboard": ("tensorboard", "tensorboard"),
}
"""Name in the YAML -> the module that it needs, and the extra of fedge that brings it."""


class Exporter(Protocol):
    """Hears of every row after the store has it; made as ``Class(experiment, folder, **options)``."""

    def append(self, rows: Iterable[Row]) -> None:
        """Pass ``rows`` on; whatever it raises ends this exporter, not the run."""
        ...

    def close(self) -> None:
        """The run is over, well or not."""
        ...
