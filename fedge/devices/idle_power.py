"""Storage of measured idle power by mode, in a file, so that it is measured once."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from fedge.atomic_files import write_text
from fedge.errors import BadInput
from fedge.json_reader import read_json
from fedge.types import PowerMode

logger = logging.getLogger(__name__)


class IdlePowerStore:
    """Idle power by mode, with an optional file.

    Args:
        path: The file; None keeps measurements in memory only.
        meter: Sensor and rails of the measurements. Those of other meters are kept in the file but not used.
    """

    def __init__(self, path: Path | None = None, meter: str = "") -> None:
        self._path, self._meter = path, meter
        self._watts: dict[str, float] = _read(path).get(meter, {}) if path is not None else {}

    def find_w(self, mode: PowerMode) -> float | None:
        """Return the measured idle power in ``mode`` in watts, or None."""
        return self._watts.get(str(mode))

    def record(self, mode: PowerMode, watts: float) -> None:
        """Store a measurement; the file is replaced atomically, and a write error is logged as a warning."""
        self._watts[str(mode)] = watts
        if self._path is None:
            return
        try:
            write_text(self._path, json.dumps(_read(self._path) | {self._meter: self._watts}, indent=1))
        except OSError as error:
            logger.warning("%s cannot be written (%s): the next program measures idle power again", self._path, error)


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Read idle power in watts by meter and mode; empty if there is no readable file."""
    if not path.exists():
        return {}
    try:
        written = read_json(path, "watts by meter and mode")
        return {str(meter): {str(mode): float(w) for mode, w in seen.items()} for meter, seen in written.items()}
    except (BadInput, ArithmeticError, ValueError, AttributeError, TypeError) as error:
        logger.warning("%s cannot be read (%s): idle power is measured again", path, error)
        return {}
