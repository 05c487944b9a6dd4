"""Writes measured tables in the normal form, as a whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fedge.errors import BadInput
from fedge.profiles.table import COLUMNS
from fedge.types import ProfileTable

DIGITS = 12
"""Significant digits written: more than any meter has, and whole hertz stay whole."""


def write_table(path: Path, *tables: ProfileTable) -> None:
    """Write one workload's tables, one per batch size, as one CSV in the normal form (docs/tables.md).

    Folders are made, an existing file is replaced; a failure leaves what was there. Raises ``BadInput`` for a path
    that cannot be written.
    """
    try:
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(text_of(*tables), encoding="utf-8", newline="")
            unfinished.replace(path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(str(path), f"a file that cannot be written ({reason})", "the path of a table (CSV)") from error


def text_of(*tables: ProfileTable) -> str:
    """The normal form of one workload's tables, one per batch size, in the order given."""
    lines = [",".join(COLUMNS)]
    for table in tables:
        rows = zip(table.modes.knobs.tolist(), table.step_s.tolist(), table.power_w.tolist(), strict=True)
        for (cores, cpu_mhz, gpu_mhz, mem_mhz), step_s, power_w in rows:
            values = (cores, cpu_mhz * 1e3, gpu_mhz * 1e6, mem_mhz * 1e6, table.batch_size, step_s * 1e3, power_w)
            lines.append(",".join(f"{value:.{DIGITS}g}" for value in values))
    return "\n".join(lines) + "\n"
